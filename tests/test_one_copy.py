"""One copy of everything, and one word for one thing: no passage stands twice in the repository's Python, docstrings
included, and no name in the package."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs")
LINES = 6
_IMPORT = re.compile(r"(>>> )?(from \S+ )?import\b")
# Decorators that leave a function what it is; by any other it is entered into a table and known by its entry there.
PLAIN_DECORATORS = {"cache", "contextmanager", "lru_cache", "overload"}
TWICE = {
    "section": "every file of the page's sections has one, under the same name",
    "softmax_impurity": "a reference bears its measure's name, and the losses' function of it is public",
}


@cache
def _texts(folder: str) -> list[tuple[str, str]]:
    paths = sorted((ROOT / folder).rglob("*.py"))
    return [(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


@cache
def _parsed() -> list[tuple[str, ast.Module]]:
    return [(name, ast.parse(text)) for name, text in _texts("src")]


def lines_that_count(text: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines, white space folded: without imports, an example's too, comments and punctuation."""
    importing = False
    for number, line in enumerate(text.splitlines(), 1):
        folded = " ".join(line.split())
        importing = importing or _IMPORT.match(folded) is not None
        if not importing and not folded.startswith("#") and any(map(str.isalnum, folded)):
            yield number, folded
        importing = importing and not folded.endswith(")") and folded.endswith(("(", ","))


def repeated(texts: Iterable[tuple[str, str]]) -> list[str]:
    """Return the places of every passage that stands more than once, in words."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text in texts:
        lines = list(lines_that_count(text))
        for start in range(len(lines) - LINES + 1):
            passage = lines[start : start + LINES]
            places[tuple(line for _, line in passage)].append(f"{name}:{passage[0][0]}")
    return [" and ".join(found) for found in places.values() if len(found) > 1]


def test_no_passage_of_six_lines_stands_twice() -> None:
    assert repeated(found for folder in FOLDERS for found in _texts(folder)) == []


def test_a_copied_passage_is_found_whatever_its_indent_and_comments() -> None:
    passage = [f"a{number} = work({number})" for number in range(LINES)]
    imports = ["import os", "from here import (", "    there,", "    too,", ")"]
    one = "\n".join([*imports, *passage])
    other = "\n".join(["def f():", '    """Say what."""', *("    # why\n    " + line for line in passage), *imports])
    assert repeated([("one.py", one), ("other.py", other)]) == ["one.py:6 and other.py:4"]
    assert repeated([("one.py", one), ("third.py", "\n".join([*passage[1:], *imports]))]) == []


def test_a_copied_docstring_is_found_and_the_imports_of_examples_are_not() -> None:
    shared = [*(f"    x{number} : int" for number in range(LINES - 2)), "    >>> import torch", "    >>> f()"]
    texts = [
        (f"{name}.py", "\n".join([f"def {name}():", f'    """Say {name}.', *shared, *more, '    """']))
        for name, more in (("f", ["    0", "    last"]), ("g", ["    0"]), ("h", ["    1"]))
    ]
    assert repeated(texts) == ["f.py:3 and g.py:3"]


def test_no_class_and_no_type_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in _parsed():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
            elif isinstance(node, ast.Assign):
                # In capitals they are constants, each its module's own.
                targets = [target.id for target in node.targets if isinstance(target, ast.Name)]
                for target in targets:
                    if target[0].isupper() and not target.isupper():
                        places[target].append(name)
    assert {word: found for word, found in places.items() if len(found) > 1} == {}


def test_no_public_function_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, tree in _parsed():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and not _entered(node):
                places[node.name].append(name)
    assert {word for word, found in places.items() if len(found) > 1} == set(TWICE)


def _entered(function: ast.FunctionDef) -> bool:
    """Whether a decorator enters a function into a table: measures, commands, rules of operations."""
    names = set()
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
    return bool(names - PLAIN_DECORATORS)
