"""Maximum of a function over a box: quasi-Newton from random interior points, then vertices by sign ascent and flips.

A convex function takes its maximum over a box at a vertex, and any smooth one over a small enough box nearly so.  The
value found is one the function takes inside the box, hence a lower bound on the maximum whatever the search missed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.estimators.probes import seeded_generator

# Vertices reached by changing the sign of one coordinate are tried up to this many coordinates, of two up to this many.
SINGLE_FLIPS = 64
PAIR_FLIPS = 16
ASCENT_STEPS = 20

ValueAndGradient = Callable[[Tensor], tuple[float, Tensor]]  # (n,) -> value, (n,)
Values = Callable[[Tensor], Tensor]  # (K, n) -> (K,)


@dataclass(frozen=True)
class BoxMaximum:
    """The largest value found, where, and whether every search ended because it could rise no further."""

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
) -> BoxMaximum:
    """Search max f over |z_i| <= bounds_i from ``restarts`` uniform random points of the interior.

    Each point first takes ``iterations`` steps of L-BFGS-B, then sign ascent z_i = bounds_i sign(df/dz_i), which never
    falls on a convex function, and with few coordinates flips of one and of two signs.  It never starts at z = 0: where
    that is a minimum every gradient method stays there.
    """
    best, point, converged, found = -np.inf, torch.zeros_like(bounds), True, []
    for restart in range(restarts):
        generator = seeded_generator(seed, restart)
        start = 2 * torch.rand(bounds.shape, generator=generator, dtype=torch.float64) - 1
        search = _Search(value_and_gradient, values, bounds)
        end, done = search.quasi_newton(start, iterations)
        end, done = search.sign_ascent(end, done)
        if len(bounds) <= SINGLE_FLIPS:
            end = search.flips(end)
        value = float(values((end * bounds)[None])[0])
        converged &= done
        found.append(value)
        if value > best:
            best, point = value, end * bounds
    at_vertex = bool((point.abs() >= bounds * (1 - 1e-12)).all())
    return BoxMaximum(float(best), point, converged, at_vertex, found)


class _Search:
    """One search, in coordinates y = z / bounds that lie in [-1, 1]."""

    def __init__(self, value_and_gradient: ValueAndGradient, values: Values, bounds: Tensor) -> None:
        self.value_and_gradient, self.values, self.bounds = value_and_gradient, values, bounds

    def at(self, y: Tensor) -> tuple[float, Tensor]:
        value, gradient = self.value_and_gradient(y * self.bounds)
        return value, gradient.double().cpu() * self.bounds

    def quasi_newton(self, start: Tensor, iterations: int) -> tuple[Tensor, bool]:
        """Return where L-BFGS-B came in that many iterations, and whether it had nothing left to gain there."""
        from scipy.optimize import minimize

        first: list[Any] = [self.at(start)]
        # Rises over a small box are far below 1, where the method's own stopping rules would end it at once.
        scale = float(first[0][1].abs().sum()) or 1.0

        def negative(y: np.ndarray) -> tuple[float, np.ndarray]:
            value, gradient = first.pop() if first else self.at(torch.from_numpy(y.copy()))
            return -value / scale, -gradient.numpy() / scale

        result = minimize(
            negative,
            start.numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-1.0, 1.0)] * len(start),
            options={"maxiter": iterations, "maxfun": 3 * iterations + 5, "ftol": 1e-12, "gtol": 1e-10},
        )
        return torch.from_numpy(np.clip(result.x, -1.0, 1.0)), bool(result.success)

    def sign_ascent(self, y: Tensor, done: bool) -> tuple[Tensor, bool]:
        """Jump to the vertex the gradient points at while that rises; a vertex that points at itself is an end."""
        value, gradient = self.at(y)
        for _ in range(ASCENT_STEPS):
            vertex = torch.where(gradient == 0, torch.where(y < 0, -1.0, 1.0).double(), gradient.sign())
            if bool((vertex == y).all()):
                return y, True
            new_value, new_gradient = self.at(vertex)
            if new_value <= value:
                return y, done
            y, value, gradient = vertex, new_value, new_gradient
        return y, False

    def flips(self, y: Tensor) -> Tensor:
        """Change one or two signs while that rises, the best change first; only from a vertex."""
        vertex = torch.where(y < 0, -1.0, 1.0).double()
        groups: list[tuple[int, ...]] = [(i,) for i in range(len(y))]
        if len(y) <= PAIR_FLIPS:
            groups += list(combinations(range(len(y)), 2))
        masks = torch.ones(len(groups), len(y), dtype=torch.float64)
        for row, group in enumerate(groups):
            masks[row, list(group)] = -1.0
        start = self.values(torch.stack([y, vertex]) * self.bounds)
        if float(start[1]) < float(start[0]):
            return y
        value = float(start[1])
        for _ in range(2 * len(y)):
            candidates = masks * vertex
            risen = self.values(candidates * self.bounds)
            top = int(risen.argmax())
            if not float(risen[top]) > value:
                break
            vertex, value = candidates[top], float(risen[top])
        return vertex
