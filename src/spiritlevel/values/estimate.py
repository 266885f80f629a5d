"""One number and everything needed to trust it: how it was obtained, its errors, its certificate, its status."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from spiritlevel.values.errors import UsageError

How = Literal["exact", "estimated", "lower_bound", "upper_bound"]
Status = Literal["ok", "budget_spent", "not_finite", "not_applicable"]

TINIEST = sys.float_info.min  # the rounding of a sampled zero
NEGLIGIBLE = 1e-290  # what such roundings come to, added up and scaled: no error to speak of
ANYWHERE = (-math.inf, math.inf)  # the interval of a number whose error a single draw cannot tell


@dataclass(frozen=True)
class Estimate:
    """A measured value with its error of computation, its error over samples and the way it was obtained.

    ``float(estimate)`` is the value. A value that is called estimated has a standard error or an interval.

    Attributes
    ----------
    value : float
        The number itself; not a number where nothing could be measured.
    stderr : float
        The error of the computation alone (0.0 when exact).
    stderr_data : float
        The error over the samples the value was averaged from, None where a mean over samples does not define it.
    interval : pair of float
        A certificate that holds whatever the probes were (eigenvalues).
    how : str
        "exact", "estimated", "lower_bound" or "upper_bound".
    verified : bool
        Whether exactness was checked on this network and data.
    status : str
        "ok", "budget_spent" (it stands with the error it has), "not_finite" or "not_applicable".
    reason : str
        Why the status is not "ok".
    samples : int
        How many samples it was taken on.
    passes : float
        Passes over the data that were spent on it; what measures share is counted with the first that needs it.
    details : dict
        What the measure says beside, by name.

    Raises
    ------
    UsageError
        A value is called estimated and has neither an error nor an interval.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> estimate = sl.Estimate(4.0, stderr=0.2, how="estimated", samples=100)
    >>> float(estimate), estimate.ok
    (4.0, True)
    >>> estimate.scaled(0.5).stderr
    0.1
    """

    value: float
    stderr: float = 0.0
    stderr_data: float | None = None
    interval: tuple[float, float] | None = None
    how: How = "exact"
    verified: bool = False
    status: Status = "ok"
    reason: str = ""
    samples: int = 0
    passes: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.status in ("ok", "budget_spent") and not math.isfinite(self.value):
            object.__setattr__(self, "status", "not_finite")
            object.__setattr__(self, "reason", self.reason or "the computation gave a value that is not finite")
        has_error = self.interval is not None or (self.stderr > 0 and math.isfinite(self.stderr))
        if self.how == "estimated" and self.status in ("ok", "budget_spent") and not has_error:
            raise UsageError(
                f"the value {self.value:.6g} is called estimated but has an error of {self.stderr} and no interval, so "
                "nobody could tell how far off it is; give its error, or call it exact or a bound"
            )

    def __repr__(self) -> str:
        error = f" ± {self.stderr:.2g}" if TINIEST < self.stderr < math.inf else ""
        certain = "" if self.interval is None else f", in [{self.interval[0]:.6g}, {self.interval[1]:.6g}]"
        how = self.how.replace("_", " ") + (" (verified)" if self.verified else "")
        rest = "" if self.ok else f", {self.status.replace('_', ' ')}: {self.reason}"
        return f"<Estimate {self.value:.6g}{error}, {how}{certain}{rest}>"

    def __float__(self) -> float:
        return float(self.value)

    @property
    def ok(self) -> bool:
        """Whether the value may be used without a caveat."""
        return self.status == "ok"

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of ``factor`` times this quantity, errors and certificate included.

        Parameters
        ----------
        factor : float
            What to multiply by; a negative factor turns the certificate's ends round.

        Returns
        -------
        Estimate
            The estimate of the multiple.
        """
        ends = sorted(factor * end for end in self.interval or ())
        stderr = self.stderr * abs(factor)
        return replace(
            self,
            value=self.value * factor,
            stderr=TINIEST if stderr == 0 < self.stderr else stderr,
            stderr_data=None if self.stderr_data is None else self.stderr_data * abs(factor),
            interval=(ends[0], ends[1]) if ends else None,
            # Of nothing times what was sampled no error is left.
            how="exact" if factor == 0 and self.how == "estimated" else self.how,
        )


@dataclass(frozen=True)
class Result:
    """What a measure gives: its value for the network and, where the paper defines them, for layers, neurons, samples.

    ``layers`` and ``neurons`` go by quantity and then by layer: one measure may show several quantities of a layer.
    A function declared with `declare` may return one instead of a number.

    Attributes
    ----------
    value : Estimate
        The network's value.
    layers : dict
        Estimates by quantity and layer.
    neurons : dict
        Lists of numbers, one a neuron, by quantity and layer.
    samples : dict of str to Tensor
        Numbers of the samples, (N,) in data order, by name.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> found = sl.Result(sl.Estimate(3.0), layers={"size": {"fc": sl.Estimate(3.0)}})
    >>> found.value.value, list(found.layers["size"])
    (3.0, ['fc'])
    """

    value: Estimate
    layers: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    neurons: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    samples: dict[str, Tensor] = field(default_factory=dict)  # (N,) in data order


def not_applicable(reason: str) -> Estimate:
    """Return the row of a measure that has no meaning here, with its reason in place of a number."""
    return Estimate(value=math.nan, stderr=math.nan, status="not_applicable", reason=reason)


def at_least_rounding(error: float, value: float, eps: float = sys.float_info.epsilon) -> float:
    """Return a sampled value's standard error; where all draws were equal, the rounding of what they agreed on."""
    return max(error, eps * abs(value), TINIEST)
