"""Estimates as cells, in the same digits as every other table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from spiritlevel.page.parts import Cell
from spiritlevel.results.numerals import MISSING, how_text, plain, residual_of, value_text
from spiritlevel.values.estimate import Estimate

_SIGN = {"lower_bound": "≥ ", "upper_bound": "≤ "}


def number_cell(value: float | None, digits: int = 5) -> Cell:
    """Return a number's cell."""
    return Cell(plain(value, digits), value=value)


def value(estimate: Estimate | None) -> Cell:
    """Return the value with the error of its computation where there is one; a bound is marked as one."""
    if estimate is None:
        return Cell(MISSING)
    text = value_text(estimate)
    if text == MISSING:
        return Cell(MISSING, kind="missing")
    return Cell(_SIGN.get(estimate.how, "") + text, value=estimate.value)


def value_over_samples(estimate: Estimate | None) -> Cell:
    """Return the value, and below it the error over the samples: an exact value of some samples is no exact truth."""
    cell = value(estimate)
    error = over_samples(estimate).text
    return replace(cell, small=f"{error} over samples") if error and cell.kind != "missing" else cell


def over_samples(estimate: Estimate | None) -> Cell:
    """Return the error over the samples."""
    if estimate is None or estimate.stderr_data is None:
        return Cell("")
    return Cell(f"± {plain(estimate.stderr_data, 2)}", value=estimate.stderr_data)


def how(estimate: Estimate | None) -> Cell:
    """Return how the value was obtained, with the reason below where it fell short."""
    if estimate is None:
        return Cell("not measured")
    return Cell(how_text(estimate), small="" if estimate.ok else estimate.reason)


def shared_how(estimates: Sequence[Estimate | None]) -> Cell:
    """Return how several networks' values were obtained, with the largest of their residuals."""
    present = [estimate for estimate in estimates if estimate is not None]
    if len(present) == 1:
        return how(present[0])
    found = list(dict.fromkeys(how(estimate).text for estimate in estimates))
    reasons = " ".join(dict.fromkeys(estimate.reason for estimate in present if not estimate.ok))
    if len(found) == 1:
        return Cell(found[0], small=reasons)
    kinds = list(dict.fromkeys(text.partition(", residual")[0] for text in found))
    residuals = [residual for estimate in present if (residual := residual_of(estimate)) is not None]
    largest = max(residuals, default=math.inf)
    return Cell(" / ".join(kinds) + (f", residual ≤ {largest:.1e}" if math.isfinite(largest) else ""), small=reasons)
