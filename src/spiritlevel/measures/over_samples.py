"""Statistics of a number every sample has, weighted as in the mean loss, each with its standard error over samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from spiritlevel.values.statistics import quantile, standardised_third_moment

QUANTILES = {"p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75}
REACH = 1.96  # standard deviations either side that enclose 95%


@dataclass(frozen=True)
class SampleStatistic:
    """A value and its standard error over samples, None where the samples are too few to tell."""

    value: float
    stderr: float | None


class Distribution:
    """The weighted distribution of a number over the samples that count: weight above 0 and a value that exists."""

    def __init__(self, values: Tensor, weights: Tensor) -> None:
        counted = ((weights > 0) & ~values.isnan()).numpy()
        raw, shares = values.double().numpy()[counted], weights.double().numpy()[counted]
        order = np.argsort(raw, kind="stable")
        self.values = raw[order]
        self.shares = shares[order] / shares.sum() if len(shares) else shares

    @property
    def count(self) -> int:
        """The number of samples that count."""
        return len(self.values)

    def mean(self) -> SampleStatistic:
        """Σ w t / Σ w, with the standard error of a weighted mean."""
        value = float(self.shares @ self.values)
        return SampleStatistic(value, self._error(self.values - value))

    def quantile(self, level: float) -> SampleStatistic:
        """The value below which a share ``level`` lies, each sample standing at the middle of its own share.

        Its error is that of the order statistics: the quantiles at level ± 1.96 √(level(1 - level)/n) enclose it with
        probability 95%, whatever the distribution; None where one of those levels leaves the data.
        """
        effective = 1 / float(self.shares @ self.shares)
        reach = REACH * math.sqrt(level * (1 - level) / effective)
        error = None
        if self.count > 1 and level - reach > 0 and level + reach < 1:
            error = (self._at(level + reach) - self._at(level - reach)) / (2 * REACH)
        return SampleStatistic(self._at(level), error)

    def third_central_moment(self) -> SampleStatistic:
        """m₃ = mean of (t - mean)³, with the standard error of the jackknife."""
        _, m3, _, without = self._moments()
        return SampleStatistic(float(m3), self._jackknife(float(m3), without))

    def skewness(self) -> SampleStatistic | None:
        """m₃ / m₂^{3/2}, the population form, with the jackknife's standard error; None where all values are equal."""
        if self.count < 2 or self.values[0] == self.values[-1]:
            return None
        m2, m3, m2_without, m3_without = self._moments()
        skew = float(standardised_third_moment(m2, m3))
        return SampleStatistic(skew, self._jackknife(skew, standardised_third_moment(m2_without, m3_without)))

    def statistic(self, name: str) -> SampleStatistic:
        """The mean or a quantile, by name."""
        return self.mean() if name == "mean" else self.quantile(QUANTILES[name])

    def details(self) -> dict[str, Any]:
        """The distribution in a few numbers."""
        skew = self.skewness()
        return {
            "mean": self.mean().value,
            **{name: self._at(level) for name, level in QUANTILES.items()},
            "min": float(self.values[0]),
            "max": float(self.values[-1]),
            "skewness": None if skew is None else skew.value,
        }

    def _at(self, level: float) -> float:
        return float(quantile(level)(self.values[None], self.shares[None])[0])

    def _moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return m₂ and m₃ about the mean, and both again with each sample left out in turn."""
        centred = self.values - self.mean().value
        terms = [self.shares * centred**power for power in (1, 2, 3)]
        rest = (1 - self.shares).clip(1e-300)
        first, second, third = ((term.sum() - term) / rest for term in terms)
        without = second - first**2, third - 3 * first * second + 2 * first**3
        return terms[1].sum(), terms[2].sum(), *without

    def _jackknife(self, value: float, without: np.ndarray) -> float | None:
        """Return the standard error from the values with each sample left out, None where one of them is undefined.

        For third moments the linear error of the influence function is a quarter too small at a few hundred samples of
        a skewed law; this one agrees with their spread.
        """
        if self.count < 4 or not np.isfinite(without).all():
            return None
        return self._error((1 - self.shares) * (value - without) / self.shares)

    def _error(self, influence: np.ndarray) -> float | None:
        return weighted_stderr(self.shares, influence)


def weighted_stderr(shares: np.ndarray, influence: np.ndarray) -> float | None:
    """Return the standard error over samples that count, by their shares of the weight and influences on a statistic.

    The influence of a sample on the weighted mean is its distance to it.  None where fewer than two samples count.
    """
    count = len(shares)
    if count < 2:
        return None
    return math.sqrt(float(((shares * influence) ** 2).sum()) * count / (count - 1))
