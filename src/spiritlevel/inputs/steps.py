"""Telling a waiting person how far a question is that takes several measurements, and how long the rest will take."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

from spiritlevel.inputs.progress import LINE_SECONDS, QUIET_SECONDS
from spiritlevel.values.cleaning import for_terminal

Teller = Callable[["Steps"], None]


class Steps:
    """The steps of one question, each with about how much of the work it is; the total may be corrected on the way."""

    def __init__(self, total: float = 0.0, teller: Teller | None = None, clock: Callable[[], float] = time.monotonic):
        self.total, self.done = total, 0.0
        self.what, self.sweep = "", ""
        self._weight = 0.0
        self._teller, self._clock, self._began = teller, clock, clock()

    def begin(self, what: str, weight: float) -> None:
        """End the step before, and begin one of this share of the work."""
        self.done += self._weight
        self.what, self.sweep, self._weight = what, "", weight
        self.total = max(self.total, self.done + weight)
        self._tell()

    def hook(self, what: str, done: int, total: int) -> None:
        """Take in the progress of a sweep, as problems report it."""
        self.sweep = f"{what} {done:,}/{total or done:,}"
        self._tell()

    @property
    def elapsed(self) -> float:
        """Seconds since the question was asked."""
        return self._clock() - self._began

    @property
    def left(self) -> float | None:
        """About how many seconds the rest will take, by what was done; None before anything was."""
        return self.elapsed / self.done * max(self.total - self.done, 0.0) if self.done > 0 else None

    @property
    def words(self) -> str:
        """What is under way, in words."""
        return for_terminal(" · ".join(filter(None, (self.what, self.sweep))))

    @property
    def words_of_time(self) -> str:
        """How much time is left, in words."""
        left = self.left
        if left is None:
            return ""
        return f"about {left:.0f} s left" if left < 120 else f"about {left / 60:.0f} min left"

    def _tell(self) -> None:
        if self._teller is not None:
            self._teller(self)


@contextlib.contextmanager
def told_steps(shown: bool, total: float) -> Iterator[Steps]:
    """Show steps on standard error: as a bar in a terminal, else by a line every few seconds."""
    if not shown:
        yield Steps(total)
        return
    if not sys.stderr.isatty():
        yield Steps(total, _by_lines())
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(file=sys.stderr),
        transient=True,
    )
    task = bar.add_task("", total=1.0, left="")
    running = False

    def tell(steps: Steps) -> None:
        nonlocal running
        if not running:
            if steps.elapsed < QUIET_SECONDS:
                return
            bar.start()
            running = True
        bar.update(task, description=steps.words, completed=steps.done, total=steps.total, left=steps.words_of_time)

    try:
        yield Steps(total, tell)
    finally:
        if running:
            bar.stop()


def _by_lines() -> Teller:
    last = 0.0

    def tell(steps: Steps) -> None:
        nonlocal last
        if steps.elapsed - last >= LINE_SECONDS:
            last = steps.elapsed
            with contextlib.suppress(OSError, ValueError):  # nobody listening is no reason to stop
                print(", ".join(filter(None, (steps.words, steps.words_of_time))), file=sys.stderr, flush=True)

    return tell
