"""Packages that are not required, imported where a name on the command line asks for them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.extras import need_of_extra

# What stands before the colon of a MODEL, the package that builds it, and the extra that has it.
BUILDERS = {"timm": "timm", "hf": "transformers"}
_EXTRAS = {"timm": "timm", "transformers": "hf"}


def import_extra(package: str, wanted_by: str) -> Any:
    """Return a package, or say who needs it and how it is installed."""
    return need_of_extra(package, wanted_by, _EXTRAS[package], UsageError)


def build_timm(text: str, arguments: dict[str, Any]) -> Any:
    """Return the network that timm builds for a name, without fetching weights unless asked to."""
    package = import_extra("timm", text)
    with in_one_sentence("timm", f"could not build {text}"):
        return package.create_model(text.partition(":")[2], **{"pretrained": False, **arguments})


@contextlib.contextmanager
def in_one_sentence(package: str, what: str) -> Iterator[None]:
    """Turn whatever a package raises into one sentence."""
    try:
        yield
    except SpiritlevelError:
        raise
    except Exception as error:
        words = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
        raise SpiritlevelError(f"{package} {what}: {type(error).__name__}: {words}") from error


@contextlib.contextmanager
def quiet_transformers(package: Any) -> Iterator[None]:
    """Keep transformers from drawing progress bars and reporting what is said in a note or an error here."""
    logs = package.utils.logging
    level, bars = logs.get_verbosity(), logs.is_progress_bar_enabled()
    logs.set_verbosity(logs.CRITICAL)
    logs.disable_progress_bar()
    try:
        yield
    finally:
        logs.set_verbosity(level)
        if bars:
            logs.enable_progress_bar()
