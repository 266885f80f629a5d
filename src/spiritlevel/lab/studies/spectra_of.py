"""Eigenvalues, trace and Frobenius norm of a network's Hessian for the studies' rows."""

from __future__ import annotations

import copy

import torch
from torch import nn

from spiritlevel.engine.estimators.eigenvalues import Which, top_eigenpairs
from spiritlevel.engine.estimators.lanczos import lanczos
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.quadrature import frobenius_squared, lanczos_trace
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.open_problem import Measurable
from spiritlevel.lab.datasets import LabelledData
from spiritlevel.lab.studies.study import Row


def without_dropout(model: nn.Module) -> nn.Module:
    """Return a copy that draws nothing at random, so that train-mode statistics alone differ from evaluation mode."""
    still = copy.deepcopy(model)
    for module in still.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return still


def top_eigenvalue(problem: Measurable, *, which: Which = "largest", tolerance: float = 1e-2, seed: int = 0) -> float:
    """Return an extreme eigenvalue of the Hessian."""
    found = top_eigenpairs(
        HessianOperator(problem).matvec,
        problem.size,
        1,
        which,
        tolerance=tolerance,
        max_sweeps=60,
        seed=seed,
        dtype=problem.dtype,
        device=problem.device,
    )
    return float(found.values[0])


def spectrum_row(
    model: nn.Module, data: LabelledData, *, mode: str = "eval", batch_size: int = 500, quick: bool = False
) -> Row:
    """Return λ₁, λ_min, trace, ‖H‖_F and ‖H‖_F²/P of the unregularised loss over some data.

    ``quick`` spends a few products where large networks are only to be shown to run.
    """
    probes, steps = (2, 2) if quick else (6, 12)
    problem = Problem(without_dropout(model), data.tensors, mode=mode, batch_size=batch_size)
    start = random_signs(problem.size, probes, seed=0, dtype=problem.dtype, device=problem.device)
    run = lanczos(HessianOperator(problem).matvec, start, min(steps, problem.size), seed=0)
    square = max(frobenius_squared(run).value, 0.0)
    return {
        "top_eigenvalue": float(run.ritz_values.max()) if quick else top_eigenvalue(problem),
        "smallest_eigenvalue": float(run.ritz_values.min()),
        "trace": lanczos_trace(run).value,
        "frobenius": square**0.5,
        "frobenius_squared_per_parameter": square / problem.size,
    }


def norm_of_weights(model: nn.Module) -> float:
    """Return ‖w‖₂ over all parameters."""
    return float(torch.cat([p.detach().double().flatten() for p in model.parameters()]).norm())
