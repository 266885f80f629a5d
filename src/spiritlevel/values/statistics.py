"""Numbers that come in pairs: intervals for the difference of two networks on the same samples, rank correlations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from spiritlevel.values.errors import UsageError

Vector = NDArray[np.float64]
# A statistic of values (K, N) with weights (K, N), one number a row.
Statistic = Callable[[Vector, Vector], Vector]

NORMAL_95 = 1.959963984540054
# Draws of the bootstrap: as many as a few seconds allow, never fewer than a 95% interval needs.
MOST_DRAWS, FEWEST_DRAWS = 2000, 400
NUMBERS_AT_ONCE = 4_000_000
NUMBERS_IN_ALL = 40_000_000


def tail_of(pairs: int = 1) -> float:
    """Return the probability beyond each end of an interval, so that the 95% hold for so many pairs at once.

    Bonferroni's bound asks nothing of how the pairs depend on each other, and every pair shares a network with others.
    """
    return 0.025 / max(pairs, 1)


def normal_reach(pairs: int = 1) -> float:
    """Return how many standard errors a 95% interval reaches that holds for so many pairs at once; 1.96 for one."""
    return NORMAL_95 if pairs <= 1 else -NormalDist().inv_cdf(tail_of(pairs))


def mean(values: Vector, weights: Vector) -> Vector:
    """Σ w t / Σ w of every row."""
    found: Vector = (weights * values).sum(-1) / weights.sum(-1)
    return found


@dataclass(frozen=True)
class Quantile:
    """The statistic "the value below which a share ``level`` of the weight lies".

    Each sample stands at the middle of its own share, and values between two samples are interpolated.
    """

    level: float

    def __call__(self, values: Vector, weights: Vector) -> Vector:
        """Return the quantile of every row."""
        order = np.argsort(values, axis=-1, kind="stable")
        ordered = np.take_along_axis(values, order, -1)
        shares = np.take_along_axis(weights, order, -1) / weights.sum(-1, keepdims=True)
        middles = np.cumsum(shares, -1) - shares / 2
        above = np.minimum((middles < self.level).sum(-1), values.shape[-1] - 1)
        below = np.maximum(above - 1, 0)
        (x0, x1), (m0, m1) = (
            [np.take_along_axis(part, index[:, None], -1)[:, 0] for index in (below, above)]
            for part in (ordered, middles)
        )
        return self._between(x0, x1, m0, m1)

    def of_draws(self, values: Vector, weights: Vector, times: NDArray[np.int64]) -> Vector:
        """Return the quantile of draws that hold each sample (N,) so many ``times`` (D, N); samples are sorted once."""
        order = np.argsort(values, kind="stable")
        values, times = values[order], times[:, order]
        share = weights[order] / (times @ weights[order])[:, None]  # of one copy
        reached = np.cumsum(times * share, -1)
        present = times > 0
        # The first sample whose last copy stands at the level or above, and the one before it.
        passed = present & (reached - share / 2 >= self.level)
        rows = np.arange(len(times))
        above = np.where(passed.any(-1), passed.argmax(-1), values.size - 1 - present[:, ::-1].argmax(-1))
        earlier = present & (np.arange(values.size) < above[:, None])
        below = np.where(earlier.any(-1), values.size - 1 - earlier[:, ::-1].argmax(-1), above)
        first = reached[rows, above] - (times[rows, above] - 0.5) * share[rows, above]  # where its first copy stands
        last = reached[rows, below] - share[rows, below] / 2
        within = (first < self.level) | (below == above)  # between copies of one sample
        found = self._between(values[below], values[above], last, first)
        return np.where(within, values[above], found)

    def _between(self, x0: Vector, x1: Vector, m0: Vector, m1: Vector) -> Vector:
        gap = np.where(m1 > m0, m1 - m0, 1.0)
        found: Vector = x0 + np.clip((self.level - m0) / gap, 0, 1) * (x1 - x0)
        return found


def quantile(level: float) -> Statistic:
    """Return the statistic of a level."""
    return Quantile(level)


def skewness(values: Vector, weights: Vector) -> Vector:
    """m₃ / m₂^{3/2} of every row, the population form; NaN where all values are equal."""
    centred = values - mean(values, weights)[:, None]
    return standardised_third_moment(mean(centred**2, weights), mean(centred**3, weights))


def standardised_third_moment(second: Vector, third: Vector) -> Vector:
    """Return the skewness m₃ / m₂^{3/2} of two moments about the mean, NaN where the second is 0."""
    return third / np.where(second > 0, second, np.nan) ** 1.5


def total(values: Vector, weights: Vector) -> Vector:
    """Σ t of every row."""
    summed: Vector = values.sum(-1)
    return summed


STATISTICS: dict[str, Statistic] = {
    "mean": mean,
    "sum": total,
    "median": quantile(0.5),
    "p10": quantile(0.1),
    "skewness": skewness,
}


@dataclass(frozen=True)
class Interval:
    """A value and the ends of its 95% interval.

    Attributes
    ----------
    value : float
        The value.
    low, high : float
        The ends.
    """

    value: float
    low: float
    high: float

    def widened(self, stderr: float = 0.0, residual: float = 0.0) -> Interval:
        """Return the interval with an independent error added in quadrature and a certificate's width on both sides."""
        below = math.hypot(self.value - self.low, NORMAL_95 * stderr) + residual
        above = math.hypot(self.high - self.value, NORMAL_95 * stderr) + residual
        return Interval(self.value, self.value - below, self.value + above)

    def stretched(self, times: float) -> Interval:
        """Return the interval with both ends so many times as far from the value."""
        ends = (self.value + times * (end - self.value) for end in (self.low, self.high))
        return Interval(self.value, *ends)

    def excludes(self, point: float) -> bool:
        """Whether the whole interval lies on one side of a point."""
        return self.low > point or self.high < point

    @classmethod
    def read(cls, entry: dict[str, float | None]) -> Interval:
        """Return the interval of a record; null stands for an end that is not finite."""
        return cls(**{name: math.nan if end is None else end for name, end in entry.items()})


@dataclass(frozen=True)
class PairedIntervals:
    """Two networks on the same samples: b − a, and log(b/a) where both are clearly of one sign."""

    difference: Interval
    log_ratio: Interval | None

    def stretched(self, times: float) -> PairedIntervals:
        """Return the intervals with all ends so many times as far from their values."""
        ratio = None if self.log_ratio is None else self.log_ratio.stretched(times)
        return PairedIntervals(self.difference.stretched(times), ratio)


def point(a: float, b: float) -> PairedIntervals:
    """Return the intervals of two numbers without any error."""
    ratio = _log_ratio(a, b)
    return PairedIntervals(Interval(b - a, b - a, b - a), None if ratio is None else Interval(ratio, ratio, ratio))


def paired_intervals(
    a: ArrayLike, b: ArrayLike, statistic: Statistic = mean, *, weights: ArrayLike | None = None, seed: int = 0
) -> PairedIntervals:
    """Return 95% bootstrap intervals of statistic(b) − statistic(a) and of the log of their ratio.

    Samples are drawn with replacement together for both networks, so what makes a sample hard for both cancels
    (percentile bootstrap).  The ratio is None where either statistic changes its sign among the draws.
    """
    return Resampled([a, b], statistic, weights=weights, seed=seed).pair(0, 1)


class Resampled:
    """The statistic of several networks on the same samples, and on draws of them that all networks share."""

    def __init__(
        self,
        values: Sequence[ArrayLike],
        statistic: Statistic = mean,
        *,
        weights: ArrayLike | None = None,
        seed: int = 0,
    ) -> None:
        rows = [np.asarray(each, dtype=np.float64) for each in values]
        shares = np.ones_like(rows[0]) if weights is None else np.asarray(weights, dtype=np.float64)
        if any(each.shape != shares.shape or each.ndim != 1 for each in rows):
            found = ", ".join(str(each.shape) for each in rows[:3])
            raise UsageError(
                f"paired values must be vectors of one length; found shapes {found} and weights {shares.shape}"
            )
        stack = np.stack(rows)
        counted = (shares > 0) & ~np.isnan(stack).any(0)
        stack, shares = stack[:, counted], shares[counted]
        if len(shares) < 2:
            raise UsageError(f"an interval over samples needs at least 2 of them; found {len(shares)}")
        self.values = [float(statistic(each[None], shares[None])[0]) for each in stack]
        self.draws = _bootstrap(stack, shares, statistic, seed)  # (networks, draws)

    def pair(self, first: int, second: int) -> PairedIntervals:
        """Return the intervals of two of the networks."""
        a, b = self.values[first], self.values[second]
        all_a, all_b = self.draws[first], self.draws[second]
        defined = np.isfinite(all_a) & np.isfinite(all_b)
        all_a, all_b = all_a[defined], all_b[defined]
        if not len(all_a):
            raise UsageError("the statistic is not defined on any draw of these samples")
        ratio = _log_ratio(a, b)
        one_sign = bool((all_a * a > 0).all() and (all_b * b > 0).all())
        return PairedIntervals(
            _percentiles(b - a, all_b - all_a),
            None if ratio is None or not one_sign else _percentiles(ratio, np.log(all_b / all_a)),
        )


def _bootstrap(stack: Vector, weights: Vector, statistic: Statistic, seed: int) -> Vector:
    """Return the statistic of every network (K, N) on draws of the samples with replacement, the same for all."""
    count = len(weights)
    draws = int(np.clip(NUMBERS_IN_ALL // count, FEWEST_DRAWS, MOST_DRAWS))
    at_once = max(1, min(draws, NUMBERS_AT_ONCE // count))
    generator = np.random.default_rng(seed)
    found = []
    for start in range(0, draws, at_once):
        index = generator.integers(count, size=(min(at_once, draws - start), count))
        if statistic is mean or isinstance(statistic, Quantile):  # how often each sample was drawn is all they need
            rows = np.arange(len(index))[:, None] * count
            times = np.bincount((index + rows).ravel(), minlength=index.size).reshape(index.shape)
            if isinstance(statistic, Quantile):
                found.append(np.stack([statistic.of_draws(each, weights, times) for each in stack]))
            else:
                found.append(((times * weights) @ stack.T).T / (times @ weights))
        else:
            weight = weights[index]
            found.append(np.stack([statistic(each[index], weight) for each in stack]))
    return np.concatenate(found, 1)


def grouped_intervals(
    a: float, b: float, groups_a: ArrayLike, groups_b: ArrayLike, *, pairs: int = 1
) -> PairedIntervals | None:
    """Return 95% intervals of b − a and log(b/a) from both measured on the same disjoint groups of samples.

    The intervals are centred at the values on all samples; their width is that of Student's t for the mean over groups.
    They hold for so many ``pairs`` at once.
    None where fewer than three groups have both values.
    """
    first, second = _finite_pairs(groups_a, groups_b, "groups must come in pairs")
    count = len(first)
    if count < 3:
        return None
    times = _student_reach(count, pairs) / math.sqrt(count)

    def around(value: float, groups: Vector) -> Interval:
        reach = times * float(groups.std(ddof=1))
        return Interval(value, value - reach, value + reach)

    ratio = _log_ratio(a, b)
    one_sign = bool((first * a > 0).all() and (second * b > 0).all())
    return PairedIntervals(
        around(b - a, second - first),
        around(ratio, np.log(second / first)) if ratio is not None and one_sign else None,
    )


def _finite_pairs(x: ArrayLike, y: ArrayLike, needed: str) -> tuple[Vector, Vector]:
    """Return two vectors without the places at which one of them is not finite; ``needed`` begins a refusal."""
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if first.shape != second.shape or first.ndim != 1:
        raise UsageError(f"{needed}; found shapes {first.shape} and {second.shape}")
    both = np.isfinite(first) & np.isfinite(second)
    return first[both], second[both]


@lru_cache
def _student_reach(count: int, pairs: int) -> float:
    from scipy import stats

    return float(stats.t.isf(tail_of(pairs), count - 1))


def _percentiles(value: float, draws: Vector) -> Interval:
    low, high = np.quantile(draws, [0.025, 0.975])
    return Interval(value, min(float(low), value), max(float(high), value))


def _log_ratio(a: float, b: float) -> float | None:
    return math.log(b / a) if a * b > 0 and math.isfinite(a * b) else None


@dataclass(frozen=True)
class Correlation:
    """A correlation over networks or samples with its 95% interval; all None where it is not defined, with a reason."""

    method: str
    value: float | None
    low: float | None
    high: float | None
    count: int
    reason: str = ""


# Variance of the Fisher-transformed coefficient: Fisher 1915; Bonett and Wright 2000; Fieller et al. 1957.
_FISHER_VARIANCE: dict[str, Callable[[float, int], float]] = {
    "pearson": lambda r, n: 1 / (n - 3),
    "spearman": lambda r, n: (1 + r * r / 2) / (n - 3),
    "kendall": lambda r, n: 0.437 / (n - 4),
}


def rank_correlation(
    x: ArrayLike, y: ArrayLike, method: Literal["spearman", "kendall", "pearson"] = "spearman"
) -> Correlation:
    """Return a correlation with a 95% interval from its Fisher transform; pairs with a NaN are left out."""
    from scipy import stats

    if method not in _FISHER_VARIANCE:
        raise UsageError(f"method must be one of {', '.join(_FISHER_VARIANCE)}, not {method!r}")
    first, second = _finite_pairs(x, y, "a correlation needs two vectors of one length")
    count = len(first)
    if count < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        reason = f"only {count} pairs" if count < 3 else "one of the two does not vary"
        return Correlation(method, None, None, None, count, reason)
    function = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[method]
    value = float(function(first, second)[0])
    if count < 5:
        return Correlation(method, value, None, None, count, f"{count} pairs are too few for an interval")
    if abs(value) >= 1 - 1e-12:
        # The transform is infinite: of so many pairs in perfect order nothing more can be said than the value.
        return Correlation(method, value, None, None, count, "the order is perfect, so its transform has no interval")
    centre, reach = math.atanh(value), NORMAL_95 * math.sqrt(_FISHER_VARIANCE[method](value, count))
    return Correlation(method, value, math.tanh(centre - reach), math.tanh(centre + reach), count)
