"""Files that appear whole or not at all: written beside their place, then renamed into it, and only where they may."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import IO, Any

from spiritlevel.values.errors import SpiritlevelError, UsageError

PathLike = str | os.PathLike[str]
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


_WRITES: ContextVar[bool] = ContextVar("writes", default=True)


@contextlib.contextmanager
def writing_nothing() -> Iterator[None]:
    """Let no file appear meanwhile: another process writes the same ones."""
    token = _WRITES.set(False)
    try:
        yield
    finally:
        _WRITES.reset(token)


@contextlib.contextmanager
def replacing(path: PathLike, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a file beside ``path`` and rename it there once everything was written; a failure leaves nothing behind.

    A link stays and what it points to is replaced; a file that was there before lends its permissions.
    """
    target = Path(path)
    place = _followed(target)
    kind = _other_kind(place)
    if kind:
        raise SpiritlevelError(
            f"{target} could not be written: it is {kind}, and only a regular file may be replaced; name one"
        )
    text = {} if "b" in mode else {"encoding": "utf-8", "errors": "backslashreplace", "newline": "\n"}
    if not _WRITES.get():
        with tempfile.TemporaryFile(mode, **text) as nowhere:  # type: ignore[call-overload]  # as below
            yield nowhere
        return
    # The name is fixed before the file exists: an interruption at any moment then finds what to remove.
    beside = place.parent / f".spiritlevel-{os.getpid()}-{secrets.token_hex(6)}.part"
    try:
        with open(beside, mode.replace("w", "x"), **text) as stream:  # type: ignore[call-overload]  # by a mode told at run time
            yield stream
        _lend_permissions(place, beside)
        os.replace(beside, place)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        if isinstance(error, OSError):
            raise SpiritlevelError(f"{target} could not be written: {error.strerror or error}") from error
        raise


def check_outputs(outputs: Iterable[tuple[str, PathLike]], inputs: Iterable[tuple[str, PathLike]] = ()) -> None:
    """Refuse outputs that cannot be written, that are one file, or that would replace what is read.

    Each output comes with its option and each input with what it is; they are compared as files, so that links and
    other spellings of a name are seen through.
    """
    wanted = list(outputs)
    if not wanted:
        return
    taken: dict[object, tuple[str, Path]] = {}
    for what, path in inputs:
        for key in _keys(Path(path)):
            taken.setdefault(key, (what, Path(path)))
    written: dict[object, str] = {}
    for option, path in wanted:
        check_writable(path, option)
        keys = _keys(Path(path))
        for key in keys & taken.keys():
            what, own = taken[key]
            raise UsageError(f"{option} {path} is {what} {own}, which would be lost; name another file")
        for key in keys & written.keys():
            raise UsageError(f"{written[key]} and {option} {path} are one file; give each a file of its own")
        written |= dict.fromkeys(keys, f"{option} {path}")


def check_writable(path: PathLike, option: str) -> None:
    """Refuse an output that could not be written, before any work is done for it."""
    target = Path(path)
    place = _followed(target)
    kind = _other_kind(place)
    if kind == "a folder":
        raise UsageError(f"{option} {target} is a folder; name a file in it")
    if kind:
        raise UsageError(f"{option} {target} is {kind}, and only a regular file may be replaced; name one")
    if not place.parent.is_dir():
        folder = place.parent if target.is_symlink() else target.parent
        raise UsageError(f"{option} {target} cannot be written because there is no folder {folder}; make it first")
    if place.exists() and not os.access(place, os.W_OK):
        raise UsageError(f"{option} {target} is protected against writing; name another file")
    probe = place.parent / f".spiritlevel-{os.getpid()}-{secrets.token_hex(6)}.part"
    try:
        probe.touch(exist_ok=False)
    except OSError as error:
        raise UsageError(
            f"{option} {target} cannot be written ({error.strerror or error}); choose a folder you may write to"
        ) from error
    finally:
        probe.unlink(missing_ok=True)


def _followed(target: Path) -> Path:
    """Return where a path leads, through all links."""
    try:
        return Path(os.path.realpath(target))
    except (OSError, ValueError) as error:
        raise UsageError(f"{target!s:.200} is not a possible name of a file ({error}); name another one") from error


def _other_kind(place: Path) -> str:
    """Return what stands at a place if it is no regular file, or nothing."""
    try:
        mode = os.stat(place).st_mode
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise UsageError(f"{place!s:.200} cannot be looked at ({error.strerror}); name another file") from error
    if stat.S_ISREG(mode):
        return ""
    return next((words for test, words in _KINDS if test(mode)), "no regular file")


def _keys(path: Path) -> set[object]:
    """Return by what a file is known: the place its name leads to and, where it exists, the file itself."""
    place = os.path.realpath(path)
    try:
        found = os.stat(place)
    except (OSError, ValueError):
        return {place}
    return {place, (found.st_dev, found.st_ino)}


def _lend_permissions(place: Path, beside: Path) -> None:
    try:
        before = os.stat(place)
    except FileNotFoundError:
        return  # it was made with those of any new file
    with contextlib.suppress(OSError, AttributeError):  # only root may give a file to someone else
        os.chown(beside, before.st_uid, before.st_gid)
    os.chmod(beside, stat.S_IMODE(before.st_mode))
