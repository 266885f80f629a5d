"""Files that appear whole or not at all: written beside their place, then renamed into it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from spiritlevel.errors import SpiritlevelError, UsageError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], mode: str = "w") -> Iterator[IO]:
    """Open a file beside ``path`` and rename it there once everything was written; a failure leaves nothing behind."""
    target = Path(path)
    try:
        descriptor, beside = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise _unwritable(target, error) from error
    try:
        encoding = None if "b" in mode else "utf-8"
        with os.fdopen(descriptor, mode, encoding=encoding, newline=None if "b" in mode else "\n") as stream:
            yield stream
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError):
            raise _unwritable(target, error) from error
        raise


def check_writable(path: str | os.PathLike[str], option: str) -> None:
    """Refuse an output that could not be written, before any work is done for it."""
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"{option} {target} is a folder; name a file in it")
    if not target.parent.is_dir():
        raise UsageError(
            f"{option} {target} cannot be written because there is no folder {target.parent}; make it first"
        )
    try:
        with tempfile.NamedTemporaryFile(prefix=f".{target.name}.", dir=target.parent):
            pass
    except OSError as error:
        raise UsageError(
            f"{option} {target} cannot be written ({error.strerror or error}); choose a folder you may write to"
        ) from error


def _unwritable(target: Path, error: OSError) -> SpiritlevelError:
    return SpiritlevelError(f"{target} could not be written: {error.strerror or error}")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
