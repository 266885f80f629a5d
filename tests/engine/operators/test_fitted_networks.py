"""Networks in float32 that fit every sample to within rounding: what is differentiated there must not cancel."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl


def fitted(outputs: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network and data it fits, with a margin in its outputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, outputs))
    x = torch.randn(60, 6)
    with torch.no_grad():
        scores = model(x)
        y = scores.argmax(1) if outputs > 1 else (scores > 0).float()
        margin = scores.topk(2).values.diff().abs().squeeze(1) if outputs > 1 else scores.abs().squeeze(1)
        kept = margin > margin.median()
    return model, x[kept], y[kept]


@pytest.mark.parametrize(("loss", "outputs"), [("cross_entropy", 3), ("binary_cross_entropy", 1)])
@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
def test_eigenvalues_gradients_and_losses_are_those_of_float64(loss: str, outputs: int, scale: float) -> None:
    model, x, y = fitted(outputs)
    with torch.no_grad():
        for parameter in model[2].parameters():  # type: ignore[index]
            parameter.mul_(scale)
    precise = copy.deepcopy(model).double()
    labels = y.double() if outputs == 1 else y
    single = sl.measure(sl.Problem(model, (x, y), loss), ["hessian_top_eigenvalue", "hessian_trace"])
    double = sl.measure(sl.Problem(precise, (x.double(), labels), loss), ["hessian_top_eigenvalue", "hessian_trace"])
    truth = double["hessian_top_eigenvalue"]
    low, high = single["hessian_top_eigenvalue"].interval
    assert low - 1e-5 * truth.value <= truth.value <= high + 1e-5 * truth.value
    assert single["hessian_trace"].value == pytest.approx(double["hessian_trace"].value, rel=1e-3)
    assert single.loss == pytest.approx(double.loss, rel=1e-3)
    assert single.header.gradient_norm == pytest.approx(double.header.gradient_norm, rel=1e-3)
