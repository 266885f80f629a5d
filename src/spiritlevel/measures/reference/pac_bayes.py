"""Brute force for the PAC-Bayes quantities: generic minimisers in place of closed forms, dense noise, many draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.measures.reference.dense import Dense


def _matrices(dense: Dense) -> list[tuple[slice, int, int]]:
    found = []
    for name in dense.problem.weights.values():
        shape = dense.shapes[name]
        if len(shape) != 2:
            raise ValueError(f"the reference knows weights of two dimensions only, and {name} has {len(shape)}")
        found.append((dense.slices[name], shape[0], shape[1]))
    return found


def _deviations(dense: Dense, logs: Tensor) -> Tensor:
    """Return σ of every parameter, 0 where there is no noise, from the stacked logarithms of rows and columns."""
    parts, start = [torch.zeros_like(dense.theta)], 0
    for place, rows, columns in _matrices(dense):
        products = logs[start : start + rows, None] + logs[None, start + rows : start + rows + columns]
        spread = torch.zeros_like(dense.theta)
        parts.append(spread.index_put((torch.arange(place.start, place.stop),), products.exp().reshape(-1)))
        start += rows + columns
    return torch.stack(parts).sum(0)


def _minimise(objective: Any, count: int) -> Tensor:
    from scipy.optimize import minimize

    def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
        logs = torch.from_numpy(x.copy()).requires_grad_()
        value = objective(logs)
        (gradient,) = torch.autograd.grad(value, logs)
        return float(value.detach()), gradient.numpy()

    found = minimize(
        negative, np.full(count, -1.0), jac=True, method="L-BFGS-B", options={"maxiter": 500, "ftol": 1e-14}
    )
    return torch.from_numpy(found.x)


def _count(dense: Dense) -> int:
    return sum(rows + columns for _, rows, columns in _matrices(dense))


def normalized_sharpness_direct(
    dense: Dense, lam: float | None = None, pairs: int = 48, judged: int = 1000, **settings: Any
) -> float:
    """Return the minimum over scales for fixed noise, judged on other noise."""
    lam = float(len(dense.samples)) if lam is None else lam
    generator = torch.Generator().manual_seed(20190114)
    noise = torch.randn(pairs, len(dense.theta), generator=generator, dtype=torch.float64)

    def cost(deviations: Tensor) -> Tensor:
        used = deviations > 0
        return (dense.theta[used].square() / (2 * lam * deviations[used].square())).sum()

    def objective(logs: Tensor) -> Tensor:
        deviations = _deviations(dense, logs)
        losses = [dense.loss_at(dense.theta + sign * deviations * row) for row in noise for sign in (1, -1)]
        return torch.stack(losses).mean() - dense.loss + cost(deviations)

    with torch.no_grad():
        deviations = _deviations(dense, _minimise(torch.enable_grad()(objective), _count(dense)))
        total = 0.0
        for _ in range(judged):
            step = deviations * torch.randn(len(dense.theta), generator=generator, dtype=torch.float64)
            total += float(dense.loss_at(dense.theta + step) + dense.loss_at(dense.theta - step)) / 2
        return total / judged - dense.loss + float(cost(deviations))


def pac_bayes_terms(dense: Dense, delta: float = 0.05, grid: int = 8, many: int = 400, **settings: Any) -> float:
    """Return the smallest bound over λ with variances from a generic minimiser of (17)."""
    h = dense.hessian.diagonal().clamp(min=0)
    samples = len(dense.samples)
    labels = torch.cat([content[1] for content in dense.batches])
    generator = torch.Generator().manual_seed(20190114)
    bounds = []
    for lam in np.geomspace(math.sqrt(samples), 2 * samples, grid):

        def objective(logs: Tensor, lam: float = float(lam)) -> Tensor:
            squares = _deviations(dense, logs).square()
            used = squares > 0
            return (h * squares)[used].sum() + (dense.theta[used].square() / (2 * lam * squares[used])).sum()

        deviations = _deviations(dense, _minimise(objective, _count(dense)))
        used = deviations > 0
        divergence = float((dense.theta[used] / deviations[used]).square().sum() / 2)
        wrong = 0.0
        with torch.no_grad():
            for _ in range(many):
                theta = dense.theta + deviations * torch.randn(len(h), generator=generator, dtype=torch.float64)
                outputs = torch.cat([dense.outputs(theta, content) for content in dense.batches])
                wrong += float((outputs.argmax(1) != labels).double().mean())
        slack = divergence + math.log(grid / delta) + lam**2 / (2 * samples)
        bounds.append(wrong / many + slack / lam)
    return float(min(bounds))
