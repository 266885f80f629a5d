"""Independent draws of a random quantity: mean, standard error, Student's interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Samples:
    """Every draw of a random quantity, with the mean, its standard error and a Student-t interval."""

    values: list[float] = field(default_factory=list)

    def add(self, values: Sequence[float]) -> None:
        """Keep more draws."""
        self.values.extend(float(value) for value in values)

    @property
    def count(self) -> int:
        """The number of draws kept."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """The mean of the draws, summed exactly."""
        return math.fsum(self.values) / self.count if self.values else math.nan

    @property
    def stderr(self) -> float:
        """The standard error of the mean; infinite with fewer than two draws, which say nothing of their spread."""
        if self.count < 2:
            return math.inf
        mean = self.mean
        variance = math.fsum((value - mean) ** 2 for value in self.values) / (self.count - 1)
        return math.sqrt(variance / self.count)

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the Student-t interval of the mean: with few draws a normal interval would be too short."""
        half = student_quantile(self.count - 1, confidence) * self.stderr if self.count > 1 else math.inf
        return self.mean - half, self.mean + half


def student_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the factor t with P(|T| <= t) = confidence for Student's distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, 0.5 + confidence / 2)) if degrees > 0 else math.inf
