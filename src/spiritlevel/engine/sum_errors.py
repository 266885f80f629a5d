"""How far the sums of a curvature sweep may be off: by the draws of a sketch, and by arithmetic coarser than theirs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from spiritlevel.engine.passes.accumulating import CurvatureSums
from spiritlevel.engine.passes.sample_spread import column_form


def sum_error(sums: CurvatureSums, factors: Mapping[str, float], kind: str) -> float:
    """Return the standard error of a sum over parameters, each with its factor."""
    variance = 0.0 if sums.spread is None else sums.spread.variance(column_form(kind), factors) / sums.draws
    rounding = 0.0 if sums.rounding is None else sums.rounding.error(sums, factors, column_form(kind))
    return math.hypot(math.sqrt(variance), rounding)


def part_errors(sums: CurvatureSums | None, full: str, kind: str, base: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the errors of the entries (rows, columns) of one parameter, whose folds (F, ...) are given, and halves.

    Halves are two estimates of them, independent where they were sampled; None where they are exact.
    """
    value = base.mean(0)
    stderr, halves = torch.zeros_like(value), None
    if sums is None:
        return stderr, None
    if len(base) > 1:
        stderr = base.std(0) / len(base) ** 0.5
        if not base[0].ndim:
            stderr = torch.full_like(stderr, sum_error(sums, {full: 1.0}, kind))
        halves = torch.stack([base[0::2].mean(0), base[1::2].mean(0)])
    if sums.rounding is not None:
        stderr = torch.hypot(stderr, sums.rounding.errors(full, kind, value))
        halves = value.expand(2, *value.shape) if halves is None else halves
    return stderr, halves
