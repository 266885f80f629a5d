"""Two networks by one measure: their ratio or difference with the one interval that decides which is flatter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spiritlevel.results.numerals import MISSING, plain
from spiritlevel.values.statistics import Interval

# How the samples enter an interval: drawn together for both networks, by groups measured for both, by two separate
# errors, or not at all.
OverSamples = Literal["paired", "grouped", "separate", "none"]
Scale = Literal["ratio", "difference"]

_FEWEST_DIGITS, _MOST_DIGITS = 3, 9
_NEGLIGIBLE_WIDTH = 1e-3  # relative: a narrower interval is not quoted beside a value of three digits


@dataclass(frozen=True)
class Contrast:
    """The second network against the first by one measure.

    There is one 95% interval, of second ÷ first where both values are known to be positive and of second − first
    elsewhere.  It is drawn, quoted and saved, and the verdict is read off it: decided where it excludes equality.

    Attributes
    ----------
    first, second : str
        The networks.
    interval : Interval
        The interval.
    scale : str
        "ratio" or "difference".
    over_samples : str
        How the samples enter it: "paired" (drawn together for both), "grouped" (by groups measured for both),
        "separate" (by two separate errors) or "none".
    sharper_when : str
        "larger", "smaller", or nothing where the measure has no direction.
    """

    first: str
    second: str
    interval: Interval
    scale: Scale
    over_samples: OverSamples
    sharper_when: str

    @property
    def ratio(self) -> Interval | None:
        """The interval, where it is one of the ratio."""
        return self.interval if self.scale == "ratio" else None

    @property
    def difference(self) -> Interval | None:
        """The interval, where it is one of the difference, because a value may be zero or negative."""
        return self.interval if self.scale == "difference" else None

    @property
    def equality(self) -> float:
        """What the interval would hold were both values the same: a ratio of 1, a difference of 0."""
        return 1.0 if self.scale == "ratio" else 0.0

    @property
    def decided(self) -> bool:
        """Whether the two can be told apart."""
        return self.interval.excludes(self.equality)

    @property
    def flatter(self) -> str | None:
        """The flatter network; None where that is not decided, or the measure has no direction."""
        if not self.decided or not self.sharper_when:
            return None
        second_sharper = (self.interval.value > self.equality) == (self.sharper_when == "larger")
        return self.first if second_sharper else self.second

    @property
    def factor(self) -> float:
        """How many times the larger value is the smaller one; 0 where there is no ratio."""
        return max(self.interval.value, 1 / self.interval.value) if self.scale == "ratio" else 0.0

    def seen_from(self, label: str) -> Contrast:
        """Return the same contrast as one against ``label``, which may be either of the two."""
        if label == self.first:
            return self
        ends = (self.interval.value, self.interval.high, self.interval.low)
        value, low, high = (1 / end if self.scale == "ratio" else -end for end in ends)
        return Contrast(self.second, self.first, Interval(value, low, high), self.scale, self.over_samples,
                        self.sharper_when)  # fmt: skip

    @property
    def words(self) -> str:
        """The value with its interval, in as many digits as it takes to see whether it excludes equality."""
        sign = "" if self.scale == "ratio" else "Δ "
        value, ends = self.interval.value, (self.interval.low, self.interval.high)
        narrow = max(abs(end - value) for end in ends) <= _NEGLIGIBLE_WIDTH * abs(value)
        for digits in range(_FEWEST_DIGITS, _MOST_DIGITS + 1):
            shown = [plain(each, digits) for each in ((value,) if narrow else (value, *ends))]
            equal = plain(self.equality, digits)
            if not self.decided or equal not in (shown if narrow else shown[1:]):
                break
        return sign + (shown[0] if narrow else f"{shown[0]} ({shown[1]} to {shown[2]})")

    def record(self) -> dict[str, Any]:
        """Return the contrast as plain values, with the verdict that follows from its interval."""
        return {
            "first": self.first,
            "second": self.second,
            "ratio": None if self.ratio is None else vars(self.ratio),
            "difference": None if self.difference is None else vars(self.difference),
            "over_samples": self.over_samples,
            "decided": self.decided,
            "flatter": self.flatter,
        }

    @classmethod
    def read(cls, entry: dict[str, Any], sharper_when: str) -> Contrast:
        """Return the contrast of a record; the verdict is read off the interval again."""
        scale: Scale = "difference" if entry["ratio"] is None else "ratio"
        return cls(
            entry["first"], entry["second"], Interval.read(entry[scale]), scale, entry["over_samples"], sharper_when
        )


def contrast_words(contrast: Contrast | None) -> str:
    """Return the ratio or difference with its interval, or a dash where there is none."""
    return MISSING if contrast is None else contrast.words


def flattest_of(contrasts: Sequence[Contrast]) -> str | None:
    """Return the network that every other one is told apart from as sharper, None where there is none."""
    labels = dict.fromkeys(label for each in contrasts for label in (each.first, each.second))
    wins = dict.fromkeys(labels, 0)
    for each in contrasts:
        if each.flatter is not None:
            wins[each.flatter] += 1
    return next((label for label, count in wins.items() if count == len(labels) - 1 > 0), None)


def largest_of(contrasts: Sequence[Contrast]) -> Contrast | None:
    """Return the contrast of the largest factor: among pairs that are told apart, or where none is, among all."""
    decided = [each for each in contrasts if each.decided]
    return max(decided or contrasts, key=lambda each: each.factor, default=None)
