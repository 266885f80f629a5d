"""Whether a measured value is right, by what it says of itself: exact, certified, estimated or a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import spiritlevel as sl

ERRORS = 3.0  # standard errors that an estimate, or the right side of a bound, may be off
COVERED = 1.96
ROUNDING = {"float64": 1e-6, "float32": 2e-3}  # relative, of what is called exact
AGREED = 1e-12  # relative standard error of draws that were all equal: judged as what is called exact
INSIDE = 1e-9  # relative, of what lies on the end of an interval


@dataclass(frozen=True)
class Verdict:
    """One value beside the truth; ``z`` is None where no standard error was given."""

    measure: str
    value: float
    truth: float | None  # None where the measure has no meaning
    stderr: float
    how: str
    status: str
    interval: tuple[float, float] | None
    z: float | None
    right: bool
    reason: str = ""

    @property
    def counted(self) -> bool:
        """Whether |z| ≤ 1.96 says something about this value's error bar: bounds are meant to be to one side."""
        return self.z is not None and self.how == "estimated"


def judge(measure: str, estimate: sl.Estimate, truth: float | None, dtype: str = "float64") -> Verdict:
    """Hold an estimate against the truth."""
    given = (measure, estimate.value, truth, estimate.stderr, estimate.how, estimate.status, estimate.interval)
    if truth is None or estimate.status == "not_applicable":
        # What has a truth must be measured, and what has none must not.
        return Verdict(*given, None, truth is None and estimate.status == "not_applicable", estimate.reason)
    off = estimate.value - truth
    z = off / estimate.stderr if estimate.stderr > AGREED * abs(estimate.value) else None
    if estimate.interval is not None:
        low, high = estimate.interval
        slack = (INSIDE + (ROUNDING[dtype] if dtype != "float64" else 0)) * abs(truth)
        right = low - slack <= truth <= high + slack
    elif estimate.how == "upper_bound":
        right = off >= -ERRORS * estimate.stderr - ROUNDING[dtype] * abs(truth)
    elif estimate.how == "lower_bound":
        right = off <= ERRORS * estimate.stderr + ROUNDING[dtype] * abs(truth)
    elif z is None:
        right = abs(off) <= ROUNDING[dtype] * abs(truth)
    else:
        right = abs(z) <= ERRORS
    return Verdict(*given, z, right and math.isfinite(estimate.value), estimate.reason)


def layer_errors(report: sl.Report, truth: dict[str, float], dtype: str = "float64") -> dict[str, float]:
    """z of every layer's trace; of what is called exact 0, or infinity where it is not."""
    found = {}
    scale = max(map(abs, truth.values()))
    for name, estimate in report.per_layer["hessian_trace"].items():
        off = estimate.value - truth[name]
        if estimate.stderr > AGREED * abs(estimate.value):
            found[name] = off / estimate.stderr
        else:
            found[name] = 0.0 if abs(off) <= ROUNDING[dtype] * scale else math.inf
    return found


def sample_errors(values: Tensor, stderr: Tensor, truth: dict[int, float], dtype: str = "float64") -> list[float]:
    """z of the samples' traces whose truth was written out."""
    found = []
    for place, true in truth.items():
        off, error = float(values[place]) - true, float(stderr[place])
        exact = abs(off) <= ROUNDING[dtype] * float(torch.as_tensor(list(truth.values())).abs().max())
        found.append(off / error if error > 0 else 0.0 if exact else math.inf)
    return found
