"""Problems that have no place for some measure: each gives a number or its reason, and none raises."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.registry import MEASURES
from tests.helpers import opened
from tests.measures.trained import SETTINGS
from tests.networks import Recurrent


class OnlyBias(nn.Module):
    """No weight of two dimensions at all."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.tensor([0.5, -0.2, 0.1]))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


def _regression() -> OpenProblem:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return opened(model, (torch.randn(9, 3), torch.randn(9, 2)), "mean_squared_error")


def _from_case(model: nn.Module, shape: tuple[int, ...], classes: int = 3, **options: Any) -> OpenProblem:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(8, *shape, generator=generator)
    return opened(model, (inputs, torch.randint(0, classes, (8,), generator=generator)), **options)


def _batch_norm(mode: str) -> OpenProblem:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    return _from_case(net, (3,), mode=mode)


def _dead() -> OpenProblem:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    return _from_case(net, (3,))


def _interpolating() -> OpenProblem:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3))
    with torch.no_grad():
        net[2].weight.mul_(1e4)
    x = torch.randn(8, 3)
    return opened(net, (x, net(x).argmax(1)))


def _positions() -> OpenProblem:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5))
    tokens = torch.randint(0, 5, (6, 3))
    return opened(net, (tokens, tokens), "next_token")


def _binary() -> OpenProblem:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return opened(net, (torch.randn(8, 3), torch.randint(0, 2, (8, 1)).float()), "binary_cross_entropy")


HARD: dict[str, Callable[[], OpenProblem]] = {
    "regression": _regression,
    "gelu": lambda: _from_case(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 3)), (3,)),
    "batch_norm": lambda: _batch_norm("eval"),
    "batch_norm_training": lambda: _batch_norm("train"),
    "lstm": lambda: _from_case(Recurrent(), (2, 3)),
    "only_biases": lambda: _from_case(OnlyBias(), (3,)),
    "dead": _dead,
    "interpolating": _interpolating,
    "one_sample": lambda: opened(nn.Linear(3, 3), (torch.randn(1, 3), torch.tensor([1]))),
    "positions": _positions,
    "binary": _binary,
}


@pytest.mark.parametrize("name", HARD)
def test_no_measure_raises(name: str) -> None:
    torch.manual_seed(8)
    report = sl.measure(HARD[name](), "all", settings=SETTINGS, tolerance=0.3)
    assert list(report) == list(MEASURES)
    for measure_name, estimate in report.items():
        if estimate.status in ("ok", "budget_spent"):
            assert math.isfinite(estimate.value), measure_name
            assert math.isfinite(estimate.stderr), measure_name
            assert estimate.stderr >= 0
            if estimate.interval is not None:
                assert estimate.interval[0] <= estimate.value <= estimate.interval[1]
        if estimate.status != "ok":
            assert estimate.reason, measure_name
            assert "\n" not in estimate.reason
    assert str(report)
    if name in ("gelu", "lstm", "batch_norm"):
        # An untrained network may have a negative margin, and fewer positive eigenvalues than asked for.
        may_fail = {"spectral_complexity", "hessian_log_volume"}
        assert all(e.status != "not_applicable" for key, e in report.items() if key not in may_fail)
