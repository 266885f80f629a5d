"""From MODEL and DATA as written on the command line to a network and its data."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from spiritlevel.cli import hugging_face
from spiritlevel.cli.extras import BUILDERS, build_timm, import_extra
from spiritlevel.cli.places import place_hint
from spiritlevel.cli.tasks import Task
from spiritlevel.cli.text_records import TextRecord, is_text_file, read_text_records, records_of
from spiritlevel.cli.token_data import TokenReader, split_options
from spiritlevel.lab import datasets, nets
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names


@dataclass(frozen=True)
class NamedData:
    """Data for a ``Problem``, with the name and split to print; ``labelled`` where it is held in memory as images."""

    content: Any
    name: str
    split: str | None = None
    labelled: datasets.LabelledData | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class NamedModel:
    """A network with the name to print; ``weights`` where it brought its own, ``data`` where it had to be fitted."""

    model: nn.Module
    name: str
    data: NamedData
    weights: str | None = None
    notes: tuple[str, ...] = field(default=())


def is_place(text: str) -> bool:
    """Whether a text names something in Python code: ``package.module:name`` or ``path/file.py:name``."""
    head, colon, name = text.rpartition(":")
    return bool(colon and head and head not in BUILDERS and name.isidentifier())


def check_model_name(text: str) -> None:
    """Refuse a MODEL that cannot be found, without building it."""
    kind, _, rest = text.partition(":")
    if kind in BUILDERS and rest:
        import_extra(BUILDERS[kind], text)
        if text.startswith(hugging_face.HUGGING_FACE):
            hugging_face.check_folder(text)
    elif is_place(text):
        find_object(text)
    elif text not in nets.NETS:
        raise UsageError(
            f"no built-in network is called {text!r}: see `spiritlevel list nets`, or name your own as "
            f"package.module:name or path/file.py:name{place_hint(text) or near_names(text, nets.NETS)}"
        )


def open_named_data(
    text: str, arguments: Mapping[str, Any], root: str | None = None, reader: TokenReader | None = None
) -> NamedData:
    """Return the data of a name: a data set, a file, or an object or function in Python code; ``reader`` takes text."""
    kind = text.partition(":")[0]
    if kind in datasets.DATASETS or text.lower().endswith(".npz"):
        if arguments:
            raise UsageError(f"--data-args are for functions that make data, and {text} takes none; leave them out")
        return _from_labelled(datasets.open_data(text, root=root), text)
    if reader is not None and is_text_file(text):
        return _from_records(reader, read_text_records(text), text, arguments)
    if is_place(text):
        there = find_object(text)
        own, options = split_options(there, arguments) if reader is not None else (arguments, {})
        found = _made(there, text, own, "--data-args")
        records = records_of(found, text) if reader is not None else None
        if reader is not None and records is not None:
            return _from_records(reader, records, text, options)
        if options:
            raise UsageError(f"{text} gave no text, and --data-args {next(iter(options))} is for text; leave it out")
        if isinstance(found, datasets.LabelledData):
            return _from_labelled(found, text)
        return NamedData(found, text, None, _as_labelled(found, text))
    raise UsageError(
        f"no data set is called {text!r}: see `spiritlevel list data`, or give FILE.npz with x and y, "
        f"package.module:name or path/file.py:name{place_hint(text) or near_names(kind, datasets.DATASETS)}"
    )


def build_named_model(
    text: str,
    arguments: Mapping[str, Any],
    data: NamedData,
    seed: int,
    *,
    task: Task | None = None,
    weights: Sequence[str] = (),
) -> NamedModel:
    """Return the network of a name; a built-in one takes the data's channels and classes.

    ``weights`` are those that will be loaded into it: a folder of transformers' may then be without.
    """
    kind, _, rest = text.partition(":")
    if kind == "timm" and rest:
        made = build_timm(text, dict(arguments))
        return NamedModel(made, text, data, "pretrained" if arguments.get("pretrained") else None)
    if text.startswith(hugging_face.HUGGING_FACE) and rest:
        made, source, notes = hugging_face.build_folder(text, arguments, task, bare=bool(weights))
        return NamedModel(made, text, data, source, notes)
    if is_place(text):
        model = _made(find_object(text), text, arguments, "--model-args")
        if not isinstance(model, nn.Module):
            raise UsageError(f"{text} gave a {type(model).__name__}, and a torch.nn.Module is needed")
        return NamedModel(model, text, data)
    check_model_name(text)
    return _built_in(text, dict(arguments), data, seed)


def find_object(text: str) -> Any:
    """Return what ``package.module:name`` or ``path/file.py:name`` names."""
    head, _, name = text.rpartition(":")
    if head.endswith(".py"):
        module = _import_file(Path(head))
    else:
        module = _import_module(head, name)
        _refuse_other_module(module, head, name)
    if not hasattr(module, name):
        public = [known for known in vars(module) if not known.startswith("_")]
        raise UsageError(f"{head} has no {name!r}{near_names(name, public)}")
    return getattr(module, name)


def find_forward(text: str) -> Callable[[nn.Module, Any], Any]:
    """Return the function (model, batch) -> outputs that ``--forward`` names."""
    if not is_place(text):
        raise UsageError(
            f"--forward {text} must name a function, as package.module:name or path/file.py:name{place_hint(text)}"
        )
    found = find_object(text)
    if isinstance(found, type) or not callable(found):
        raise UsageError(
            f"--forward {text} is of type {type(found).__name__}; name a function (model, batch) -> outputs"
        )
    try:
        inspect.signature(found).bind(None, None)
    except TypeError as error:
        raise UsageError(
            f"--forward {text} must take two arguments, the model and a batch, and return the outputs: {error}"
        ) from error
    except ValueError:  # one written in C says nothing of its arguments
        pass
    forward: Callable[[nn.Module, Any], Any] = found
    return forward


def _import_module(name: str, attribute: str) -> ModuleType:
    _make_importable(os.getcwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {name!r} in the current directory or among the installed packages; name the "
                f"file, as path/file.py:name{place_hint(attribute)}"
            ) from error
        raise _broken(name, error) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _broken(name, error) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        siblings = [entry.name for entry in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise UsageError(f"there is no file {path}{near_names(path.name, siblings)}")
    file = path.resolve()
    name = f"_spiritlevel_user_{file.stem}_{abs(hash(str(file)))}"
    if name in sys.modules:
        return sys.modules[name]
    _make_importable(os.getcwd())
    _make_importable(str(file.parent))
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} cannot be imported as Python code")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[name]
        raise _broken(str(path), error) from error
    return module


def _make_importable(folder: str) -> None:
    """Add a folder behind all others: a file of the user's never stands in for one of Python's or of a package."""
    if folder not in sys.path:
        sys.path.append(folder)


def _refuse_other_module(module: ModuleType, name: str, attribute: str) -> None:
    """Refuse a name that is also a file here, where Python's or a package's module of that name was found instead."""
    place = Path(*name.split("."))
    here = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    found = getattr(module, "__file__", None)
    if here and not (found and os.path.exists(found) and any(os.path.samefile(found, file) for file in here)):
        raise UsageError(
            f"{name} is a module of Python or of an installed package, and also {here[0]} here; "
            f"name the file itself, as {here[0]}:{attribute}"
        )


def _broken(name: str, error: BaseException) -> SpiritlevelError:
    words = str(error).splitlines()[0] if str(error) else "no message"
    return SpiritlevelError(f"{name} could not be imported: {type(error).__name__}: {words}")


def _made(found: Any, text: str, arguments: Mapping[str, Any], option: str) -> Any:
    """Return the object itself, or what the class or function gives when called with the arguments."""
    is_class = isinstance(found, type)
    if not is_class and (isinstance(found, (nn.Module, Dataset, DataLoader)) or not callable(found)):
        if arguments:
            raise UsageError(f"{text} is an object and takes no {option}; name the function or class that makes it")
        return found
    try:
        return found(**arguments)
    except SpiritlevelError:
        raise
    except (Exception, SystemExit) as error:
        words = str(error).splitlines()[0] if str(error) else "no message"
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        raise SpiritlevelError(
            f"calling {text.rpartition(':')[2]}({given}) of {text} failed: {type(error).__name__}: {words}; "
            f"arguments are given with {option} k=v"
        ) from error


def _from_labelled(data: datasets.LabelledData, text: str) -> NamedData:
    name = text.partition(":")[0] if not is_place(text) or text.partition(":")[0] in datasets.DATASETS else text
    return NamedData((data.x, data.y), name, data.split or None, data, tuple(f"{note}." for note in data.notes))


def _from_records(reader: TokenReader, records: list[TextRecord], text: str, options: Mapping[str, Any]) -> NamedData:
    content, notes = reader.read(records, text, options)
    return NamedData(content, text, notes=tuple(notes))


def _as_labelled(found: Any, text: str) -> datasets.LabelledData | None:
    """Return images and class labels in memory as such, so that a built-in network can be fitted to them."""
    if not isinstance(found, (tuple, list)) or len(found) != 2 or not all(isinstance(t, Tensor) for t in found):
        return None
    x, y = found
    if x.ndim not in (3, 4) or not x.is_floating_point() or y.ndim != 1 or y.is_floating_point() or not len(y):
        return None
    return datasets.LabelledData(x, y, text, "", int(y.max()) + 1)


def fit_data(name: str, data: NamedData) -> tuple[NamedData, list[str]]:
    """Return data resized to what a built-in network takes, and notes on that; for any other network it stays."""
    if name not in nets.NETS or data.labelled is None:
        return data, []
    fitted = datasets.fit_images(data.labelled, nets.spec(name).size)
    if fitted.x.shape == data.labelled.x.shape:
        return data, []
    notes = [f"The {note}, the network's own size." for note in fitted.notes[len(data.labelled.notes) :]]
    return NamedData((fitted.x, fitted.y), data.name, data.split, fitted, data.notes), notes


def _built_in(name: str, arguments: dict[str, Any], data: NamedData, seed: int) -> NamedModel:
    data, notes = fit_data(name, data)
    if data.labelled is None:
        channels, size = _image_shape(data.content)
        shape = {"channels": channels, "size": size} if channels else {}
    else:
        # Labels that are no classes ask for as many outputs as they have entries.
        outputs = max(data.labelled.classes, 2) if data.labelled.classes else data.labelled.y[0].numel()
        shape = {"channels": data.labelled.channels, "size": data.labelled.size, "classes": outputs}
    model = nets.build(name, seed=seed, **{**shape, **arguments})
    return NamedModel(model, name, data, None, tuple(notes))


def _image_shape(content: Any) -> tuple[int | None, int | None]:
    """Return channels and side of the first sample of a data set, where it is an image."""
    dataset = content.dataset if isinstance(content, DataLoader) else content
    if not hasattr(dataset, "__getitem__") or isinstance(dataset, (tuple, list, Mapping)):
        return None, None
    first = dataset[0]
    image = first[0] if isinstance(first, (tuple, list)) and first else None
    if isinstance(image, Tensor) and image.ndim == 3:
        return image.shape[0], max(image.shape[1:])
    return None, None
