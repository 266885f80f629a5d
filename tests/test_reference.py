"""The reference of the package: every public name stands on a page, with its parameters as they are and an example that
prints what stands below it."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import spiritlevel
from docs.hooks.examples import Documented, everywhere, wrong

PAGES = Path(__file__).parent.parent / "docs" / "reference"
UNNAMED = "parts.md"  # what stands inside results and has no public name
_DIRECTIVE = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)


def directives() -> dict[str, dict[str, Any]]:
    """Return the options of every name on the pages."""
    found = {}
    for page in PAGES.glob("*.md"):
        if page.name != UNNAMED:
            for name, options in _DIRECTIVE.findall(page.read_text(encoding="utf-8") + "\n"):
                found[name] = (yaml.safe_load(options) or {}).get("options", {})
    return found


def public_names() -> set[str]:
    """Return the path of every public function and class, the shortest where one has several."""
    found = {getattr(spiritlevel, name): f"spiritlevel.{name}" for name in spiritlevel._PUBLIC}
    for module in spiritlevel._MODULES:
        held = getattr(spiritlevel, module)
        for name in getattr(held, "__all__", ()):
            value = getattr(held, name)
            if inspect.isroutine(value) or (inspect.isclass(value) and value.__module__.startswith("spiritlevel.")):
                found.setdefault(value, f"spiritlevel.{module}.{name}")
    return {*found.values(), "spiritlevel.compat.pyhessian.hessian"}


def of_path(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


# --- what a docstring says -----------------------------------------------------------------------------------------


def sections(docstring: str) -> dict[str, list[str]]:
    """Return the lines of a NumPy-style docstring by section; those above all sections are called Summary."""
    found: dict[str, list[str]] = {"Summary": []}
    lines = found["Summary"]
    for line in inspect.cleandoc(docstring).splitlines():
        if re.fullmatch(r"-{3,}", line):
            section = lines.pop()
            lines = found[section] = []
        else:
            lines.append(line)
    return found


def named(lines: list[str]) -> list[str]:
    """Return the names that a section describes: its lines that are not indented, without their types."""
    heads = [line.partition(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return [name for head in heads for name in head.split(", ")]


def undescribed(lines: list[str]) -> list[str]:
    """Return the names that no sentence follows."""
    return [line for line, after in zip(lines, [*lines[1:], ""]) if line[:1].strip() and not after.startswith("    ")]


def raised(function: Any) -> set[str]:
    """Return the package's errors that a function raises itself."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    return {name for name in names if name in ("UsageError", "SpiritlevelError", "MeasuringInterrupted")}


def of_function(name: str, function: Any, *, example: bool) -> Iterator[str]:
    """Yield what is wrong with the docstring of a function or method."""
    found = sections(inspect.getdoc(function) or "")  # that of the method it overrides, where it has none
    signature = inspect.signature(function)
    taken = [str(p).partition(":")[0].partition("=")[0] for p in signature.parameters.values()]
    taken = [each for each in taken if each not in ("self", "cls")]
    if named(found.get("Parameters", [])) != taken:
        yield f"{name} takes {taken} and describes {named(found.get('Parameters', []))}"
    if ("Returns" in found) != (signature.return_annotation not in ("None", None)):
        yield f"{name} returns {signature.return_annotation}, described: {'Returns' in found}"
    if missing := raised(function) - set(named(found.get("Raises", []))):
        yield f"{name} raises {missing}, which it does not say"
    yield from of_any(name, found, example=example)


def of_class(name: str, own: type, options: dict[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the docstrings of a class and of what its page shows of it."""
    found = sections(own.__doc__ or "")
    described = named(found.get("Parameters", [])) + named(found.get("Attributes", []))
    makers = [vars(base)[key] for base in own.__mro__ for key in ("__init__", "__post_init__") if key in vars(base)]
    written = [maker for maker in makers if str(getattr(maker, "__module__", "")).startswith("spiritlevel.")]
    if dataclasses.is_dataclass(own):
        taken = [field.name for field in dataclasses.fields(own) if field.init]
        written = [maker for maker in written if maker.__name__ == "__post_init__"]
    else:
        taken = list(inspect.signature(own).parameters) if written else described
    if described != taken:
        yield f"{name} takes {taken} and describes {described}"
    if missing := {each for maker in written for each in raised(maker)} - set(named(found.get("Raises", []))):
        yield f"{name} raises {missing}, which it does not say"
    yield from of_any(name, found, example=True)
    shown = options.get("members", True)
    bases = [base for base in own.__mro__ if base.__module__.startswith("spiritlevel.")]
    for base in bases if options.get("inherited_members") else [own]:
        for key, member in vars(base).items():
            if key.startswith("_") or not (shown is True or (shown and key in shown)):
                continue
            inner = (
                getattr(member, "fget", None) or getattr(member, "func", None) or getattr(member, "__func__", member)
            )
            if (inspect.isfunction(inner) and inner is member) or isinstance(member, classmethod):
                yield from of_function(f"{name}.{key}", inner, example=False)
            elif inspect.isfunction(inner) and not inspect.getdoc(inner):
                yield f"{name}.{key} has no docstring"


def of_any(name: str, found: dict[str, list[str]], *, example: bool) -> Iterator[str]:
    first = found["Summary"][0] if found["Summary"] else ""
    if not first.endswith((".", "…")):
        yield f"{name} does not begin with a sentence of one line: {first!r}"
    for section in ("Parameters", "Attributes", "Returns", "Raises"):
        if section in found and (unsaid := undescribed(found[section])):
            yield f"{name} says nothing of {unsaid}"
    if example and not any(line.startswith(">>> ") for line in found.get("Examples", [])):
        yield f"{name} has no example"


# --- tests ---------------------------------------------------------------------------------------------------------


def test_every_public_name_stands_on_a_page() -> None:
    assert set(directives()) == public_names()
    assert len(public_names()) > 90


@pytest.mark.parametrize("path", sorted(public_names()))
def test_a_docstring_says_what_is_taken_returned_and_raised(path: str) -> None:
    own = of_path(path)
    told = of_class(path, own, directives()[path]) if inspect.isclass(own) else of_function(path, own, example=True)
    assert list(told) == []


def test_parts_of_results_say_what_each_field_is() -> None:
    parts = [of_path(name) for name, _ in _DIRECTIVE.findall((PAGES / UNNAMED).read_text(encoding="utf-8") + "\n")]
    for part in parts:
        found = sections(part.__doc__)
        assert named(found["Attributes"]) == [field.name for field in dataclasses.fields(part) if field.init], part
        assert undescribed(found["Attributes"]) == [], part
    assert len(parts) > 15


def test_what_a_docstring_leaves_out_is_found() -> None:
    def half(first: int, *, second: int = 0) -> int:
        """Return the half.

        Parameters
        ----------
        second : int
            A number.
        """
        if first < second:
            raise spiritlevel.UsageError("first is below second; give a larger one")
        return first // 2

    assert [each.partition(" ")[0] for each in of_function("half", half, example=True)] == ["half"] * 3
    UsageError = spiritlevel.UsageError

    def refuses(count: int) -> None:
        """Refuse it"""
        raise UsageError(f"{count} is not taken; give none")

    said = list(of_function("refuses", refuses, example=False))
    assert len(said) == 3
    assert "raises {'UsageError'}" in said[1]


@pytest.mark.slow
@pytest.mark.parametrize("found", everywhere(), ids=str)
def test_an_example_prints_what_is_shown(found: Documented) -> None:
    assert wrong(found) == []
