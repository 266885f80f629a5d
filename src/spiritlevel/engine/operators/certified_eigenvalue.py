"""An eigenvalue as an estimate: its residual is the half width of an interval that holds an eigenvalue for certain."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from spiritlevel.engine.operators.derivative_check import DerivativePath
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.estimate import Estimate


def certified_eigenvalue(
    value: float,
    residual: float,
    path: DerivativePath,
    *,
    met: bool,
    sweeps: float,
    samples: int,
    passes: float,
    **details: Any,
) -> Estimate:
    """Return the estimate of an eigenvalue; ``met`` says whether its residual is as small as was asked for.

    What products by differences may be off by is added to the residual.
    """
    residual += path.error
    status, reason = path.verdict(met, f"the residual is still {residual:.2g} after {sweeps:.0f} sweeps")
    return Estimate(
        value,
        interval=(value - residual, value + residual),
        how="estimated",
        status=status,
        reason=reason,
        samples=samples,
        passes=passes,
        details={"residual": residual, **details, "path": path.label},
    )


def stopped_in_time(found: Estimate, problem: OpenProblem) -> Estimate:
    """Return what a search for the largest found before it came to its end, where a deadline may have ended it.

    An eigenvalue lies within the residual of the value, but a search of a few steps may not have come near the largest.
    A Ritz value is at most that, and no upper end is known.
    """
    if problem.deadline is None:
        return found
    low = found.value if found.interval is None else found.interval[0]
    return replace(found, how="lower_bound", interval=(low, math.inf))
