"""Numbers of an analysis with the interval and the count of independent runs behind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

CONFIDENCE = 0.95
RESAMPLES = 1000
Numbers = Sequence[float] | NDArray[np.float64] | Tensor


@dataclass(frozen=True)
class Quantity:
    """A measured number, the 95% interval around it, how many independent ``unit`` it rests on, and a note."""

    value: float
    low: float
    high: float
    count: int
    unit: str = "seeds"
    note: str = ""

    def __str__(self) -> str:
        if not math.isfinite(self.value):
            return "undefined"
        if self.low == self.high == self.value:
            return number(self.value)
        return f"{number(self.value)} [{number(self.low)}, {number(self.high)}]"


def number(value: float) -> str:
    """Return a number with three or four digits that matter."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞" if value < 0 else "undefined"
    return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.2e}"


def exact(value: float, count: int = 1, unit: str = "computation") -> Quantity:
    """Return a number that carries no sampling error."""
    return Quantity(float(value), float(value), float(value), count, unit)


def over_seeds(values: Numbers, unit: str = "seeds") -> Quantity:
    """Return the mean over independent runs with its Student-t interval; a single run has no interval."""
    from scipy.stats import t

    kept = _finite(values)
    if len(kept) == 0:
        return Quantity(math.nan, math.nan, math.nan, 0, unit)
    mean = float(kept.mean())
    if len(kept) == 1:
        return Quantity(mean, -math.inf, math.inf, 1, unit)
    half = float(t.ppf(0.5 + CONFIDENCE / 2, len(kept) - 1) * kept.std(ddof=1) / math.sqrt(len(kept)))
    return Quantity(mean, mean - half, mean + half, len(kept), unit)


def all_of(values: Numbers, unit: str = "seeds") -> Quantity:
    """Return the mean with the whole range of the runs as its interval: for statements about every run."""
    kept = _finite(values)
    if len(kept) == 0:
        return Quantity(math.nan, math.nan, math.nan, 0, unit)
    return Quantity(float(kept.mean()), float(kept.min()), float(kept.max()), len(kept), unit, "interval = range")


def ratio_over_seeds(above: Numbers, below: Numbers) -> Quantity:
    """Return the geometric mean of ratios run by run, its interval taken on the logarithms."""
    tops, bottoms = np.asarray(above, float), np.asarray(below, float)
    good = np.isfinite(tops) & np.isfinite(bottoms) & (tops > 0) & (bottoms > 0)
    logs = over_seeds(np.log(tops[good] / bottoms[good]))
    if logs.count == 0:
        return logs
    return Quantity(math.exp(logs.value), _exp(logs.low), _exp(logs.high), logs.count)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


def pearson(x: Numbers, y: Numbers) -> float:
    """Return Pearson's r, nan where a side is constant or has fewer than three finite pairs."""
    a, b = _pairs(x, y)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return math.nan
    return float(np.corrcoef(a, b)[0, 1])


def spearman(x: Numbers, y: Numbers) -> float:
    """Return the rank correlation."""
    from scipy.stats import rankdata

    a, b = _pairs(x, y)
    return pearson(rankdata(a), rankdata(b)) if len(a) >= 3 else math.nan


def kendall(x: Numbers, y: Numbers) -> float:
    """Return Kendall's tau-b."""
    from scipy.stats import kendalltau

    a, b = _pairs(x, y)
    return float(kendalltau(a, b).statistic) if len(a) >= 3 else math.nan


def partial(x: Numbers, y: Numbers, given: Numbers) -> float:
    """Return the correlation of what is left of x and y after a straight line in ``given`` was taken from both."""
    a, b, c = (np.asarray(v, float) for v in (x, y, given))
    good = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    if good.sum() < 4 or np.ptp(c[good]) == 0:
        return math.nan
    design = np.stack([np.ones(int(good.sum())), c[good]], axis=1)
    left = [v[good] - design @ np.linalg.lstsq(design, v[good], rcond=None)[0] for v in (a, b)]
    return pearson(left[0], left[1])


def bootstrapped(
    statistic: Callable[..., float],
    *columns: Numbers,
    unit: str = "networks",
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> Quantity:
    """Return a statistic of rows (networks, samples) with its percentile bootstrap interval over those rows."""
    data = [np.asarray(column, float) for column in columns]
    good = np.all([np.isfinite(column) for column in data], axis=0)
    data = [column[good] for column in data]
    count = int(good.sum())
    value = statistic(*data) if count >= 3 else math.nan
    if not math.isfinite(value):
        return Quantity(math.nan, math.nan, math.nan, count, unit)
    draws = np.random.default_rng(seed).integers(count, size=(resamples, count))
    values = np.array([statistic(*(column[rows] for column in data)) for rows in draws])
    values = values[np.isfinite(values)]
    if len(values) < resamples // 2:
        return Quantity(value, -math.inf, math.inf, count, unit)
    low, high = np.quantile(values, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Quantity(float(value), float(low), float(high), count, unit)


def correlation(x: Numbers, y: Numbers, how: Callable[..., float] = pearson, unit: str = "networks") -> Quantity:
    """Return a correlation over networks with its bootstrap interval."""
    return bootstrapped(how, x, y, unit=unit)


def correlation_gain(better: Numbers, worse: Numbers, y: Numbers, how: Callable[..., float] = pearson) -> Quantity:
    """Return how much more strongly one measure correlates with y than another, resampling networks jointly."""
    return bootstrapped(lambda a, b, c: how(a, c) - how(b, c), better, worse, y)


def without_outliers(x: Numbers, y: Numbers, neighbours: int = 20) -> NDArray[np.bool_]:
    """Return which points LocalOutlierFactor keeps, on standardised axes (Breunig et al. 2000, scikit-learn)."""
    from sklearn.neighbors import LocalOutlierFactor

    points = np.stack([np.asarray(x, float), np.asarray(y, float)], axis=1)
    kept: NDArray[np.bool_] = np.ones(len(points), dtype=bool)
    if len(points) <= neighbours + 1:
        return kept
    spread = points.std(axis=0)
    points = (points - points.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    # Equal points make the factor 0/0; the smallest jitter settles them without moving anything else.
    points = points + np.random.default_rng(0).normal(scale=1e-9, size=points.shape)
    kept = LocalOutlierFactor(n_neighbors=neighbours, contamination="auto").fit_predict(points) == 1
    return kept


def _finite(values: Numbers) -> NDArray[np.float64]:
    array = np.asarray([math.nan if value is None else value for value in values], dtype=float)
    finite: NDArray[np.float64] = array[np.isfinite(array)]
    return finite


def _pairs(x: Numbers, y: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(x, float), np.asarray(y, float)
    good = np.isfinite(a) & np.isfinite(b)
    return a[good], b[good]
