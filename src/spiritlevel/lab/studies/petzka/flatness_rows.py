"""What every study of Petzka et al. 2019 measures of a network: κ, κτ, ρ per layer and over layers, margins, losses."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from spiritlevel.analyses.measuring import measure
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.datasets import LabelledData
from spiritlevel.lab.training import evaluate

MEASURES = (
    "hessian_trace", "kappa_last", "kappa_max", "kappa_sum", "kappa_tau_last", "kappa_tau_max", "kappa_tau_sum",
    "rho_max", "rho_sum", "relative_flatness", "normalized_sharpness", "weight_norm", "output_margin",
    "margin_skewness",
)  # fmt: skip
GPU_BATCH = 1000
FAST = tuple(name for name in MEASURES if name not in ("kappa_last", "kappa_max", "kappa_sum"))


def losses_row(model: nn.Module, data: LabelledData, test: LabelledData) -> dict[str, Any]:
    """Return loss and accuracy on the data trained on and on test data, and the gap of the losses."""
    on_train, on_test = evaluate(model, data), evaluate(model, test)
    return {
        "train_loss": on_train.loss,
        "test_loss": on_test.loss,
        "train_accuracy": on_train.accuracy,
        "test_accuracy": on_test.accuracy,
        "gap": on_test.loss - on_train.loss,
    }


def flatness_row(
    model: nn.Module, data: LabelledData, measures: tuple[str, ...] = MEASURES, batch_size: int = GPU_BATCH
) -> dict[str, Any]:
    """Return every measure, per layer too (``name@layer``, hidden layers numbered from 1), and the trace of layers.

    ``batch_size`` is a GPU's: it takes so many images at once.
    """
    device = next(model.parameters()).device
    # These networks are small: a GPU is kept busy by many images at once, not by many batches.
    together = batch_size if device.type == "cuda" else None
    problem = Problem(model, (data.x.to(device), data.y.to(device)), batch_size=together)
    report = measure(problem, measures=list(measures))
    row: dict[str, Any] = {name: float(report[name]) for name in measures}
    row["margin_tenth_percentile"] = float(np.quantile(report.per_sample["output_margin"].numpy(), 0.1))
    for quantity in ("kappa", "kappa_tau", "rho_sum", "rho_max"):
        for number, (_, estimate) in enumerate(report.per_layer.get(quantity, {}).items(), start=1):
            row[f"{quantity}@{number}"] = float(estimate)
    # κτ = ‖w‖² Tr and κ = ‖w‖² λ_max: the Hessian's own numbers are what is left without the norm.
    last_weight = list(problem.weights.values())[-1]
    norm = float(problem.chosen_parameters[last_weight].detach().double().square().sum())
    row["trace_last"] = row["kappa_tau_last"] / norm
    if "kappa_last" in row:
        row["eigenvalue_last"] = row["kappa_last"] / norm
    return row
