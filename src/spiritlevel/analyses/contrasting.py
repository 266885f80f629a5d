"""Networks by one measure, pair by pair: the 95% interval of their ratio or difference, which decides who is flatter.

One interval decides, is drawn and is quoted.  It is that of log(b/a) wherever both values are known to be positive:
networks differ by factors, curvatures span magnitudes, and a sum over samples with a long tail is nearer to normal on a
logarithmic scale.  Every source of error gives an interval there, and independent ones are added by squares of their
reaches on each side (Zou and Donner 2008, "MOVER"):

- samples: percentiles of the log ratio over draws both networks share, or Student's t over groups of samples.  Both
  may be skew, and pairing has removed what makes a sample hard for both;
- computation: the ends v ± 1.96 σ of each value, with their logarithms taken.  The usual delta method, σ/v, takes the
  logarithm for a straight line; where σ is a third of v it covers 90% and not 95%, these ends cover (simulated in
  tests).  Near 1 they agree with the test of b − a, so no other scale could say otherwise;
- certificates of eigenvalues, rounding and the slack of a search for a bound hold for certain and add up in full.

Where one of the values may be zero or negative (margins, a value lost in its error) there is no ratio: the interval is
that of b − a then, by the same sources, and it decides alone.

Of three networks or more the intervals of a measure hold for all of its pairs at once, with 95% (Bonferroni): of the
1,770 pairs of sixty equal networks some 88 would be told apart if each pair took 5% for itself.  So the random reaches
above are those of 0.025 ÷ pairs beyond each end; percentiles, which so few draws do not have that far out, are
stretched as a normal's would be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from spiritlevel.analyses.changed_copies import BOUND_SHARE, ROUNDING
from spiritlevel.results import Report
from spiritlevel.results.contrasts import Contrast, OverSamples, Scale
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.statistics import (
    NORMAL_95,
    STATISTICS,
    Interval,
    PairedIntervals,
    Resampled,
    Statistic,
    Vector,
    grouped_intervals,
    normal_reach,
    paired_intervals,
    point,
)

MEASURED = ("ok", "budget_spent")
REPRODUCED = 1e-5  # relative; a report in float32 rounds its samples


Reports = Mapping[str, Report]


def contrasts_of(
    name: str,
    reports: Reports,
    sharper_when: str,
    *,
    statistic: str = "mean",
    weights: Tensor | None = None,
    groups: Mapping[str, Sequence[Mapping[str, Estimate]]] | None = None,
    seed: int = 0,
) -> list[Contrast]:
    """Return the contrasts of all pairs of reports on the same data; those without a value are left out.

    Samples are paired where reports hold the measure's own value of each sample, of which the network's value is the
    ``statistic`` (a setting of that name decides where the measure has one), else groups of them where the networks
    were measured on ``groups``; errors of the computation are added, and the certificates of eigenvalues on top.
    The intervals hold for all pairs at once.
    """
    present = {label: report for label, report in reports.items() if name in report and report[name].status in MEASURED}
    pairs = math.comb(len(present), 2)
    reach = normal_reach(pairs)
    sides = {label: _Side.of(report[name], report, reach) for label, report in present.items()}
    paired = _paired({label: reports[label] for label in sides}, name, statistic, weights, seed)
    values = {label: _values(name, each) for label, each in (groups or {}).items() if label in sides}
    found = []
    for a, b in combinations(sides, 2):
        over_samples: OverSamples = "none"
        intervals = point(sides[a].value, sides[b].value)
        if paired is not None:
            intervals, over_samples = paired(a, b).stretched(reach / NORMAL_95), "paired"
        elif values:
            by_group = grouped_intervals(sides[a].value, sides[b].value, values[a], values[b], pairs=pairs)
            if by_group is not None:
                intervals, over_samples = by_group, "grouped"
        both = (sides[a], sides[b])
        if over_samples == "none" and all(side.over_samples is not None for side in both):
            over_samples = "separate"
            both = (sides[a].with_samples(), sides[b].with_samples())
        ratio = _ratio(intervals.log_ratio, *both)
        interval = _difference(intervals.difference, *both) if ratio is None else ratio
        scale: Scale = "difference" if ratio is None else "ratio"
        found.append(Contrast(a, b, interval, scale, over_samples, sharper_when))
    return found


@dataclass(frozen=True)
class _Side:
    """One network's value with its errors: random ones as a standard error, certain ones as the ends they leave."""

    value: float
    stderr: float
    low: float
    high: float
    over_samples: float | None
    reach: float  # of the random errors, in standard errors

    @classmethod
    def of(cls, estimate: Estimate, report: Report, reach: float) -> _Side:
        dtype = getattr(torch, str(report.header.dtype), torch.float32)
        share = ROUNDING.get(dtype, ROUNDING[torch.float32])
        if estimate.how in ("lower_bound", "upper_bound"):
            share += BOUND_SHARE
        value, slack = estimate.value, share * abs(estimate.value)
        low, high = estimate.interval or (value, value)
        return cls(
            value, estimate.stderr, min(low, value) - slack, max(high, value) + slack, estimate.stderr_data, reach
        )

    def with_samples(self) -> _Side:
        """Return the side with the error over its samples among its random ones."""
        return replace(self, stderr=math.hypot(self.stderr, self.over_samples or 0.0))

    @property
    def random(self) -> float:
        """How far the random errors reach, with 95% for all pairs at once."""
        return self.reach * self.stderr

    @property
    def positive(self) -> bool:
        """Whether the value is above zero for all that is known."""
        return self.low - self.random > 0 and math.isfinite(self.high)


def _ratio(log: Interval | None, a: _Side, b: _Side) -> Interval | None:
    """Return the interval of b ÷ a, None where a value may not be positive."""
    if log is None or not (a.positive and b.positive):
        return None
    (a_below, a_above), (b_below, b_above) = (
        (-math.log1p(-side.random / side.value), math.log1p(side.random / side.value)) for side in (a, b)
    )
    below = math.hypot(log.value - log.low, b_below, a_above) + math.log(b.value / b.low) + math.log(a.high / a.value)
    above = math.hypot(log.high - log.value, b_above, a_below) + math.log(b.high / b.value) + math.log(a.value / a.low)
    return Interval(*(math.exp(end) for end in (log.value, log.value - below, log.value + above)))


def _difference(found: Interval, a: _Side, b: _Side) -> Interval:
    """Return the interval of b − a."""
    random = (a.random, b.random)
    below = math.hypot(found.value - found.low, *random) + (b.value - b.low) + (a.high - a.value)
    above = math.hypot(found.high - found.value, *random) + (b.high - b.value) + (a.value - a.low)
    return Interval(found.value, found.value - below, found.value + above)


def _values(name: str, reports: Sequence[Mapping[str, Estimate]]) -> list[float]:
    usable = [report.get(name) for report in reports]
    return [e.value if e is not None and e.status in MEASURED else math.nan for e in usable]


def _paired(
    reports: Reports, name: str, statistic: str, weights: Tensor | None, seed: int
) -> Callable[[str, str], PairedIntervals] | None:
    """Return the paired intervals of any two, None where the measure is no statistic of values of the samples."""
    samples = {label: report.per_sample.get(name) for label, report in reports.items()}
    lengths = {0 if each is None else len(each) for each in samples.values()}
    if len(reports) < 2 or len(lengths) > 1 or min(lengths) < 2:
        return None
    share = np.ones(lengths.pop()) if weights is None else weights.double().numpy()
    settings = next(iter(reports.values())).settings.get(name, {})
    values = {label: each.double().numpy() for label, each in samples.items() if each is not None}
    if settings.get("abs"):
        values = {label: np.abs(each) for label, each in values.items()}
    own = STATISTICS.get(settings.get("statistic", statistic))
    if own is None or not all(_reproduced(own, values[label], share, reports[label][name].value) for label in reports):
        return None
    if len({np.isnan(each).tobytes() for each in values.values()}) > 1:  # other samples have a value in other networks
        return lambda a, b: paired_intervals(values[a], values[b], own, weights=share, seed=seed)
    shared, places = Resampled(list(values.values()), own, weights=share, seed=seed), list(values)
    return lambda a, b: shared.pair(places.index(a), places.index(b))


def _reproduced(statistic: Statistic, values: Vector, weights: Vector, target: float) -> bool:
    """Return whether the samples give the reported value, so that what is resampled is the measure itself."""
    counted = (weights > 0) & ~np.isnan(values)
    if not counted.any():
        return False
    found = float(statistic(values[counted][None], weights[counted][None])[0])
    return math.isclose(found, target, rel_tol=REPRODUCED, abs_tol=1e-300)
