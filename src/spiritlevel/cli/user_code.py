"""What a command reads: the files it was given, and the user's own code that they brought with them."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import spiritlevel
from spiritlevel import datasets
from spiritlevel.cli.request import Request

Inputs = list[tuple[str, str | Path]]


def inputs_of(request: Request, *, config: str | None, like: str | None, test: str | None = None) -> Inputs:
    """Return every file a request names, with what it is; none of them may be written to."""
    found: Inputs = [("the weights file", file) for path in request.weights for file in _files_of(path)]
    if config is not None:
        found.append(("the file of options", config))
    if like is not None:
        found.append(("the earlier report", like))
    model = request.model or ""
    if model.startswith("hf:"):
        found += [("the network's file", file) for file in _files_of(model.removeprefix("hf:"))]
    found += _named_in(model, "the network's source")
    for name in (request.data, test):
        found += _named_in(name or "", "the data's source")
        if name and name.lower().endswith(".npz"):
            found.append(("the data file", name))
        if name and name.partition(":")[0] in datasets.DATASETS and request.data_root is not None:
            found += _data_files(Path(request.data_root))
    for stream in ("/dev/stdout", "/dev/stderr"):  # where they are sent to files
        if os.path.isfile(stream):
            found.append(("where this command's own words go:", stream))
    return found


def _named_in(text: str, what: str) -> Inputs:
    """Return the file of ``path/file.py:name``, or of ``package.module:name`` in the current directory."""
    head, colon, _ = text.rpartition(":")
    if not colon:
        return []
    places = [Path(head)] if head.endswith(".py") else _places(head)
    return [(what, place) for place in places if place.is_file()]


def _places(module: str) -> list[Path]:
    place = Path(*module.split(".")) if module.replace(".", "").isidentifier() else Path(module)
    return [place.with_suffix(".py"), place / "__init__.py"]


def _files_of(path: str) -> list[str | Path]:
    """Return a file itself, or the files of a folder of weights."""
    return sorted(entry for entry in Path(path).iterdir() if entry.is_file()) if os.path.isdir(path) else [path]


def _data_files(root: Path) -> Inputs:
    """Return what may belong to a data set below a root: nothing that a command like this one writes."""
    ours = (".json", ".html", ".csv", ".npz", ".png", ".svg", ".pdf", ".parquet")
    found = (file for pattern in ("*", "*/*", "*/*/*") for file in root.glob(pattern))
    return [("the data file", file) for file in found if file.suffix.lower() not in ours and file.is_file()]


def source_files() -> Iterator[Path]:
    """Yield the files of all Python code that is loaded and comes neither with Python nor with a package."""
    standard = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
    installed = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(spiritlevel.__file__)}
    others = tuple(os.path.join(os.path.realpath(folder), "") for folder in standard | installed)
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    for file in sorted(file for file in files if isinstance(file, str)):
        if not os.path.realpath(file).startswith(others) and os.path.isfile(file):
            yield Path(file)
