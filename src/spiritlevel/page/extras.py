"""What pages need beyond the package itself, loaded where a page or a figure is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from spiritlevel.values.errors import SpiritlevelError

_PACKAGES = {
    "altair": "altair",
    "jinja2": "jinja2",
    "markupsafe": "markupsafe",
    "vl_convert": "vl-convert-python",
    "latex2mathml.converter": "latex2mathml",
}


def need(module: str) -> Any:
    """Return a module of the ``page`` extra, or say in one sentence how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise SpiritlevelError(
            f"pages and figures need {_PACKAGES[module]}, which is not installed; run pip install 'spiritlevel[page]'"
        ) from error


def check_extras() -> None:
    """Refuse before any work is done where a package of the ``page`` extra is missing."""
    for module in _PACKAGES:
        need(module)
