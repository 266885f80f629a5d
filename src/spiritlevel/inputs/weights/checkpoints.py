"""Reading weights safely from the forms people save: safetensors, ``torch.save`` of any age, Hugging Face folders.

Tensors only. Nothing in a file is executed, and a model is written to only after everything in the file was checked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from spiritlevel.inputs.weights.bounded_pickle import BudgetSpent
from spiritlevel.inputs.weights.fitting import copy_weights, describe_misfit, fit_names, own_tensors
from spiritlevel.inputs.weights.safe_pickle import in_words, open_regular, shown
from spiritlevel.inputs.weights.state_dicts import AVERAGED_ENTRIES, find_weights, listed
from spiritlevel.inputs.weights.torch_files import TorchFile, open_stream, open_zip
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names

# In the order in which they are looked for: one file before several, safetensors before pickles.
FOLDER_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# Five times the index of the networks with the most tensors.
_LARGEST_INDEX = 64 << 20


@dataclass(frozen=True)
class LoadedWeights:
    """What was loaded into a model: from where, in which form, under which entry, with which prefixes removed.

    Attributes
    ----------
    path : Path
        The file or folder.
    form : str
        What it was, in words.
    key : str
        The entry that held the state dict; None where it was the file itself.
    prefixes : tuple of str
        What was taken off the names.
    tensors : int
        How many tensors were loaded.
    notes : tuple of str
        What else the file holds.
    """

    path: Path
    form: str
    key: str | None
    prefixes: tuple[str, ...]
    tensors: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Weights:
    """The named tensors of a file or folder and how they were found."""

    tensors: dict[str, Tensor]
    form: str
    key: str | None = None
    other_keys: tuple[str, ...] = ()


def load_weights(model: nn.Module, path: str | os.PathLike[str], key: str | None = None) -> LoadedWeights:
    """Load the weights in a file or Hugging Face folder into a model, all of them or none.

    Nothing in the file is executed. The prefixes ``module.``, ``_orig_mod.``, ``model.`` and ``net.`` come off as often
    as needed, but only if then every name fits. Values are cast to the model's types; a file that does not fit raises
    an error and leaves the model as it was.

    Parameters
    ----------
    model : torch.nn.Module
        The network to load into.
    path : path
        A file that ``torch.save`` or safetensors wrote, or a Hugging Face folder.
    key : str
        The entry of the state dict, which may have dots; by default the file itself or its entry ``state_dict``,
        ``model_state_dict``, ``model`` or ``net``. Any other, averaged weights among them, is taken by its name alone.

    Returns
    -------
    LoadedWeights
        What was loaded, and from where.

    Raises
    ------
    UsageError
        There is no such file or entry, or the model is no network.
    SpiritlevelError
        The file cannot be read as weights, or does not fit the model.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> torch.save({"state_dict": model.state_dict(), "epoch": 3}, "checkpoint.pt")
    >>> loaded = sl.load_weights(sl.nets.build("digits_mlp", seed=1), "checkpoint.pt")
    >>> loaded.key, loaded.tensors
    ('state_dict', 6)
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}, and weights can only be loaded into a torch.nn.Module")
    place = Path(path)
    saved, unsaved = own_tensors(model)
    weights = _read(place, key)
    fit = fit_names(weights.tensors, saved, unsaved)
    averaged = (name for name in weights.other_keys if name in AVERAGED_ENTRIES)
    notes = tuple(f"the file also holds averaged weights (key={name!r})" for name in averaged)
    misfit = describe_misfit(fit, weights.tensors, saved)
    if misfit:
        source = place if weights.key is None else f"{place} (entry '{shown(weights.key)}')"
        others = [name for name in weights.other_keys if name not in AVERAGED_ENTRIES]
        aside = f"; other entries with tensors are {listed(others)}" if others else ""
        aside += "".join(f"; {note}" for note in notes)
        raise SpiritlevelError(
            f"{source} does not fit the {type(model).__name__}: {misfit}; "
            f"build the network that was saved, or choose another file or key{aside}"
        )
    copy_weights(fit, weights.tensors, saved)
    return LoadedWeights(place, weights.form, weights.key, fit.prefixes, len(fit.places), notes)


def read_tensors(path: str | os.PathLike[str], key: str | None = None) -> dict[str, Tensor]:
    """Return the named tensors of a file or Hugging Face folder, on the CPU, as they are stored."""
    return _read(Path(path), key).tensors


def _read(path: Path, key: str | None) -> _Weights:
    """Read a path of any form."""
    try:
        if path.is_dir():
            return _read_folder(path, key)
        if not path.exists():
            siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
            raise UsageError(f"there is no file or folder {path}{near_names(path.name, siblings)}")
        return _read_file(path, key)
    except OSError as error:
        raise SpiritlevelError(f"{path} cannot be read: {error.strerror or in_words(error)}") from error


def _read_file(path: Path, key: str | None) -> _Weights:
    """Read one file; its first bytes say what it is, since people give all of these forms the same endings."""
    with open_regular(path) as stream:
        start = stream.read(512)
    if not start:
        raise SpiritlevelError(f"{path} is empty; save or copy it again")
    if start.startswith(b"version https://git-lfs"):
        raise SpiritlevelError(f"{path} is a Git LFS pointer, not the weights; fetch them with git lfs pull")
    if start.startswith(b"PK"):
        return _read_torch(path, key, open_zip, "torch.save archive")
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return _read_safetensors(path, key)
    if start.startswith(b"\x80"):
        return _read_torch(path, key, open_stream, "torch.save stream of before torch 1.6")
    if start[257:262] == b"ustar":
        raise SpiritlevelError(
            f"{path} is a tar archive, perhaps of torch before 0.1.10; save the weights again with a later version"
        )
    raise SpiritlevelError(
        f"{path} is not a weights file; give one written by torch.save or safetensors, or a Hugging Face folder"
    )


def _read_safetensors(path: Path, key: str | None) -> _Weights:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if key is not None:
        raise UsageError(f"{path} is a safetensors file, which has no entries; leave key={key!r} out")
    try:
        tensors = load_file(path)
    # The library checks the header against the file; what passes and torch cannot build raises anything.
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError) as error:
        raise SpiritlevelError(
            f"{path} is not a readable safetensors file ({in_words(error)}); copy it again"
        ) from error
    if not tensors:
        raise SpiritlevelError(f"{path} holds no tensors; save the model again")
    return _Weights(tensors, "safetensors file")


def _read_torch(
    path: Path, key: str | None, opened: Callable[[Path], AbstractContextManager[TorchFile]], form: str
) -> _Weights:
    with opened(path) as file:
        try:
            found = find_weights(file.root, key, path, file.budget)
            tensors = {name: file.tensor(f"{shown(name)} in {path}", record) for name, record in found.records.items()}
        except RecursionError as error:
            raise SpiritlevelError(f"{path} is nested too deeply to be a weights file") from error
        except BudgetSpent as error:
            raise SpiritlevelError(f"{path} cannot be read: {error}") from error
    form = f"whole module in a {form}" if found.whole_module else form
    return _Weights(tensors, form, found.key, found.other_keys)


def _read_folder(folder: Path, key: str | None) -> _Weights:
    """Read the weights of a Hugging Face folder, in one file or in shards with an index."""
    if key is not None:
        raise UsageError(f"{folder} is a folder, whose weights have no entries; leave key={key!r} out or name a file")
    name = next((name for name in FOLDER_FILES if (folder / name).is_file()), None)
    if name is None:
        raise SpiritlevelError(f"{folder} has none of {', '.join(FOLDER_FILES)}; name the weights file itself")
    if not name.endswith(".json"):
        return _Weights(_read(folder / name, None).tensors, f"Hugging Face folder ({name})")
    index = _weight_map(folder / name)
    tensors: dict[str, Tensor] = {}
    placed: dict[str, set[str]] = {}
    for entry, shard in index.items():
        placed.setdefault(shard, set()).add(entry)
    for shard, wanted in sorted(placed.items()):
        if not (folder / shard).is_file():
            raise SpiritlevelError(
                f"{folder} lacks the shard {shown(shard)} that its index names; copy the folder again"
            )
        present = _read(folder / shard, None).tensors
        absent = sorted(wanted - present.keys())
        if absent:
            raise SpiritlevelError(
                f"{folder / shard} lacks {shown(absent[0])}, which the index places there; copy the folder again"
            )
        tensors |= {name: present[name] for name in wanted}
    return _Weights(tensors, f"Hugging Face folder ({name}, {len(placed)} shards)")


def _weight_map(path: Path) -> Mapping[str, str]:
    """Return which shard of a folder holds which name; a shard outside the folder is refused."""
    try:
        if path.stat().st_size > _LARGEST_INDEX:
            raise ValueError(f"it has more than {_LARGEST_INDEX:,} bytes")
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError) as error:
        raise SpiritlevelError(f"{path} is not a readable index ({in_words(error)}); copy the folder again") from error
    index = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(index, dict) or not index:
        raise SpiritlevelError(f"{path} has no weight_map, so the shards cannot be found; copy the folder again")
    for shard in index.values():
        if not isinstance(shard, str) or shard != Path(shard).name or shard.endswith(".json"):
            raise SpiritlevelError(f"{path} names the shard '{shown(shard)}', which is not a file in its folder")
    return index
