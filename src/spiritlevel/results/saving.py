"""Saved results: strict JSON of one kind and version, read back or refused in one sentence."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spiritlevel.results.checking import what_is_wrong
from spiritlevel.results.records import SCHEMA_VERSION, strict_loads
from spiritlevel.values.errors import SpiritlevelError, UsageError


def read_record(path: str | os.PathLike[str], kind: str) -> Any:
    """Return the content of a file that should hold a report, a comparison, an audit or a spectrum."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"there is no file {path}; give {_a(kind)} saved with --json or save()") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpiritlevelError(f"{path} cannot be read as {_a(kind)} ({' '.join(str(error).split())})") from error
    return strict_loads(text, str(path))


@contextlib.contextmanager
def reading(record: Any, kind: str, source: str) -> Iterator[None]:
    """Refuse a record of another kind or version, and one that turns out to be damaged while it is read."""
    if not isinstance(record, dict) or record.get("kind") != kind:
        raise SpiritlevelError(f"{source} is not {_a(kind)}; give a file in which spiritlevel saved one")
    if record.get("schema_version") != SCHEMA_VERSION:
        raise SpiritlevelError(
            f"{source} has schema version {record.get('schema_version')!r}, and this spiritlevel reads version "
            f"{SCHEMA_VERSION}; use the version that wrote it"
        )
    found = what_is_wrong(record, kind)
    if found:
        raise SpiritlevelError(f"{source} is a damaged {kind} ({found}); save it again")
    with undamaged(kind, source):
        yield


@contextlib.contextmanager
def undamaged(kind: str, source: str) -> Iterator[None]:
    """Turn what a missing or malformed part raises into one sentence."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RuntimeError) as error:
        if isinstance(error, UsageError):
            raise
        words = " ".join(f"{type(error).__name__}: {error}".split())
        raise SpiritlevelError(f"{source} is a damaged {kind} ({words}); save it again") from error


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
