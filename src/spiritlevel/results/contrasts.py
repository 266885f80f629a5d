"""Two networks by one measure: their difference and ratio with intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spiritlevel.values.statistics import Interval

# How the samples enter an interval: drawn together for both networks, by groups measured for both, by two separate
# errors, or not at all.
OverSamples = Literal["paired", "grouped", "separate", "none"]


@dataclass(frozen=True)
class Contrast:
    """The second network against the first by one measure; ``flatter`` is None where both answers are possible."""

    first: str
    second: str
    difference: Interval
    ratio: Interval | None
    over_samples: OverSamples
    flatter: str | None

    @property
    def decided(self) -> bool:
        """Whether the difference is larger than its error."""
        return self.difference.excludes_zero
