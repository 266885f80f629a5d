"""Measures as the command line names them: of the package by name, of the user's own by ``path/file.py:name``."""

from __future__ import annotations

from collections.abc import Iterable

from spiritlevel.cli.names import find_object, is_place
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import MEASURES
from spiritlevel.values.errors import UsageError


def named_measures(texts: Iterable[str]) -> list[str | Measure]:
    """Return what ``--measures`` says, with the declared measures of the user's own in place of where they stand."""
    return [_declared(text) if is_place(text) else text for text in texts]


def asked_again(names: Iterable[str], texts: Iterable[str]) -> list[str]:
    """Return how a report's measures are asked for again: one that ``--measures`` found in a file, by its place."""
    places = {_declared(text).name: text for text in texts if is_place(text)}
    return [places.get(name, name) for name in names]


def _declared(text: str) -> Measure:
    found = find_object(text)
    if not isinstance(found, Measure):
        raise UsageError(
            f"--measures {text} is of type {type(found).__name__}; name a function declared with "
            "@spiritlevel.declare(...)"
        )
    if found.name in MEASURES:
        raise UsageError(
            f"--measures {text} is called {found.name}, as a measure of the package is; give it another name, by "
            "declare(name=...) or by renaming the function"
        )
    return found
