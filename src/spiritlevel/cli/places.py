"""Where the Python files of the current directory define a name: found by reading them, nothing is imported."""

from __future__ import annotations

import ast
import contextlib
import difflib
from collections.abc import Iterator
from pathlib import Path

MOST_FILES = 200
LARGEST = 2_000_000  # bytes of a file that is read


def places_of(name: str) -> list[str]:
    """Return ``file.py:name`` for every file here that defines a name, or else one very near to it."""
    defined = [(path, own) for path in _files() for own in _defined_in(path)]
    exact = [f"{path}:{own}" for path, own in defined if own == name]
    if exact:
        return exact
    near = difflib.get_close_matches(name.lower(), [own.lower() for _, own in defined], n=2, cutoff=0.8)
    return [f"{path}:{own}" for path, own in defined if own.lower() in near][:2]


def place_hint(text: str) -> str:
    """Return ``"; did you mean my_project.py:MyNet?"`` where a file here defines what was named, or nothing."""
    name = text.rpartition(":")[2].rpartition(".")[2]
    found = places_of(name) if name.isidentifier() else []
    return f"; did you mean {' or '.join(found)}?" if found else ""


def _files() -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(path for path in Path().glob("*.py") if path.is_file())[:MOST_FILES]
    return []


def _defined_in(path: Path) -> Iterator[str]:
    """Yield the classes, functions and objects that a file defines at its top, but for private ones."""
    try:
        if path.stat().st_size > LARGEST:
            return
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # it is not ours to complain about
        return
    for node in tree.body:
        names: list[str] = []
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names = [node.target.id]
        yield from (name for name in names if not name.startswith("_"))
