"""A Hugging Face folder as a network: the class that its config.json names, weights as from_pretrained has them.

The tensors are read by our own reader, which executes nothing, and handed to transformers as a state dict, so that its
renamings and rearrangements between file and network apply and no file of weights is opened by anything else.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from spiritlevel.cli.extras import import_extra, in_one_sentence, quiet_transformers
from spiritlevel.cli.tasks import TASKS, Task
from spiritlevel.inputs.weights.checkpoints import FOLDER_FILES, LoadedWeights, load_weights, read_tensors
from spiritlevel.inputs.weights.state_dicts import listed
from spiritlevel.values.errors import SpiritlevelError, UsageError

HUGGING_FACE = "hf:"


def check_folder(text: str) -> None:
    """Refuse a MODEL ``hf:FOLDER`` whose folder holds no network, without building one."""
    folder = Path(text.removeprefix(HUGGING_FACE))
    if not folder.is_dir():
        raise UsageError(
            f"{text} must name a folder on this machine, and there is none; nothing is fetched from a hub, so save the "
            "network with model.save_pretrained(FOLDER) and name that"
        )
    if (folder / "adapter_config.json").is_file():
        raise UsageError(
            f"{text} holds an adapter and not a whole network; merge it with model.merge_and_unload(), save that with "
            "save_pretrained and name its folder"
        )
    if not (folder / "config.json").is_file():
        raise UsageError(f"{text} has no config.json, which says what the network is; save it with save_pretrained")


def open_config(text: str, arguments: Mapping[str, Any]) -> Any:
    """Return the configuration in a folder, with arguments in place of its own values."""
    package = import_extra("transformers", text)
    folder = text.removeprefix(HUGGING_FACE)
    with quiet_transformers(package), in_one_sentence("transformers", f"could not read {folder}/config.json"):
        config = package.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **arguments)
    if getattr(config, "quantization_config", None) is not None:
        raise SpiritlevelError(
            f"{text} holds quantised weights, which have no derivatives; save the network in float32 or bfloat16"
        )
    return config


def check_task(text: str, arguments: Mapping[str, Any], task: Task) -> None:
    """Refuse a folder whose network is made for another task, before any data is read."""
    _network_class(import_extra("transformers", text), text, open_config(text, arguments), task)


def build_folder(
    text: str, arguments: Mapping[str, Any], task: Task | None, *, bare: bool = False
) -> tuple[nn.Module, str | None, tuple[str, ...]]:
    """Return the network in a folder, where its weights are from, and notes; ``bare`` where others will be loaded."""
    package, config = import_extra("transformers", text), open_config(text, arguments)
    network = _network_class(package, text, config, task)
    folder = Path(text.removeprefix(HUGGING_FACE))
    if bare and not any((folder / name).is_file() for name in FOLDER_FILES):
        with quiet_transformers(package), in_one_sentence("transformers", f"could not build {text}"):
            return _without_cache(network(copy.deepcopy(config))), None, ()
    model, unused = _from_tensors(package, network, config, folder, None)
    return _without_cache(model), str(folder), _said(unused)


def load_transformers_weights(model: Any, path: str, key: str | None) -> LoadedWeights:
    """Load weights into a network of transformers, by its own names or as its ``save_pretrained`` names them."""
    try:
        return load_weights(model, path, key)
    except UsageError:
        raise
    except SpiritlevelError as misfit:
        package = import_extra("transformers", path)
        try:
            other, unused = _from_tensors(package, type(model), model.config, Path(path), key)
        except SpiritlevelError:
            raise misfit from None
        if unused:
            raise
        model.load_state_dict(other.state_dict())
        names = len(other.state_dict())
        return LoadedWeights(Path(path), "Hugging Face weights, renamed as from_pretrained does", key, (), names)


def _network_class(package: Any, text: str, config: Any, task: Task | None) -> Any:
    """Return the class that the folder was saved from, or that the task asks for, as AutoModelFor... would."""
    name = (getattr(config, "architectures", None) or [None])[0]
    made_for = {
        each: [found for table in each.networks for found in _listed(package, table, config)] for each in TASKS.values()
    }
    if task is not None and any(made_for.values()):
        fitting = made_for[task]
        if any(found.__name__ == name for found in fitting):
            return getattr(package, name)
        others = [each.name for each, networks in made_for.items() if any(found.__name__ == name for found in networks)]
        if others or not fitting:
            kind = f"{name} for {' or '.join(others)}" if others else str(config.model_type)
            raise UsageError(
                f"--task {task.name} needs {task.what}, and {text} holds a {kind}; choose another task, or leave "
                "--task out and give --loss"
            )
        return fitting[0]
    if name is None:
        found = _listed(package, "MODEL_MAPPING", config)
        if found:
            return found[0]
    network = getattr(package, name, None) if name else None
    if network is None:
        asks = getattr(config, "transformers_version", None)
        raise UsageError(
            f"{text} was saved from {name or 'a network that its config.json does not name'}, which transformers "
            f"{package.__version__} does not have{f' (the folder names version {asks})' if asks else ''}; install that "
            "version, or name a function of your own that builds it as path/file.py:name"
        )
    return network


def _listed(package: Any, table: str, config: Any) -> list[Any]:
    """Return the networks that one of transformers' tables has for a kind of configuration."""
    try:
        found = getattr(package, table)[type(config)]
    except (AttributeError, KeyError):
        return []
    return list(found) if isinstance(found, (tuple, list)) else [found]


def _from_tensors(package: Any, network: Any, config: Any, place: Path, key: str | None) -> tuple[Any, list[str]]:
    """Return the network with the tensors of a file or folder, and the names that it has no place for."""
    tensors = read_tensors(place, key)
    # Experts and attention written out, as the same operations: the fused ones cannot be differentiated twice.
    eager = {"attn_implementation": "eager"}
    if hasattr(config, "_experts_implementation"):
        eager["experts_implementation"] = "eager"
    with quiet_transformers(package), in_one_sentence("transformers", f"could not load {place}"):
        model, found = network.from_pretrained(
            None, config=copy.deepcopy(config), state_dict=tensors, output_loading_info=True, **eager
        )
    missing = sorted(found["missing_keys"])
    if missing:
        raise SpiritlevelError(
            f"{place} has no weights for {listed(missing, 3)} of the {network.__name__}, which would be left at random "
            "numbers; name the folder of the network that was trained for this"
        )
    return model.eval(), sorted(found["unexpected_keys"])


def _without_cache(model: Any) -> nn.Module:
    """Return the network told not to keep keys and values for generating text, which hold on to the graph."""
    if getattr(model.config, "use_cache", False):
        model.config.use_cache = False
    network: nn.Module = model
    return network


def _said(unused: list[str]) -> tuple[str, ...]:
    return (f"The folder also holds {listed(unused, 3)}, which this network has no place for.",) if unused else ()
