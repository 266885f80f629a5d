"""Two networks by one measure: their difference and ratio with 95% intervals, and which is flatter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.analyses.auditing import BOUND_SHARE, ROUNDING
from spiritlevel.results import Report
from spiritlevel.results.contrasts import Contrast, OverSamples
from spiritlevel.results.numerals import residual_of
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.statistics import (
    STATISTICS,
    Interval,
    PairedIntervals,
    grouped_intervals,
    paired_intervals,
    point,
)

REPRODUCED = 1e-5  # relative; a report in float32 rounds its samples


def contrast(
    name: str,
    first: tuple[str, Report],
    second: tuple[str, Report],
    sharper_when: str,
    *,
    weights: Tensor | None = None,
    groups: tuple[Sequence[Report], Sequence[Report]] | None = None,
    seed: int = 0,
) -> Contrast | None:
    """Return the contrast of two reports on the same data, None where either has no value.

    Samples are paired where both reports hold the measure's own value of each sample, else groups of them where both
    were measured on ``groups``; errors of the computation are added, and the certificates of eigenvalues on top.
    """
    (label_a, report_a), (label_b, report_b) = first, second
    a, b = report_a[name], report_b[name]
    if any(e.status not in ("ok", "budget_spent") for e in (a, b)):
        return None
    found, over_samples = _over_samples(name, report_a, report_b, weights, seed)
    if over_samples == "none" and groups is not None:
        by_group = grouped_intervals(a.value, b.value, *(_values(name, reports) for reports in groups))
        if by_group is not None:
            found, over_samples = by_group, "grouped"
    stderr, residual = math.hypot(a.stderr, b.stderr), _residual(a, report_a) + _residual(b, report_b)
    data_errors = (a.stderr_data, b.stderr_data)
    if over_samples == "none" and data_errors[0] is not None and data_errors[1] is not None:
        over_samples = "separate"
        stderr = math.hypot(stderr, *(error for error in data_errors if error is not None))
    difference = found.difference.widened(stderr, residual)
    ratio = None
    if found.log_ratio is not None and abs(a.value) > _residual(a, report_a):
        sides = ((a, report_a), (b, report_b))
        relative = [_error_used(e, over_samples) / abs(e.value) for e, _ in sides]
        widths = sum(_residual(e, report) / abs(e.value) for e, report in sides)
        log = found.log_ratio.widened(math.hypot(*relative), widths)
        ratio = Interval(*(math.exp(end) for end in (log.value, log.low, log.high)))
    flatter = None
    if difference.excludes_zero and sharper_when:
        second_sharper = (difference.value > 0) == (sharper_when == "larger")
        flatter = label_a if second_sharper else label_b
    return Contrast(label_a, label_b, difference, ratio, over_samples, flatter)


def _values(name: str, reports: Sequence[Report]) -> list[float]:
    usable = [report.get(name) for report in reports]
    return [e.value if e is not None and e.status in ("ok", "budget_spent") else math.nan for e in usable]


def _error_used(estimate: Estimate, over_samples: OverSamples) -> float:
    return math.hypot(estimate.stderr, (estimate.stderr_data or 0.0) if over_samples == "separate" else 0.0)


def _residual(estimate: Estimate, report: Report) -> float:
    """Return what is certain only to within: the certificate, rounding, and the slack of a search for a bound."""
    dtype = getattr(torch, str(report.header.get("dtype")), torch.float32)
    share = ROUNDING.get(dtype, ROUNDING[torch.float32])
    if estimate.how in ("lower_bound", "upper_bound"):
        share += BOUND_SHARE
    return (residual_of(estimate) or 0.0) + share * abs(estimate.value)


def _over_samples(
    name: str, report_a: Report, report_b: Report, weights: Tensor | None, seed: int
) -> tuple[PairedIntervals, OverSamples]:
    a, b = report_a[name], report_b[name]
    samples_a, samples_b = report_a.per_sample.get(name), report_b.per_sample.get(name)
    if samples_a is None or samples_b is None or len(samples_a) != len(samples_b) or len(samples_a) < 2:
        return point(a.value, b.value), "none"
    share = np.ones(len(samples_a)) if weights is None else weights.double().numpy()
    settings = report_a.settings.get(name, {})
    values = [samples.double().numpy() for samples in (samples_a, samples_b)]
    if settings.get("abs"):
        values = [np.abs(each) for each in values]
    statistic = _recognised(values, share, (a.value, b.value), settings)
    if statistic is None:
        return point(a.value, b.value), "none"
    return paired_intervals(values[0], values[1], STATISTICS[statistic], weights=share, seed=seed), "paired"


def _recognised(
    values: list[np.ndarray], weights: np.ndarray, targets: tuple[float, float], settings: Mapping[str, Any]
) -> str | None:
    """Return the statistic of the samples that reproduces both reported values, so that the measure is resampled."""
    order: list[str] = [settings["statistic"]] if settings.get("statistic") in STATISTICS else []
    for name in dict.fromkeys([*order, *STATISTICS]):
        for each, target in zip(values, targets):
            counted = (weights > 0) & ~np.isnan(each)
            if not counted.any():
                break
            found = float(STATISTICS[name](each[counted][None], weights[counted][None])[0])
            if not math.isclose(found, target, rel_tol=REPRODUCED, abs_tol=1e-300):
                break
        else:
            return name
    return None
