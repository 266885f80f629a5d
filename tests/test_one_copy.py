"""One copy of everything, and one word for one thing: no passage stands twice in the repository's Python, docstrings
included, and no name in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src", "tests", "benchmarks", "examples", "docs")
LINES = 6
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
# Decorators that leave a function what it is; by any other it is entered into a table and known by its entry there.
PLAIN_DECORATORS = {"cache", "contextmanager", "lru_cache", "overload"}
TWICE = {
    "section": "every file of the page's sections has one, under the same name",
    "softmax_impurity": "a reference bears its measure's name, and the losses' function of it is public",
}


def _parsed(*folders: str) -> Iterator[tuple[str, str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            yield path.relative_to(ROOT).as_posix(), text, ast.parse(text)


def lines_that_count(text: str, tree: ast.Module) -> list[tuple[int, str]]:
    """Return the numbered lines, white space folded: without imports, comments and punctuation; examples count too."""
    passed: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            passed.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = ((number, " ".join(line.split())) for number, line in enumerate(text.splitlines(), 1))
    passed_over = ("#", ">>> import ", ">>> from ")
    return [
        (number, line)
        for number, line in lines
        if number not in passed and not line.startswith(passed_over) and any(map(str.isalnum, line))
    ]


def repeated(sources: Iterator[tuple[str, str, ast.Module]]) -> list[str]:
    """Return the places of every passage that stands more than once, in words."""
    places: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text, tree in sources:
        lines = lines_that_count(text, tree)
        for start in range(len(lines) - LINES + 1):
            passage = lines[start : start + LINES]
            places[tuple(line for _, line in passage)].append(f"{name}:{passage[0][0]}")
    return [" and ".join(found) for found in places.values() if len(found) > 1]


def test_no_passage_of_six_lines_stands_twice() -> None:
    assert repeated(_parsed(*FOLDERS)) == []


def test_a_copied_passage_is_found_whatever_its_indent_and_comments() -> None:
    passage = [f"a{number} = work({number})" for number in range(LINES)]
    copy = ["def f():", '    """Say what."""', *("    # why\n    " + line for line in passage)]
    texts = {"one.py": "import os\n" + "\n".join(passage), "other.py": "\n".join(copy)}
    sources = [(name, text, ast.parse(text)) for name, text in texts.items()]
    assert repeated(iter(sources)) == ["one.py:2 and other.py:4"]
    assert repeated(iter([sources[0], ("third.py", "\n".join(passage[1:]), ast.parse("\n".join(passage[1:])))])) == []


def test_a_copied_docstring_is_found_and_the_imports_of_examples_are_not() -> None:
    described = [f"    x{number} : int" for number in range(LINES - 2)] + ["    >>> import torch"]
    texts = {
        f"{name}.py": "\n".join([f"def {name}():", f'    """Say {name}.', *described, "    >>> f()", *more, '    """'])
        for name, more in (("f", ["    0", "    last"]), ("g", ["    0"]), ("h", ["    1"]))
    }
    sources = [(name, text, ast.parse(text)) for name, text in texts.items()]
    assert repeated(iter(sources)) == ["f.py:3 and g.py:3"]


def test_no_class_and_no_type_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for name, _, tree in _parsed("src"):
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
    for name, _, tree in _parsed("src"):
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
