"""How many pieces of long work are done and how long the rest will take: a bar in a terminal, lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spiritlevel.cli.screens import note
from spiritlevel.values.cleaning import for_terminal


@dataclass(frozen=True)
class PieceCounter:
    """What is told of the work, on standard error."""

    say: Callable[[str], None]  # a line of its own
    count: Callable[[str, int, int], None]  # what it is about, how many pieces are done, and of how many


@contextlib.contextmanager
def pieces_counted(unit: str) -> Iterator[PieceCounter]:
    """Tell within how many pieces are done; the first says nothing about the others, since workers start before it."""
    started = time.monotonic()
    if not sys.stderr.isatty():
        from spiritlevel.analyses.planning import duration_in_words

        first: list[float] = []  # when the first piece told of was done, and how many were then

        def line(what: str, done: int, total: int) -> None:
            now = time.monotonic()
            if not first:
                first.extend((now, done))
            left = (now - first[0]) / max(done - first[1], 1) * (total - done)
            about = f", about {duration_in_words(left)} left" if left >= 1 else ""
            note(f"{what}: {done} of {total} {unit}, {now - started:.0f} s{about}")

        yield PieceCounter(note, line)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    shown = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn(f"{{task.completed:.0f}}/{{task.total:.0f}} {unit}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr, markup=False, highlight=False, emoji=False),
        transient=True,
    )
    with shown:
        task = shown.add_task("", total=1)
        yield PieceCounter(
            lambda text: shown.console.print(for_terminal(text)),
            lambda what, done, total: shown.update(task, description=for_terminal(what), completed=done, total=total),
        )
