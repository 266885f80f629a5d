"""Telling a waiting person what is known, which sweep is under way and how much of it, or of the time, is left."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.cleaning import for_terminal

QUIET_SECONDS = 1.0  # nothing is shown for work that ends within this time
LINE_SECONDS = 10.0  # between two lines where there is no terminal to keep one up to date


@contextlib.contextmanager
def show_progress(problem: OpenProblem, shown: bool) -> Iterator[None]:
    """Show a line on standard error while sweeps run, and take it away when they are done.

    Where that is no terminal, and there is a deadline, what is known is told every few seconds.
    """
    if not shown or problem.progress is not None:
        yield
        return
    if not sys.stderr.isatty():
        with _told_by_lines(problem):
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
        TimeRemainingColumn() if problem.deadline is None else TextColumn("{task.fields[left]}"),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bar.add_task("", total=1, left="")
    running = False

    def hook(what: str, done: int, total: int) -> None:
        nonlocal running
        if not running:
            if time.monotonic() - started < QUIET_SECONDS:
                return
            bar.start()
            running = True
        told = " · ".join(filter(None, (problem.latest, what)))
        bar.update(task, description=for_terminal(told), completed=done, total=total or done, left=_left(problem))

    problem.progress = hook
    try:
        yield
    finally:
        problem.progress = None
        if running:
            bar.stop()


def _left(problem: OpenProblem) -> str:
    return "" if problem.deadline is None else f"{problem.deadline.left:.0f} s left"


@contextlib.contextmanager
def _told_by_lines(problem: OpenProblem) -> Iterator[None]:
    """Print a line now and then, with the value that was found last; nothing without a deadline."""
    if problem.deadline is None:
        yield
        return
    clock = problem.deadline.clock
    last = clock()

    def hook(what: str, done: int, total: int) -> None:
        nonlocal last
        if clock() - last >= LINE_SECONDS:
            last = clock()
            told = ", ".join(filter(None, (problem.latest, what, _left(problem))))
            with contextlib.suppress(OSError, ValueError):  # nobody listening is no reason to stop
                print(for_terminal(told), file=sys.stderr, flush=True)

    problem.progress = hook
    try:
        yield
    finally:
        problem.progress = None
