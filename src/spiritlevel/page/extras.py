"""What pages need beyond the package itself, loaded where a page or a figure is asked for."""

from __future__ import annotations

from typing import Any

from spiritlevel.values.extras import need_of_extra

_MODULES = ("altair", "jinja2", "markupsafe", "vl_convert", "latex2mathml.converter")


def need(module: str) -> Any:
    """Return a module of the ``page`` extra, or say in one sentence how to get it."""
    return need_of_extra(module, "a page or a figure", "page")


def check_extras() -> None:
    """Refuse before any work is done where a package of the ``page`` extra is missing."""
    for module in _MODULES:
        need(module)
