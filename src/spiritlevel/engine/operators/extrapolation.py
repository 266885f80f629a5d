"""Central differences extrapolated from two steps, which also tell how far off they are (Richardson 1911).

D(r) = (g(r) - g(-r)) / 2r is off by c r² + O(r⁴), so (4 D(r/2) - D(r)) / 3 is off by O(r⁴), and D(r/2) - D(r) is more
than that as long as either is any good: it is the error that is told.  Rounding enters as 1/r.  No step is right for
every problem: the one is taken whose two differences lie nearest along a vector that favours no direction, and where
they lie apart along another, smaller ones.  Never a larger one that smaller ones refute: steps that leap over what
bends within them agree with each other, and with nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# g(θ + step · v) from the step, or whatever else is differentiated along v
Evaluate = Callable[[float], Sequence[Tensor]]
Norm = Callable[[Sequence[Tensor]], float]

SECOND_STEP = 0.5
# Two steps that lie further apart than this share of what they find do not agree.
APART = 0.02
DOUBT = 3.0  # so many times as far as their errors may two lie from each other
SMALLER = (0.2, 0.04)  # shares of a step that are tried where they do not


@dataclass(frozen=True)
class Extrapolated:
    """A derivative along a vector from two steps."""

    parts: list[Tensor]
    gap: float  # how far the two lay apart, and what rounding may do: the error
    size: float  # the length of the one with the smaller step

    @property
    def agrees(self) -> bool:
        """Whether the two lay near each other."""
        return self.gap <= APART * self.size


def extrapolated(evaluate: Evaluate, step: float, norm: Norm) -> Extrapolated:
    """Return the derivative of ``evaluate`` at 0 from this step and half of it."""
    wide, _ = _central(evaluate, step, norm)
    narrow, rounding = _central(evaluate, SECOND_STEP * step, norm)
    gap, size = norm([a - b for a, b in zip(wide, narrow)]), norm(narrow)
    return Extrapolated([(4 * b - a).div_(3) for a, b in zip(wide, narrow)], max(gap, rounding), size)


def difference_along(evaluate: Evaluate, step: float, norm: Norm, enough: float = 0.0) -> Extrapolated:
    """Return the same where two steps agree or lie at most ``enough`` apart, else from the best of smaller ones."""
    found = extrapolated(evaluate, step, norm)
    for share in SMALLER:
        if found.agrees or found.gap <= enough:
            return found
        found = min(found, extrapolated(evaluate, share * step, norm), key=lambda one: one.gap)
    return found


def best_step(evaluate: Evaluate, steps: Iterable[float], norm: Norm) -> float:
    """Return the step at which one more halving changes the derivative least, and which no smaller one refutes."""
    narrowest, *wider = sorted(steps)
    best, found = narrowest, extrapolated(evaluate, narrowest, norm)
    for step in wider:
        other = extrapolated(evaluate, step, norm)
        apart = norm([a - b for a, b in zip(other.parts, found.parts)])
        if other.gap < found.gap and apart <= DOUBT * (found.gap + other.gap):
            best, found = step, other
    return best


def _central(evaluate: Evaluate, step: float, norm: Norm) -> tuple[list[Tensor], float]:
    """Return a central difference and the rounding in it."""
    ahead, behind = evaluate(step), evaluate(-step)
    eps = max(torch.finfo(part.dtype).eps for part in ahead)
    found = [(a.double() - b.double()).div_(2 * step) for a, b in zip(ahead, behind)]
    return found, eps * norm(ahead) / step
