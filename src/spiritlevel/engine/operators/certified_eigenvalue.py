"""An eigenvalue as an estimate: its residual is the half width of an interval that holds an eigenvalue for certain."""

from __future__ import annotations

from typing import Any

from spiritlevel.engine.operators.derivative_check import DerivativePath
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
    """Return the estimate of an eigenvalue; ``met`` says whether its residual is as small as was asked for."""
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
