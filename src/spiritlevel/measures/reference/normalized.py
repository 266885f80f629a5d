"""Normalised sharpness by a generic minimiser on the dense Hessian's diagonal."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from spiritlevel.inputs.weight_matrices import as_matrix
from spiritlevel.measures.reference.dense import Dense


def _clipped(h: Tensor, clip: str) -> Tensor:
    return {"zero": h.clamp(min=0), "abs": h.abs(), "none": h}[clip]


def matrix_normalized_sharpness(dense: Dense, include_biases: bool = True, clip: str = "zero", **_: object) -> float:
    """Σ over weights of √(‖W‖²_F · Σ clipped diagonal)."""
    total = 0.0
    diagonal = dense.hessian.diagonal()
    for name, part in dense.slices.items():
        if include_biases or len(dense.shapes[name]) >= 2:
            total += float((dense.theta[part].square().sum() * _clipped(diagonal[part], clip).sum()).sqrt())
    return total


def normalized_sharpness(dense: Dense, lam: float = 0.5, clip: str = "zero", **_: object) -> float:
    """Σ over weights of the minimum of Σ h u v + W²/(u v), by BFGS in the logarithms."""
    total = 0.0
    for full in dense.problem.weights.values():
        module = dense.model.get_submodule(full.rpartition(".")[0])
        weight = dense.tensor(full)
        h = _clipped(dense.hessian.diagonal()[dense.slices[full]].reshape(weight.shape), clip)
        for h_group, w_group in zip(as_matrix(module, h, weight).sum(-1), as_matrix(module, weight**2, weight).sum(-1)):
            total += _minimum(h_group.numpy(), w_group.numpy())
    return float(total * (0.5 / lam) ** 0.5)


def _minimum(h: np.ndarray, w2: np.ndarray) -> float:
    from scipy.optimize import minimize

    while True:
        rows = (h.sum(1) > 0) & (w2.sum(1) > 0)
        columns = (h.sum(0) > 0) & (w2.sum(0) > 0)
        if rows.all() and columns.all():
            break
        h, w2 = h[rows][:, columns], w2[rows][:, columns]
    if h.size == 0:
        return 0.0
    m, n = h.shape
    scale = float((h.sum() * w2.sum()) ** 0.5)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        grown = np.exp(z[:m, None] + z[None, m:])
        a, b = h * grown / scale, w2 / grown / scale
        return float((a + b).sum()), np.concatenate([(a - b).sum(1), (a - b).sum(0)])

    start = np.full(m + n, 0.25 * np.log(w2.sum() / h.sum()))
    found = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-12, "maxiter": 20_000})
    return float(found.fun) * scale
