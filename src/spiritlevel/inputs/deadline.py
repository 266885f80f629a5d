"""When a measurement is to be done, what its sweeps took so far, and which of them would not be done in time."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from spiritlevel.inputs.process.ranks import ranks
from spiritlevel.values.errors import SpiritlevelError, UsageError

Clock = Callable[[], float]


def common_time() -> float:
    """Return the seconds of the clock that all ranks of this run go by."""
    return ranks().time()


# A sweep that was begun is brought to its end where it will be late by no more than this share of all seconds: most of
# its work is done, and would be lost.
LATE = 0.05
# Batches that the data is cut into at least where nobody chose their size: between two of them a sweep can end.
FEWEST_BATCHES = 4


class TimeSpent(SpiritlevelError):
    """What was begun cannot be done within the seconds that were given."""


class AddingUp:
    """Entered while the results of a sweep are added to earlier ones; torn where that did not come to its end.

    An interruption may come at any moment, and of sums of which only some were added to no error is known.
    """

    torn = False

    def __enter__(self) -> None:
        self.torn = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.torn = kind is not None


class Deadline:
    """So many seconds from now on (or from when it ``began``), and what a unit of each kind of work has taken.

    It belongs to one measurement and those made for it, which hand it along.  ``clock`` is any that counts seconds.
    """

    def __init__(self, seconds: float, clock: Clock = common_time, began: float | None = None) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < math.inf:
            raise UsageError(f"seconds must be a positive number, not {seconds!r}")
        self.seconds, self.clock = seconds, clock
        self.interrupted = False
        self.refusals: Counter[str] = Counter()  # of work that there was no time for, by kind
        self._end = clock() + seconds
        if began is not None:
            self._end = ranks().meet("the deadline", self._end - (time.monotonic() - began))[0]
        self._rates: dict[str, float] = {}
        self._expected: dict[str, float] = {}

    @property
    def left(self) -> float:
        """The seconds that are left, none after the end."""
        return 0.0 if self.interrupted else max(self._end - self.clock(), 0.0)

    def share(self, share: float) -> Deadline:
        """Return the deadline of a part of the work, which may take this share of what is left."""
        part = Deadline(self.seconds, self.clock)
        part._end = self.clock() + share * self.left
        part.interrupted, part.refusals = self.interrupted, self.refusals
        part._rates, part._expected = self._rates, self._expected
        return part

    def elsewhere(self, share: float = 1.0) -> Deadline:
        """Return the same for another network or other data, whose sweeps take what they take."""
        part = self.share(share)
        part._rates, part._expected = {}, {}
        return part

    def interrupt(self) -> None:
        """Let nothing begin any more."""
        self.interrupted = True

    @property
    def words(self) -> str:
        """What ended the work, as it stands in a reason."""
        return "it was interrupted" if self.interrupted else f"the {self.seconds:g} seconds were spent"

    def took(self, kind: str, seconds: float) -> None:
        """Remember what a unit of some work took."""
        self._rates[kind] = seconds

    def expect(self, kind: str, like: str, units: float) -> None:
        """Take a unit of what was never done for so many units, at least, of what was; nothing where that was not."""
        if like in self._rates:
            self._expected[kind] = units * self._rates[like]

    @property
    def rates(self) -> dict[str, float]:
        """What a unit of each kind of work took."""
        return dict(self._rates)

    def rate(self, kind: str) -> float:
        """Return the seconds that a unit of some work takes as far as that is known, 0 where it is not."""
        return self._rates.get(kind, self._expected.get(kind, 0.0))

    def fitting(self, kind: str) -> float:
        """Return how many units of some work can still be done: any number of what nobody knows the cost of."""
        if self.left <= 0:
            return 0.0
        rate = self.rate(kind)
        return self.left / rate if rate > 0 else math.inf

    def pace(self, kind: str, units: float, total: int) -> Pace:
        """Return the watch over one sweep of so many samples, 0 where that is not known.

        One that could not be finished is refused.
        """
        if self.fitting(kind) < units:
            raise TimeSpent(self.refusal(kind, self.rate(kind) * units))
        return Pace(self, kind, units, total)

    def refusal(self, kind: str, needed: float) -> str:
        """Say why a sweep that needs so many seconds was not made; 0 where nobody knows how many it needs.

        How long it would take is of no interest once nothing is left.
        """
        self.refusals[kind] += 1
        if self.interrupted:
            return f'it was interrupted before the sweep "{kind}" was made'
        if needed <= 0 or self.left <= 0:
            return f'the {self.seconds:g} seconds were spent before the sweep "{kind}"; {_WAY_OUT}'
        return (
            f'the sweep "{kind}" takes about {needed:.2g} s, and of the {self.seconds:g} seconds {self.left:.2g} were '
            f"left; {_WAY_OUT}"
        )


_WAY_OUT = "give more seconds, or fewer samples"


def deadline_of(seconds: float | Deadline | None) -> Deadline | None:
    """Return the deadline that so many seconds from now are, or the one that is given."""
    return seconds if seconds is None or isinstance(seconds, Deadline) else Deadline(seconds)


class Pace:
    """One sweep against the clock: after each batch it is known whether the rest can be done in time."""

    def __init__(self, deadline: Deadline, kind: str, units: float, total: int) -> None:
        self.deadline, self.kind, self.units, self.total = deadline, kind, units, total
        self._started = deadline.clock()
        self._first: tuple[int, float] | None = None  # samples of the first batch, and when it was done

    def after(self, done: int) -> None:
        """Go on or give up after so many samples.

        The first batch may have had checks made on it, so what is left is judged by those that came after it.
        """
        now, deadline = self.deadline.clock(), self.deadline
        left = max(self.total - done, 0)
        if self.total and not left:
            return
        first, behind = self._first or (0, self._started)
        needed = (now - behind) / max(done - first, 1) * left
        judged, self._first = self._first is not None, self._first or (done, now)
        if deadline.left <= 0 or (judged and needed > deadline.left + LATE * deadline.seconds):
            whole = now - self._started + needed
            if self.total:
                deadline.took(self.kind, whole / self.units)
            raise TimeSpent(deadline.refusal(self.kind, whole if self.total else 0.0))

    def finish(self) -> None:
        """Remember what the sweep took."""
        self.deadline.took(self.kind, (self.deadline.clock() - self._started) / self.units)
