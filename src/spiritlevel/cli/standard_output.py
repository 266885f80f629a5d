"""Standard output as the place of one result: alone on it where asked for, and no complaint where nobody reads it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from spiritlevel.values.errors import SpiritlevelError, UsageError


class _Taken:
    """Standard output while it is kept for a result: where the result goes, and how all is put back."""

    def __init__(self) -> None:
        self.result: TextIO | None = None
        self.undo = contextlib.ExitStack()
        self.closed = False  # before the program began


_TAKEN = _Taken()


def open_streams() -> None:
    """Stand in for streams that were closed before the start: a file opened later must not take their place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            stream = open(os.devnull, mode, encoding="utf-8")  # noqa: SIM115 (it lasts as long as the program)
            if stream.fileno() != number:
                os.dup2(stream.fileno(), number)
            setattr(sys, name, stream)
            _TAKEN.closed = _TAKEN.closed or name == "stdout"


def keep_for_result() -> None:
    """Let nothing but ``write_result`` reach standard output from now on.

    What the user's code prints, in Python or straight to file descriptor 1, goes to standard error.  It stays so until
    ``give_back``, because code that runs when the program ends may print as well.
    """
    if _TAKEN.closed:
        raise UsageError("--json - was given, but standard output is closed; name a file")
    if _TAKEN.result is not None:
        return
    own = sys.stdout
    own.flush()
    _TAKEN.result = own
    if _is_descriptor(own, 1):
        kept = os.dup(1)
        _TAKEN.undo.callback(os.close, kept)
        _TAKEN.undo.callback(os.dup2, kept, 1)
        _TAKEN.result = os.fdopen(os.dup(kept), "w", encoding="utf-8", errors="backslashreplace")
        _TAKEN.undo.callback(_TAKEN.result.close)
        os.dup2(2, 1)
    _TAKEN.undo.callback(setattr, sys, "stdout", own)
    sys.stdout = sys.stderr


def write_result(text: str) -> None:
    """Write a result to standard output."""
    stream = _TAKEN.result or sys.stdout
    with writing(stream):
        stream.write(text)
        stream.flush()


@contextlib.contextmanager
def writing(stream: TextIO | None = None) -> Iterator[None]:
    """Write within: a reader that has gone, perhaps ``head``, has seen enough; a full disk is told in a sentence."""
    try:
        yield
    except BrokenPipeError:
        hush(stream)
    except OSError as error:
        hush(stream)
        raise SpiritlevelError(f"standard output could not be written: {error.strerror or error}") from error


def give_back() -> None:
    """Give standard output back to a program that goes on after the command."""
    _TAKEN.result = None
    _TAKEN.undo.close()


def hush(stream: TextIO | None = None) -> None:
    """Let what is still written to a stream vanish, so that nothing complains when the program ends."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (stream or sys.stdout).fileno())
        os.close(nowhere)


def reader_gone() -> bool:
    """Whether whoever read our standard output has closed it; a broken pipe may also be one of the user's own."""
    import select

    if not hasattr(select, "poll"):
        return True
    asked = select.poll()
    asked.register(1, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP | select.POLLNVAL) for _, event in asked.poll(0))


def _is_descriptor(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (OSError, ValueError, AttributeError):
        return False
