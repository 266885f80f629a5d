"""Trained networks and their reports, which tests over all measures share."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.results import Report
from spiritlevel.values.estimate import Estimate
from tests.helpers import opened
from tests.networks import PIECEWISE_LINEAR, SMOOTH

# Settings that make slow measures quick and noisy ones quieter; the same for both sides of every comparison.
SETTINGS: dict[str, dict[str, Any]] = {
    "noise_curvature": {"draws": 128},
    "hessian_log_volume": {"k": 4},
    "normalized_sharpness_direct": {"steps": 80},
    "pac_bayes_terms": {"grid": 4},
}


@cache
def trained_mlp() -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    """An MLP with biases after some training, on 20 samples it nearly fits."""
    torch.manual_seed(6)
    x = torch.randn(20, 4).double()
    teacher = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        scores = teacher(x)
        y = (scores - scores.mean(0)).argmax(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, (x, y)


@cache
def trained_conv() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return PIECEWISE_LINEAR["batch_norm_2d"].trained()


@cache
def trained_gelu() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    return SMOOTH["gelu"].trained()


NETS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, Tensor]]]] = {
    "mlp": trained_mlp,
    "conv": trained_conv,
    "gelu": trained_gelu,
}


@cache
def reported(net: str, loss: str = "cross_entropy", seed: int = 0) -> Report:
    model, data = NETS[net]()
    return sl.measure(opened(model, data, loss), "all", settings=SETTINGS, seed=seed)


def uncertainty(estimate: Estimate) -> float:
    reach = 0.0 if estimate.interval is None else max(abs(end - estimate.value) for end in estimate.interval)
    return reach + estimate.stderr
