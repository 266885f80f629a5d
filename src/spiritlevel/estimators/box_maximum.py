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

# With at most this many coordinates every change of one and of two signs is tried.
FEW = 16
ASCENT_STEPS = 30
# With so few coordinates each restart also starts from this many random vertices.
RANDOM_VERTICES = 5

ValueAndGradient = Callable[[Tensor], tuple[float, Tensor]]  # (n,) -> value, (n,)
Values = Callable[[Tensor], Tensor]  # (K, n) -> (K,)


@dataclass(frozen=True)
class BoxMaximum:
    """The largest value found, where, and whether every search ended at a point where no small move rises."""

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

    Each point first takes ``iterations`` steps of L-BFGS-B, then sign ascent z_i = bounds_i sign(df/dz_i) among the
    vertices; with few coordinates every flip of one and of two signs is tried too, from random vertices besides.  It
    never starts at z = 0: where that is a minimum every gradient method stays there.
    """
    best, point, converged, found = -np.inf, torch.zeros_like(bounds), True, []
    for restart in range(restarts):
        generator = seeded_generator(seed, restart)
        start = 2 * torch.rand(bounds.shape, generator=generator, dtype=torch.float64) - 1
        search = _Search(value_and_gradient, values, bounds)
        end, done = search.quasi_newton(start, iterations)
        end, done = search.vertex_ascent(end, done)
        if len(bounds) <= FEW:
            signs = 2.0 * torch.randint(0, 2, (RANDOM_VERTICES, len(bounds)), generator=generator).double() - 1.0
            end = search.best_of([end, *(search.flips(row, pairs=False) for row in signs)])
            end = search.flips(end, pairs=True)
            # A vertex is an end where the gradient points out of the box in every coordinate.
            done |= bool(((end.abs() == 1) & (search.at(end)[1] * end >= 0)).all())
        value = float(values((end * bounds)[None])[0])
        converged &= done
        found.append(value)
        if value > best:
            best, point = value, end * bounds
    if best == -np.inf:  # nowhere a number: there is no maximum to speak of
        best, converged = np.nan, False
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

    def vertex_ascent(self, y: Tensor, done: bool) -> tuple[Tensor, bool]:
        """Go to a vertex and change signs there while that rises; return the better of it and the point given.

        At a vertex y the coordinates with y_i df/dy_i < 0 would gain to first order by changing sign.  All of them
        together is the sign ascent y = sign(df/dy), which never falls on a convex function; elsewhere the most
        promising eighth, or the eighth of that, may rise where all together overshoot.
        """
        _, gradient = self.at(y)
        kept = torch.where(y < 0, -1.0, 1.0).double()
        starts = torch.stack([torch.where(gradient == 0, kept, gradient.sign()), kept])
        heights = self.values(torch.cat([y[None], starts]) * self.bounds)
        vertex, value = starts[int(heights[1:].argmax())], float(heights[1:].max())
        ended = False
        for _ in range(ASCENT_STEPS):
            _, gradient = self.at(vertex)
            gains = -gradient * vertex
            order = gains.argsort(descending=True)
            count = int((gains > 0).sum())
            if count == 0:
                ended = True
                break
            candidates = []
            while count:
                flipped = vertex.clone()
                flipped[order[:count]] *= -1
                candidates.append(flipped)
                count //= 8
            risen = self.values(torch.stack(candidates) * self.bounds)
            top = int(risen.argmax())
            if not float(risen[top]) > value:
                break
            vertex, value = candidates[top], float(risen[top])
        return (vertex, ended) if value >= float(heights[0]) else (y, done)

    def flips(self, start: Tensor, pairs: bool) -> Tensor:
        """Change one sign, or also two, while that rises, the best change first; an interior start may be better."""
        vertex = torch.where(start < 0, -1.0, 1.0).double()
        groups: list[tuple[int, ...]] = [(i,) for i in range(len(start))]
        if pairs:
            groups += list(combinations(range(len(start)), 2))
        masks = torch.ones(len(groups), len(start), dtype=torch.float64)
        for row, group in enumerate(groups):
            masks[row, list(group)] = -1.0
        inside, value = self.values(torch.stack([start, vertex]) * self.bounds).tolist()
        for _ in range(2 * len(start)):
            candidates = masks * vertex
            risen = self.values(candidates * self.bounds)
            top = int(risen.argmax())
            if not float(risen[top]) > value:
                break
            vertex, value = candidates[top], float(risen[top])
        return start if inside > value else vertex

    def best_of(self, points: list[Tensor]) -> Tensor:
        """Return the highest of some points."""
        return points[int(self.values(torch.stack(points) * self.bounds).argmax())]
