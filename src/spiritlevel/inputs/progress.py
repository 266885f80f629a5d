"""Telling a waiting person which sweep is under way and how much of it is left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.cleaning import for_terminal

QUIET_SECONDS = 1.0  # nothing is shown for work that ends within this time


@contextlib.contextmanager
def show_progress(problem: OpenProblem, shown: bool) -> Iterator[None]:
    """Show a line on standard error while sweeps run, and take it away when they are done."""
    if not shown or problem.progress is not None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    started = time.monotonic()
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bar.add_task("", total=1)
    running = False

    def hook(what: str, done: int, total: int) -> None:
        nonlocal running
        if not running:
            if time.monotonic() - started < QUIET_SECONDS:
                return
            bar.start()
            running = True
        bar.update(task, description=for_terminal(what), completed=done, total=total or done)

    problem.progress = hook
    try:
        yield
    finally:
        problem.progress = None
        if running:
            bar.stop()
