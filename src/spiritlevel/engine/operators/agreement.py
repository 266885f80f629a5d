"""Whether derivatives agree with central differences of several steps: the rule of the check before any product."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.engine.operators.generic_point import ROUNDINGS, SHARP, TOLERANCE
from spiritlevel.values.errors import SpiritlevelError


def at_once(numbers: list[Tensor]) -> list[float]:
    """Return numbers as floats: a GPU is waited for once."""
    found: list[float] = torch.stack(numbers).tolist()
    return found


class Agreement:
    """What has agreed with differences at some step so far, and what never will.

    Two steps that agree with each other tell how sharp a difference is.  A derivative that lies further from both than
    they from each other is wrong, and no later step, blurred by rounding, can save it.
    """

    def __init__(self, dtype: torch.dtype, count: int, gradient_size: float) -> None:
        self.tolerance = TOLERANCE[dtype]
        self._in_float64 = dtype == torch.float64
        self.rounding = ROUNDINGS * torch.finfo(dtype).eps
        self.gradient_size = gradient_size
        self._verdicts: dict[tuple[str, int], _Verdict] = {}
        self._slope_before: float | None = None  # the differences of the step before
        self._push_before: Tensor | None = None
        self._second_before: list[Tensor] | None = None
        self._count = count

    @property
    def slope_agrees(self) -> bool:
        """Whether the gradient is the derivative of the loss along the direction."""
        return self._verdict("slope").agrees

    @property
    def push_agrees(self) -> bool:
        """Whether J v agreed."""
        return self._verdict("push").agrees

    @property
    def tensors(self) -> list[bool]:
        """Whether H v agreed, tensor by tensor."""
        return [self._verdict("second", place).agrees for place in range(self._count)]

    @property
    def second_agrees(self) -> bool:
        """Whether H v agreed in every tensor."""
        return all(self.tensors)

    @property
    def sharp(self) -> bool:
        """Whether everything agreed so closely at the first step that no later one could refute it.

        In float64 alone, where the first step is the one that is rounded least.
        """
        return self._in_float64 and all(verdict.sharp for verdict in self._verdicts.values())

    def _verdict(self, kind: str, place: int = 0) -> _Verdict:
        return self._verdicts.setdefault((kind, place), _Verdict())

    def complete(self, second: bool, push: bool) -> bool:
        """Whether all agreed that there is to compare."""
        return self.slope_agrees and (self.second_agrees or not second) and (self.push_agrees or not push)

    def slope(self, slope: float, difference: float, step: float, loss: float) -> None:
        """Compare the slope along the direction, of a loss of this size."""
        size = self.gradient_size
        allowed = 5 * self.tolerance * size  # along one direction; the gradient itself may be larger
        verdict = self._verdict("slope")
        apart = abs(difference - self._slope_before) if self._slope_before is not None else None
        self._slope_before = difference
        verdict.look(abs(slope - difference), apart, size, allowed, self.rounding * loss / step)

    def require_slope(self) -> None:
        """Refuse where the gradient is not the derivative of the loss."""
        if not self.slope_agrees:
            raise SpiritlevelError(
                "the gradient that torch computes is not the derivative of the loss (a detach, a straight-through "
                "estimator, a custom backward or half precision lies between), so there is no Hessian to measure; "
                "measure the network without that operation"
            )

    def push(self, pushed: Tensor, difference: Tensor, step: float, size: float) -> None:
        """Compare J v, for outputs of this size."""
        before, self._push_before = self._push_before, difference
        apart = [] if before is None else [(difference - before).norm()]
        length, gap, *apart_by = at_once([difference.norm(), (pushed - difference).norm(), *apart])
        rounding = self.rounding * size / step
        self._verdict("push").look(gap, next(iter(apart_by), None), length, self.tolerance * length, rounding)

    def second(self, products: list[Tensor], differences: list[Tensor], scales: list[float], step: float) -> None:
        """Tensor by tensor, in units in which every tensor's entries are of order one."""
        count = len(products)
        before = self._second_before
        norms = [d.norm() for d in differences] + [p.norm() for p in products]
        norms += [(p - d).norm() for p, d in zip(products, differences)]
        norms += [(d - b).norm() for d, b in zip(differences, before)] if before is not None else []
        own, made, gaps, *rest = (_scaled(part, scales) for part in torch.stack(norms).split(count))
        total = math.hypot(*own)
        rounding = self.rounding * self.gradient_size / step
        if step < 1e-9 and rounding > 0.05 * total:
            return  # nothing but rounding would be compared
        self._second_before = differences
        for place in range(count):
            size = max(made[place], own[place])
            allowed = self.tolerance * size + 1e-3 * self.tolerance * total
            apart = rest[0][place] if rest else None
            self._verdict("second", place).look(gaps[place], apart, size, allowed, rounding)


def _scaled(norms: Tensor, scales: list[float]) -> list[float]:
    found: list[float] = norms.tolist()
    return [scale * norm for scale, norm in zip(scales, found)]


@dataclass
class _Verdict:
    """Whether one derivative agrees with its differences."""

    agrees: bool = False
    sharp: bool = True  # it never lay further away than sharp differences may
    _refuted: bool = False
    _rounding: float = math.inf  # of the difference of the step before

    def look(self, gap: float, apart: float | None, size: float, allowed: float, rounding: float) -> None:
        """Compare at one more step: how far from the difference, and how far that lies from the one before.

        ``allowed`` at the most, and what ``rounding`` makes of the difference.
        """
        self.sharp &= gap <= SHARP * size + rounding
        if apart is not None:
            # Rounding shows between two steps as well; what the sharper one has of it is a bound for both.
            self._refuted |= gap > SHARP * size + 10 * apart + min(rounding, self._rounding)
        self._rounding = rounding
        self.agrees = not self._refuted and (self.agrees or gap <= allowed + rounding)
