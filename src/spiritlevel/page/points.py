"""Many samples as a picture: all of them counted in 2-D bins, and a few that can be pointed at."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiritlevel.values.statistics import Vector

SHOWN = 2_000
EXTREMES = 25  # on each side of each quantity
BINS = (44, 30)
FEWEST_ON_A_LINE = 10  # samples that a line is drawn through, and a correlation is given of
LOG_RANGE = 50.0  # positive values that span more than this factor are drawn on a logarithmic axis
TINIEST = 1e-12  # of the largest value: what is smaller is drawn there


@dataclass(frozen=True)
class ShownPoints:
    """Samples that can be pointed at, and how they were chosen."""

    index: NDArray[np.int64]
    wrong: int
    wrong_in_all: int
    extremes: int
    random: int
    count: int

    def words(self) -> str:
        """Return how many can be pointed at, and why those."""
        if len(self.index) == self.count:
            return f"All {self.count:,} samples can be pointed at."
        parts = []
        if self.wrong_in_all:
            every = "all" if self.wrong == self.wrong_in_all else f"{self.wrong:,} of"
            parts.append(f"{every} {self.wrong_in_all:,} misclassified")
        parts += [f"{self.extremes:,} extremes", f"{self.random:,} drawn at random"]
        return (
            f"All {self.count:,} samples are counted in the shaded bins; {len(self.index):,} can be pointed at: "
            f"{', '.join(parts)}."
        )


def choose_points(quantities: Mapping[str, Vector], right: NDArray[np.bool_] | None, seed: int = 0) -> ShownPoints:
    """Choose the misclassified samples first (at most half of the places), then extremes, then some at random."""
    count = len(next(iter(quantities.values())))
    if count <= SHOWN:
        wrong = 0 if right is None else int((~right).sum())
        return ShownPoints(np.arange(count), wrong, wrong, 0, count - wrong, count)
    rng = np.random.default_rng(seed)
    chosen = np.zeros(count, dtype=bool)
    wrong_all = np.flatnonzero(~right) if right is not None else np.empty(0, dtype=np.int64)
    few = len(wrong_all) <= SHOWN // 2
    first = wrong_all if few else rng.choice(wrong_all, SHOWN // 2, replace=False)
    chosen[first] = True
    for values in quantities.values():
        order = np.argsort(values, kind="stable")
        order = order[np.isfinite(values[order])]
        chosen[order[:EXTREMES]] = True
        chosen[order[-EXTREMES:]] = True
    extremes = int(chosen.sum()) - len(first)
    rest = rng.permutation(np.flatnonzero(~chosen))[: SHOWN - int(chosen.sum())]
    chosen[rest] = True
    return ShownPoints(np.flatnonzero(chosen), len(first), len(wrong_all), extremes, len(rest), count)


@dataclass(frozen=True)
class Axis:
    """How a quantity is laid out: linear, or logarithmic where it is positive and spans magnitudes."""

    log: bool
    low: float
    high: float

    def place(self, values: Vector) -> Vector:
        """Return the values as drawn: those below a logarithmic axis's end stand on it."""
        return np.clip(values, self.low, None) if self.log else values

    def holds(self, values: Vector) -> NDArray[np.bool_]:
        """Return which values lie on the axis and are not only drawn at its end."""
        return values >= self.low if self.log else np.ones(values.shape, dtype=bool)

    def below(self, values: Vector) -> int:
        """Return how many values are drawn at the end of the axis because they lie below it."""
        return int((~self.holds(values) & np.isfinite(values)).sum())

    def to_line(self, values: Vector) -> Vector:
        """Return coordinates that are evenly spaced on the axis."""
        return np.log10(self.place(values)) if self.log else values


def axis_of(values: Vector) -> Axis:
    """Return the layout of a quantity."""
    finite = values[np.isfinite(values)]
    if len(finite) == 0:
        return Axis(False, 0.0, 1.0)
    low, high = float(finite.min()), float(finite.max())
    positive = finite[finite > 0]
    if low >= 0 and len(positive) and high > LOG_RANGE * max(float(np.median(positive)) * 1e-3, float(positive.min())):
        return Axis(True, max(float(positive.min()), high * TINIEST), high)
    return Axis(False, low, high)


def binned(x: Vector, y: Vector, x_axis: Axis, y_axis: Axis) -> list[dict[str, Any]]:
    """Count all samples in bins that are even on the axes; empty bins are left out."""
    finite = np.isfinite(x) & np.isfinite(y)
    if not finite.any():
        return []
    counts, x_edges, y_edges = np.histogram2d(x_axis.to_line(x[finite]), y_axis.to_line(y[finite]), bins=BINS)
    x_ends, y_ends = (10.0**e if a.log else e for e, a in ((x_edges, x_axis), (y_edges, y_axis)))
    return [
        {
            "x": short(x_ends[i]),
            "x2": short(x_ends[i + 1]),
            "y": short(y_ends[j]),
            "y2": short(y_ends[j + 1]),
            "count": int(counts[i, j]),
        }
        for i, j in np.argwhere(counts > 0)
    ]


@dataclass(frozen=True)
class LineFit:
    """A straight line through points on the axes as drawn, by least squares, and their correlation there."""

    slope: float
    intercept: float
    correlation: float
    count: int
    line: list[tuple[float, float]]


def fit(x: Vector, y: Vector, x_axis: Axis, y_axis: Axis) -> LineFit | None:
    """Return the line through the points, None where there are too few or one side does not vary."""
    finite = np.isfinite(x) & np.isfinite(y) & x_axis.holds(x) & y_axis.holds(y)
    a, b = x_axis.to_line(x[finite]), y_axis.to_line(y[finite])
    if len(a) < FEWEST_ON_A_LINE or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    slope, intercept = np.polyfit(a, b, 1)
    correlation = float(np.corrcoef(a, b)[0, 1])
    # The line is cut where it leaves the range of the points.
    ends = [float(a.min()), float(a.max())]
    lowest, highest = float(b.min()), float(b.max())
    if slope:
        reach = sorted(((lowest - intercept) / slope, (highest - intercept) / slope))
        ends = [max(ends[0], reach[0]), min(ends[1], reach[1])]
    line = [
        (
            float(10**e if x_axis.log else e),
            float(10 ** (slope * e + intercept) if y_axis.log else slope * e + intercept),
        )
        for e in ends
    ]
    return LineFit(float(slope), float(intercept), correlation, len(a), line)


def powers(alt: Any, **options: Any) -> Any:
    """Return an axis over many orders of magnitude: 1e2, 1e-6 (Vega alone puts a plus before exponents)."""
    return alt.Axis(format=".0e", labelExpr="replace(format(datum.value, '.0e'), '+', '')", **options)


def short(value: float, digits: int = 6) -> float | None:
    """Return a number with few digits, as drawings need them; None where it is not finite."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None
