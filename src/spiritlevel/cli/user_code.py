"""What a command reads: the files it was given, and the user's own code that they brought with them."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

import spiritlevel
from spiritlevel.cli.request import Request
from spiritlevel.cli.text_records import is_text_file
from spiritlevel.lab import datasets
from spiritlevel.lab.datasets.files import data_roots

Inputs = list[tuple[str, str | Path]]


def inputs_of(
    request: Request, *, config: str | None, like: str | None, test: str | None = None, runs: str | None = None
) -> Inputs:
    """Return every file a request names, with what it is; none of them may be written to."""
    found: Inputs = [("the weights file", file) for path in request.weights for file in _files_of(path)]
    if config is not None:
        found.append(("the file of options", config))
    if like is not None:
        found.append(("the earlier report", like))
    if runs is not None:
        found.append(("the table of runs", runs))
    model = request.model or ""
    if model.startswith("hf:"):
        found += [("the network's file", file) for file in _files_of(model.removeprefix("hf:"))]
    found += _named_in(model, "the network's source")
    found += _named_in(request.forward or "", "the source of --forward")
    found += [each for name in request.measures for each in _named_in(name, "the source of --measures")]
    for name in (request.data, test):
        found += _named_in(name or "", "the data's source")
        if name and (name.lower().endswith(".npz") or is_text_file(name)):
            found.append(("the data file", name))
        if name and name.partition(":")[0] in datasets.DATASETS:
            roots = data_roots(Path(request.data_root) if request.data_root else None)
            found += [each for root in roots for each in _data_files(root)]
    tokenizer = request.data_args.get("tokenizer")
    if isinstance(tokenizer, str) and os.path.isdir(tokenizer):
        found += [("the tokenizer's file", file) for file in _files_of(tokenizer)]
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


def source_files(named: Iterable[str] = ()) -> Iterator[Path]:
    """Yield the files of all Python code that is loaded and comes neither with Python nor with a package.

    Packages that ``package.module:name`` names are the user's own, wherever they are installed.
    """
    own = {text.partition(".")[0].partition(":")[0] for text in named if ":" in text}
    standard = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")}
    installed = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(spiritlevel.__file__)}
    folders = {*standard, *installed, *map(os.path.realpath, standard | installed)}
    others = tuple(os.path.join(folder, "") for folder in folders)
    found = set()
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__dict__", {}).get("__file__")  # asking a lazy module itself might import it
        if not isinstance(file, str) or (file.startswith(others) and name.partition(".")[0] not in own):
            continue  # most of the thousands of modules there are
        theirs = os.path.realpath(file).startswith(others) and name.partition(".")[0] not in own
        if not theirs and os.path.isfile(file):
            found.add(file)
    yield from map(Path, sorted(found))
