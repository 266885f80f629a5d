"""Maximum of a function over a box: ascent among its vertices by signs of the gradient, then inside where that ends.

A convex function takes its maximum over a box at a vertex, and any smooth one over a small enough box nearly so.  The
value found is one the function takes inside the box, hence a lower bound on the maximum whatever the search missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import seeded_generator

# With at most this many coordinates every change of one and of two signs is tried.
FEW = 16
ASCENT_STEPS = 30
# With so few coordinates each start is joined by this many random vertices, from which single signs are changed.
RANDOM_VERTICES = 5
# A search has ended when no point of the box promises, to first order, more than this share of the rise found.  All
# starts go to the first, the best of them to the second.
COARSE, FINE = 1e-2, 3e-4

ValueAndGradient = Callable[[Tensor], tuple[float, Tensor]]  # (n,) -> value, (n,)
Values = Callable[[Tensor], Tensor]  # (K, n) -> (K,)


@dataclass(frozen=True)
class BoxMaximum:
    """The largest value found, where, and whether the search ended at a point where no small move rises."""

    value: float
    point: Tensor  # (n,) float64
    converged: bool
    at_vertex: bool
    by_restart: list[float]


def maximise_in_box(
    value_and_gradient: ValueAndGradient,
    values: Values,
    bounds: Tensor,
    *,
    restarts: int,
    iterations: int,
    seed: int = 0,
    slope: Tensor | None = None,
) -> BoxMaximum:
    """Search max f over |z_i| <= bounds_i, where f(0) = 0, from the vertex the gradient at 0 points to and random ones.

    ``restarts`` vertices in all climb by changing the signs of coordinates that would gain; the best goes on to the
    end.  With few coordinates every flip of one and of two signs is tried too, from random vertices besides.  Where no
    change of signs rises although the gradient promises so, ``iterations`` steps of L-BFGS-B look inside the box.
    ``slope`` is the gradient at 0, where it is known.
    """
    search = _BoxSearch(value_and_gradient, values, bounds)
    slope = search.at(torch.zeros_like(bounds))[1] if slope is None else slope.double().cpu() * bounds
    ends = []
    for restart in range(restarts):
        signs = 2.0 * torch.randint(0, 2, bounds.shape, generator=seeded_generator(seed, restart)).double() - 1.0
        # Random signs where the gradient says nothing.
        start = torch.where(slope == 0, signs, slope.sign()) if restart == 0 else signs
        ends.append(search.climb(search.look(start), COARSE))
    found = [end.value for end in ends]
    top = max(range(restarts), key=lambda k: _height(found[k]))
    end = search.climb(ends[top], FINE)
    if len(bounds) <= FEW:
        end = search.try_flips(end, restarts * RANDOM_VERTICES, seeded_generator(seed, restarts))
    if not end.settled(FINE) and math.isfinite(end.value):
        end = search.look_inside(end, iterations)
    value = float(values((end.y * bounds)[None])[0])
    found[top] = value
    converged = end.done or end.settled(FINE)
    if not math.isfinite(value):  # nowhere a number: there is no maximum to speak of
        value, converged = np.nan, False
    return BoxMaximum(value, end.y * bounds, converged, bool((end.y.abs() >= 1 - 1e-12).all()), found)


def _height(value: float) -> float:
    return value if math.isfinite(value) else -math.inf


@dataclass(frozen=True)
class _Point:
    """A point of the box in coordinates y = z / bounds, with the value and the gradient in y there."""

    y: Tensor
    value: float
    gradient: Tensor
    done: bool = False  # a method of its own found nothing left to gain

    @property
    def gains(self) -> Tensor:
        """What each coordinate would gain, to first order, by going to the end its gradient points to."""
        return self.gradient.abs() - self.gradient * self.y

    def settled(self, share: float) -> bool:
        """Whether all coordinates together promise at most this share of the value (Frank and Wolfe's gap)."""
        return bool(float(self.gains.sum()) <= share * abs(self.value))


class _BoxSearch:
    def __init__(self, value_and_gradient: ValueAndGradient, values: Values, bounds: Tensor) -> None:
        self.value_and_gradient, self.values, self.bounds = value_and_gradient, values, bounds

    def at(self, y: Tensor) -> tuple[float, Tensor]:
        value, gradient = self.value_and_gradient(y * self.bounds)
        return value, gradient.double().cpu() * self.bounds

    def look(self, y: Tensor) -> _Point:
        return _Point(y, *self.at(y))

    def climb(self, point: _Point, share: float) -> _Point:
        """Change the signs of a vertex's coordinates that would gain, while that rises and promises more than a share.

        All of them together is the sign ascent y = sign(df/dy), which never falls on a convex function; elsewhere the
        most promising eighth, or the eighth of that, may rise where all together overshoot.
        """
        for _ in range(ASCENT_STEPS):
            if point.settled(share):
                break
            gains = point.gains
            count = int((gains > 0).sum())
            trial = self.look(torch.where(gains > 0, -point.y, point.y))
            if not trial.value > point.value:
                order = gains.argsort(descending=True)
                fewer = []
                while count := count // 8:
                    fewer.append(point.y.clone())
                    fewer[-1][order[:count]] *= -1
                if not fewer:
                    break
                heights = self.values(torch.stack(fewer) * self.bounds)
                if not float(heights.max()) > point.value:
                    break
                trial = self.look(fewer[int(heights.argmax())])
            point = trial
        return point

    def look_inside(self, point: _Point, iterations: int) -> _Point:
        """Return where L-BFGS-B comes in that many iterations, if that is higher; no sign change was."""
        from scipy.optimize import minimize

        first: list[Any] = [(point.value, point.gradient)]
        # Rises over a small box are far below 1, where the method's own stopping rules would end it at once.
        scale = float(point.gradient.abs().sum()) or 1.0

        def negative(y: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = first.pop() if first else self.at(torch.from_numpy(y.copy()))
            return -value / scale, -gradient.numpy() / scale

        result = minimize(
            negative,
            point.y.numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-1.0, 1.0)] * len(point.y),
            options={"maxiter": iterations, "maxfun": 3 * iterations + 5, "ftol": 1e-12, "gtol": 1e-10},
        )
        y = torch.from_numpy(np.clip(result.x, -1.0, 1.0))
        value, gradient = -float(result.fun) * scale, -torch.from_numpy(np.array(result.jac)) * scale
        return _Point(y, value, gradient, bool(result.success)) if value >= point.value else point

    def try_flips(self, point: _Point, vertices: int, generator: torch.Generator) -> _Point:
        """Change single signs of random vertices and single and paired signs of the best of all, while that rises."""
        signs = 2.0 * torch.randint(0, 2, (vertices, len(point.y)), generator=generator).double() - 1.0
        ends = torch.stack([point.y, *(self.flips(row, most=1) for row in signs)])
        y = self.flips(ends[int(self.values(ends * self.bounds).argmax())], most=2)
        return point if torch.equal(y, point.y) else self.look(y)

    def flips(self, vertex: Tensor, most: int) -> Tensor:
        """Change signs of a vertex, at ``most`` so many at once, while that rises, the best change first."""
        groups = [group for size in range(1, most + 1) for group in combinations(range(len(vertex)), size)]
        masks = torch.ones(len(groups), len(vertex), dtype=torch.float64)
        for row, group in enumerate(groups):
            masks[row, list(group)] = -1.0
        value = float(self.values(vertex[None] * self.bounds)[0])
        for _ in range(2 * len(vertex)):
            candidates = masks * vertex
            risen = self.values(candidates * self.bounds)
            top = int(risen.argmax())
            if not float(risen[top]) > value:
                break
            vertex, value = candidates[top], float(risen[top])
        return vertex
