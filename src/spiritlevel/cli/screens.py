"""The two streams of a terminal: tables go to stdout, progress and notes to stderr, both without anything that acts."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any, TextIO

from spiritlevel.cli.standard_output import hush, writing
from spiritlevel.values.cleaning import for_terminal, lines_for_terminal

if TYPE_CHECKING:
    from rich.console import Console

PIPE_WIDTH = 120  # of tables that go to a file or another program


def console(stream: TextIO | None = None, pipe_width: int = PIPE_WIDTH) -> Console:
    """Return a console on stdout (or the given stream) that keeps tables whole where it is no terminal."""
    from rich.console import Console, ConsoleRenderable, RenderHook

    from spiritlevel.values.cleaning import Cleaned

    class Door(RenderHook):
        def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
            return [Cleaned(each) for each in renderables]

    class Screen(Console):
        def print(self, *objects: Any, **settings: Any) -> None:
            with writing():
                super().print(*objects, **settings)

        def on_broken_pipe(self) -> None:  # rich would end the program
            self.quiet = True
            hush()

    target = stream or sys.stdout
    width = None if target.isatty() else pipe_width
    screen = Screen(file=target, width=width, highlight=False, soft_wrap=False, markup=False, emoji=False)
    screen.push_render_hook(Door())
    return screen


def show_lines(text: object) -> None:
    """Print lines of text to stdout; a reader that has gone, perhaps ``head``, has seen enough."""
    with writing():
        print(lines_for_terminal(str(text)))


def note(text: str, quiet: bool = False) -> None:
    """Say something beside the result, on stderr; nobody listening is no reason to stop."""
    if not quiet:
        with contextlib.suppress(OSError, ValueError):
            print(for_terminal(text), file=sys.stderr, flush=True)
