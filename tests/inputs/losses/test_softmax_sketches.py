"""Sketches of many classes: of the second derivative itself, of confident samples too, and less noisy than others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spiritlevel.inputs import losses as sl
from spiritlevel.inputs.losses.softmax import LEADING, softmax_factor_times, softmax_sketch_times
from tests.inputs.losses.derivatives import randint, randn


def factor_of(times: object, logits: Tensor) -> Tensor:
    """The factor's columns, (C - 1, ..., C)."""
    columns = logits.shape[-1] - 1
    unit = torch.eye(columns, dtype=torch.float64).view(columns, *[1] * (logits.dim() - 1), columns)
    return times(logits, unit.expand(columns, *logits.shape[:-1], columns))  # type: ignore[operator]


@pytest.mark.parametrize("classes", [2, 3, LEADING, LEADING + 1, 40, 200])
@pytest.mark.parametrize("scale", [0.0, 1.0, 8.0])
def test_the_sketches_factor_is_one_of_the_second_derivative(classes: int, scale: float) -> None:
    logits = scale * randn(3, 2, classes)
    p = torch.softmax(logits, -1)
    expected = torch.diag_embed(p) - p[..., None] * p[..., None, :]
    columns = factor_of(softmax_sketch_times, logits)
    found = torch.einsum("kbti,kbtj->btij", columns, columns)
    assert (found - expected).abs().max() < 1e-15


@pytest.mark.parametrize("margin", [40.0, 300.0, 700.0, 900.0])
def test_confident_samples_keep_their_digits(margin: float) -> None:
    logits = randn(40, seed=3)
    logits[7] += margin
    sketch, cholesky = (factor_of(times, logits[None]) for times in (softmax_sketch_times, softmax_factor_times))
    assert torch.isfinite(sketch).all()
    found, expected = sketch.square().sum((0, 1)), cholesky.square().sum((0, 1))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-300)


def noise(columns: Tensor, gram: Tensor) -> float:
    """Variance of ‖Jᵀ F ε‖² over signs, 2 Σ_{j≠k} (F_jᵀ JJᵀ F_k)²."""
    forms = columns @ gram @ columns.T
    return float(2 * (forms.square().sum() - forms.diagonal().square().sum()))


def test_leading_classes_first_are_less_noise() -> None:
    """Features of a layer below plus the last layer's own, as in a network, over samples from unsure to confident."""
    below = randn(200, 24, seed=5)
    gram = below @ below.T / 24 + 2 * torch.eye(200, dtype=torch.float64)
    for scale, share in ((0.0, 1.01), (1.0, 0.8), (3.0, 0.6), (6.0, 0.6)):
        logits = scale * randn(6, 200, seed=6)
        sums = [
            sum(noise(factor_of(times, row[None])[:, 0], gram) for row in logits)
            for times in (softmax_sketch_times, softmax_factor_times)
        ]
        assert sums[0] < share * sums[1], scale


def test_the_trace_of_a_thousand_classes_is_known_after_ten_columns() -> None:
    """Σ‖s‖² over ten draws and a few samples against 1 - ‖p‖², in the mean over seeds and in its spread."""
    outputs, labels = 3 * randn(16, 1000), randint(1000, 16)
    truth = float(sl.softmax_impurity(outputs).mean())
    found = []
    for seed in range(30):
        factor = sl.CrossEntropy().factor(outputs, (None, labels), draws=10, generator_seed=seed)
        found.append(float(factor.columns.square().sum(2).mean()))
    values = torch.tensor(found, dtype=torch.float64)
    error = float(values.std())
    assert error < 0.02 * truth
    assert abs(float(values.mean()) - truth) < 4 * error / 30**0.5
