"""Brute force for measures of finite moves: many draws of noise, every vertex of a box."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spiritlevel.measures.reference.dense import Dense

ENUMERATED = 12  # coordinates; beyond that the vertices are too many to visit
STARTS = 64


def noise_curvature(
    dense: Dense, radii: Sequence[float] = (1e-3, 3e-3, 1e-2), many: int = 2000, **settings: Any
) -> float:
    """Return the mean second difference at the middle radius over many draws of its own."""
    radius = float(radii[len(radii) // 2])
    generator = torch.Generator().manual_seed(20190115)
    total = 0.0
    for _ in range(many):
        step = radius * torch.randn(len(dense.theta), generator=generator, dtype=torch.float64)
        with torch.no_grad():
            total += float(dense.loss_at(dense.theta + step) + dense.loss_at(dense.theta - step)) - 2 * dense.loss
    return total / many / radius**2


def keskar_sharpness(dense: Dense, eps: float = 1e-3, **settings: Any) -> float:
    """Return the largest value over all vertices of the box, which is the maximum where the loss is convex.

    With more than twelve parameters: over the vertices that ascent from many random ones comes to.
    """
    bounds = eps * (dense.theta.abs() + 1)
    with torch.no_grad():
        losses = [float(dense.loss_at(dense.theta + vertex * bounds)) for vertex in _vertices(dense, bounds)]
    highest = max(max(losses) - dense.loss, 0.0)
    return 100 * highest / (1 + dense.loss)


def _vertices(dense: Dense, bounds: Tensor) -> list[Tensor]:
    count = len(bounds)
    if count <= ENUMERATED:
        bits = torch.arange(2**count)[:, None] >> torch.arange(count)
        return list(2.0 * (bits % 2).double() - 1.0)
    generator = torch.Generator().manual_seed(20170415)
    found = []
    for _ in range(STARTS):
        vertex = 2.0 * torch.randint(0, 2, (count,), generator=generator).double() - 1.0
        for _ in range(50):
            found.append(vertex)
            with torch.enable_grad():
                theta = (dense.theta + vertex * bounds).requires_grad_()
                (gradient,) = torch.autograd.grad(dense.loss_at(theta), theta)
            following = torch.where(gradient < 0, -1.0, 1.0).double()
            if bool((following == vertex).all()):
                break
            vertex = following
    return found
