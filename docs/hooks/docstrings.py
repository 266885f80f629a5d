"""Docstrings on the reference's pages as ``help()`` shows them: with what another one describes."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import griffe

COMPLETED_BY = "documented_like"  # the decorator of the package that does it


class WholeDocstrings(griffe.Extension):
    """Takes from the imported package what its text alone does not say."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Complete a function or method; one without a docstring has that of the method it overrides."""
        inherits = isinstance(func.parent, griffe.Class) and func.docstring is None and not func.name.startswith("_")
        if inherits or _is_completed(func):
            _complete(func)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Complete a class."""
        if _is_completed(cls):
            _complete(cls)


def _is_completed(own: griffe.Class | griffe.Function) -> bool:
    return any(str(decorator.value).startswith(f"{COMPLETED_BY}(") for decorator in own.decorators)


def _complete(own: griffe.Class | griffe.Function) -> None:
    found: Any = importlib.import_module(own.module.path)
    for name in own.path.removeprefix(f"{own.module.path}.").split("."):
        found = getattr(found, name)
    if text := inspect.getdoc(found):
        own.docstring = griffe.Docstring(text, parent=own, **_parsing(own))


def _parsing(own: griffe.Class | griffe.Function) -> dict[str, Any]:
    """Return how the docstrings around are read."""
    around = own.docstring or (own.parent.docstring if own.parent else None)
    return {} if around is None else {"parser": around.parser, "parser_options": around.parser_options}
