"""A parameter that several functions share is described by one of them, and the others' docstrings take its words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

Documented = TypeVar("Documented", bound=Callable[..., Any])
_HEADING = re.compile(r"^(\w+)\n-{3,}$", re.MULTILINE)
_ENTRY = re.compile(r"^(\S.*?)(?: : .*)?(?:\n+ .*)+", re.MULTILINE)
_STARS = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}


def documented_like(*others: Callable[..., Any]) -> Callable[[Documented], Documented]:
    """Describe what a function or class takes and leaves undescribed as the first of ``others`` that describes it."""

    def complete(own: Documented) -> Documented:
        if own.__doc__:  # none under python -OO
            own.__doc__ = completed(own, others)
        return own

    return complete


def completed(own: Callable[..., Any], others: tuple[Callable[..., Any], ...]) -> str:
    """Return a docstring with every parameter that it or another one describes, in the order of the signature."""
    above, mine, below = _parted(own)
    described: dict[str, str] = {}
    for one in reversed(others):
        described.update(_entries(_parted(one)[1]))
    described.update(_entries(mine))
    taken = [_STARS.get(each.kind.name, "") + each.name for each in inspect.signature(own).parameters.values()]
    entries = dict.fromkeys(described[name] for name in taken if name in described)
    return "\n".join([above.rstrip(), "", "Parameters", "----------", *entries, "", below]).rstrip()


def _parted(own: Callable[..., Any]) -> tuple[str, str, str]:
    """Return what stands above a docstring's parameters, the parameters, and what stands below."""
    text = inspect.cleandoc(own.__doc__ or "")
    headings = list(_HEADING.finditer(text))
    ends = [*(found.start() for found in headings[1:]), len(text)]
    for found, end in zip(headings, ends):
        if found[1] == "Parameters":
            return text[: found.start()], text[found.end() : end].strip("\n"), text[end:]
    first = headings[0].start() if headings else len(text)
    return text[:first], "", text[first:]


def _entries(parameters: str) -> dict[str, str]:
    return {name: found[0] for found in _ENTRY.finditer(parameters) for name in found[1].split(", ")}
