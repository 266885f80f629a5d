"""The two streams of a terminal: tables go to stdout, progress and notes to stderr."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120  # of tables that go to a file or another program


def console(stream: TextIO | None = None) -> Console:
    """Return a console on stdout (or the given stream) that keeps tables whole where it is no terminal."""
    from rich.console import Console

    target = stream or sys.stdout
    width = None if target.isatty() else PIPE_WIDTH
    return Console(file=target, width=width, highlight=False, soft_wrap=False)


def note(text: str, quiet: bool = False) -> None:
    """Say something beside the result, on stderr."""
    if not quiet:
        print(text, file=sys.stderr, flush=True)
