"""Eigenvalues that stand apart from the bulk, as every probe sees them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

# An eigenvalue stands apart from the bulk where the next one is smaller by this factor.
SMALLEST_GAP = 1.5
OUTLIER_SHARE = 0.01  # of the largest eigenvalue, below which none is an outlier


@dataclass(frozen=True)
class Outliers:
    """How many positive eigenvalues stand apart from the bulk, beside the number of classes they are compared with.

    For each probe the widest gap, as a ratio, between a converged Ritz value and the next one ends the outliers; the
    count is the middle one of all probes'.

    Attributes
    ----------
    count : int
        How many.
    classes : int
        The number of classes; None where there are none.
    gap : float
        The ratio of the last outlier to the next eigenvalue, of the probe with the middle count.
    counts : tuple of int
        Every probe's count.
    """

    count: int
    classes: int | None
    gap: float  # ratio of the last outlier to the next eigenvalue, of the probe with the middle count
    counts: tuple[int, ...]  # every probe's


def outliers_of(nodes: Tensor, residuals: Tensor, classes: int | None) -> Outliers:
    """Return the outliers among the Ritz values (K, m) of several probes, beside a number of classes."""
    limit = 2 * classes + 10 if classes else 50
    found = sorted(_of_probe(values, certificates, limit) for values, certificates in zip(nodes, residuals))
    count, gap = found[len(found) // 2]
    return Outliers(count, classes, gap, tuple(number for number, _ in found))


def _of_probe(ascending: Tensor, certificates: Tensor, limit: int) -> tuple[int, float]:
    values, residuals = ascending.flip(0), certificates.flip(0)
    best, widest = 0, SMALLEST_GAP
    top = float(values[0])
    for place in range(min(limit, len(values) - 1)):
        # Gaps deep in the bulk, where values cross zero, are none: what lies below a thousandth counts as one.
        value, following = float(values[place]), max(float(values[place + 1]), 1e-3 * top)
        if value <= OUTLIER_SHARE * top or value <= 0 or float(residuals[place]) > 0.01 * value:
            break
        if value / following > widest:
            best, widest = place + 1, value / following
    return best, widest if best else 1.0
