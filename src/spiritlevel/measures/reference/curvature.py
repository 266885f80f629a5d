"""Measures of curvature, written out with the dense Hessian."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spiritlevel.inputs.weight_matrices import as_matrix
from spiritlevel.measures.reference.dense import Dense


def hessian_trace(dense: Dense, **_: object) -> float:
    """Sum of the dense Hessian's diagonal."""
    return float(dense.hessian.trace())


def ggn_trace(dense: Dense) -> float:
    """Sum of the dense Gauss–Newton matrix's diagonal."""
    return float(dense.ggn.trace())


def hessian_top_eigenvalue(dense: Dense, **_: object) -> float:
    """Largest eigenvalue of the dense Hessian."""
    return float(torch.linalg.eigvalsh(dense.hessian)[-1])


def hessian_spectral_norm(dense: Dense, **_: object) -> float:
    """Largest eigenvalue in magnitude."""
    return float(torch.linalg.eigvalsh(dense.hessian).abs().max())


def hessian_frobenius(dense: Dense, form: str = "norm", **_: object) -> float:
    """Frobenius norm, its square, or its square over the number of parameters."""
    square = float(dense.hessian.square().sum())
    forms = {"norm": math.sqrt(square), "squared": square, "squared_per_parameter": square / len(dense.theta)}
    return forms[form]


def hessian_log_volume(dense: Dense, k: int = 10, **_: object) -> float:
    """Sum of the logarithms of the k largest eigenvalues."""
    return float(torch.linalg.eigvalsh(dense.hessian)[-k:].log().sum())


def _weights(dense: Dense) -> list[str]:
    return list(dense.problem.weights.values())


def _module(dense: Dense, full: str) -> torch.nn.Module:
    return dense.model.get_submodule(full.rpartition(".")[0])


def kappa(dense: Dense, reduce: str, trace: bool, per_numel: bool = False, **_: object) -> float:
    """‖w_l‖² times λ_max or the trace of H_ll, over the last layer, its largest, or summed."""
    values = []
    for full in _weights(dense):
        block, weight = dense.block(full), dense.tensor(full)
        curvature = block.trace() if trace else torch.linalg.eigvalsh(block)[-1]
        values.append(float(weight.square().sum() * curvature / (weight.numel() if per_numel else 1)))
    return {"last": values[-1], "max": max(values), "sum": sum(values)}[reduce]


def quadratic_forms(dense: Dense, full: str, neuron: str) -> Tensor:
    """wᵀHw over each row, each column, or the whole of one weight."""
    weight = dense.tensor(full)
    index = torch.arange(weight.numel()).reshape(weight.shape)
    groups = as_matrix(_module(dense, full), index, weight)
    if neuron == "in":
        parts = groups.flatten(2).flatten(0, 1)
    elif neuron == "out":
        parts = groups.transpose(1, 2).flatten(2).flatten(0, 1)
    else:
        parts = index.reshape(1, -1)
    block, flat = dense.block(full), weight.reshape(-1)
    return torch.stack([flat[part] @ block[part][:, part] @ flat[part] for part in parts])


def rho(dense: Dense, reduce: str, neuron: str = "in", **_: object) -> float:
    """Largest or summed quadratic form over neurons and layers."""
    values = [quadratic_forms(dense, full, neuron) for full in _weights(dense)]
    return float(max(v.max() for v in values)) if reduce == "max" else float(sum(v.sum() for v in values))


def relative_flatness(dense: Dense, layer: str = "last", **_: object) -> float:
    """Σ⟨w_s, w_s'⟩ Tr H_ss' over rows s, s'."""
    values = []
    for full in _weights(dense):
        weight = dense.tensor(full)
        index = as_matrix(_module(dense, full), torch.arange(weight.numel()).reshape(weight.shape), weight).flatten(2)
        block, flat = dense.block(full), weight.reshape(-1)
        total = 0.0
        for group in index:
            for row in group:
                for other in group:
                    total += float((flat[row] @ flat[other]) * block[row][:, other].diagonal().sum())
        values.append(total)
    return {"last": values[-1], "sum": sum(values), "max": max(values)}[layer]
