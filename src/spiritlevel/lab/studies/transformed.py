"""Intervals taken where a number is nearly normal: Fisher's z for correlations, the logit for shares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from spiritlevel.lab.studies.quantities import CONFIDENCE, Numbers, Quantity, all_of, over_seeds, pearson

NEARLY_ONE = 0.9999  # Fisher's z of a perfect correlation is infinite


def fisher_interval(r: float, count: int, lost: int = 0) -> tuple[float, float]:
    """Return the interval of Pearson's r over ``count`` independent pairs: z = artanh r has variance 1 / (count - 3).

    ``lost`` is the number of further degrees of freedom spent, on the means of cells for instance.
    """
    from scipy.stats import norm

    if count - 3 - lost < 1 or not math.isfinite(r):
        return -1.0, 1.0
    z = math.atanh(max(-NEARLY_ONE, min(NEARLY_ONE, r)))
    half = float(norm.ppf(0.5 + CONFIDENCE / 2)) / math.sqrt(count - 3 - lost)
    return math.tanh(z - half), math.tanh(z + half)


def correlation_by_z(x: Numbers, y: Numbers, unit: str = "networks", lost: int = 0) -> Quantity:
    """Return Pearson's r with Fisher's interval, which never leaves [-1, 1]."""
    a, b = np.asarray(x, float), np.asarray(y, float)
    count = int((np.isfinite(a) & np.isfinite(b)).sum())
    r = pearson(a, b)
    if not math.isfinite(r):
        return Quantity(math.nan, math.nan, math.nan, count, unit)
    return Quantity(r, *fisher_interval(r, count, lost), count, unit)


def within_cells(x: Numbers, y: Numbers, cells: Sequence[object]) -> Quantity:
    """Return r of what is left of both after the mean of their cell (a batch size, a label ratio) was taken away."""
    a, b = np.array(x, float), np.array(y, float)
    good = np.isfinite(a) & np.isfinite(b)
    names = list(dict.fromkeys(cells))
    for name in names:
        own = np.array([cell == name for cell in cells], dtype=bool) & good
        if own.any():
            a[own] -= a[own].mean()
            b[own] -= b[own].mean()
    return correlation_by_z(a[good], b[good], lost=max(len(names) - 1, 0))


def leaving_one_out(x: Numbers, y: Numbers, unit: str = "networks") -> Quantity:
    """Return the range of r when each network in turn is left out: whether one of them decides."""
    a, b = np.asarray(x, float), np.asarray(y, float)
    good = np.isfinite(a) & np.isfinite(b)
    a, b = a[good], b[good]
    found = all_of([pearson(np.delete(a, place), np.delete(b, place)) for place in range(len(a))], unit)
    return Quantity(pearson(a, b), found.low, found.high, len(a), unit, "interval = range, each left out once")


def least(quantities: Iterable[Quantity]) -> Quantity:
    """Return the smallest of some correlations: the least value, the least lower and the least upper limit."""
    own = list(quantities)
    return Quantity(
        min(each.value for each in own), min(each.low for each in own), min(each.high for each in own),
        min(each.count for each in own), own[0].unit,
    )  # fmt: skip


def r_over_seeds(values: Numbers) -> Quantity:
    """Return the mean correlation over runs, averaged and with its interval on Fisher's z."""
    z = over_seeds(np.arctanh(np.clip(np.asarray(values, float), -NEARLY_ONE, NEARLY_ONE)))
    return Quantity(math.tanh(z.value), math.tanh(z.low), math.tanh(z.high), z.count, z.unit)


def share_over_seeds(values: Numbers, trials: int) -> Quantity:
    """Return the mean share over runs; its interval is taken on the logit, half a trial of ``trials`` from 0 and 1."""
    shares = np.asarray(values, float)
    shares = np.clip(shares[np.isfinite(shares)], 0.0, 1.0)  # a sum of weights may end a rounding above 1
    nearly = (shares * trials + 0.5) / (trials + 1)
    logits = over_seeds(np.log(nearly / (1 - nearly)))
    mean = float(shares.mean()) if len(shares) else math.nan
    low, high = (1 / (1 + math.exp(min(-value, 700.0))) for value in (logits.low, logits.high))
    return Quantity(mean, min(low, mean), max(high, mean), logits.count)
