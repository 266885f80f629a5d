"""Gaussian likelihoods and contrastive pairs against torch, dense second derivatives and their own formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs import losses as sl
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.inputs.losses.derivatives import assert_second_derivative, assert_total, randint, randn
from tests.inputs.losses.sketches import assert_signs_belong_to_the_sample, assert_unbiased


@pytest.mark.parametrize(
    ("shape", "labels", "axis"),
    [
        ((6, 2), (6,), -1),
        ((6, 2), (6, 1), -1),
        ((6, 8), (6, 4), -1),
        ((4, 3, 2), (4, 3), -1),
        ((4, 3, 4), (4, 3, 2), -1),
        ((4, 2, 3), (4, 3), 1),
        ((3, 4, 2, 3), (3, 2, 2, 3), 1),
    ],
)
def test_gaussian_nll_is_torchs(shape: tuple[int, ...], labels: tuple[int, ...], axis: int) -> None:
    outputs, target = 2 * randn(*shape), randn(*labels, seed=2)
    mean, log = outputs.chunk(2, axis)
    expected = F.gaussian_nll_loss(mean, target.reshape(mean.shape), log.exp(), eps=1e-300)
    assert_total(sl.GaussianNLL(), outputs, (None, target), expected)
    assert_second_derivative(sl.GaussianNLL(), outputs, (None, target))
    factor = sl.GaussianNLL().factor(outputs, (None, target))
    assert factor.exact
    assert set(factor.signs.unique().tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("residual", [0.0, 1e-12, 1e-3, 2**0.5, 1e3, 1e8])
def test_gaussian_nll_keeps_its_digits_near_and_far(residual: float) -> None:
    """The two eigenvalues by their sum and product, which the 2 × 2 block gives without cancelling."""
    outputs = torch.tensor([[residual, 0.7]], dtype=torch.float64)
    positive, negative = sl.GaussianNLL().factor(outputs, (None, torch.zeros(1))).columns[:, 0]
    block = torch.exp(torch.tensor(-0.7, dtype=torch.float64)) * torch.tensor(
        [[1.0, -residual], [-residual, residual**2 / 2]], dtype=torch.float64
    )
    found = torch.outer(positive, positive) - torch.outer(negative, negative)
    torch.testing.assert_close(found, block, rtol=1e-13, atol=1e-15 * float(block.abs().max()))
    assert abs(float(positive @ negative)) <= 1e-14 * float(positive.norm() * negative.norm())
    determinant = -float(positive.square().sum() * negative.square().sum())
    assert determinant == pytest.approx(float(block[0, 0] ** 2) * -(residual**2) / 2, rel=1e-12)


def test_contrastive_pairs_are_the_papers() -> None:
    outputs, alike = 0.3 * randn(7, 2, 3), torch.tensor([1, 0, 1, 0, 0, 1, 0])
    outputs[4] *= 20  # far beyond the margin
    outputs[5, 1] = outputs[5, 0]  # alike and the same
    losses, weights = sl.ContrastivePairs(1.5).per_sample(outputs, (None, alike))
    distance = (outputs[:, 0] - outputs[:, 1]).norm(dim=1)
    expected = torch.where(alike == 1, 0.5 * distance**2, 0.5 * (1.5 - distance).clamp(min=0) ** 2)
    torch.testing.assert_close(losses, expected)
    assert weights.tolist() == [1.0] * 7
    assert losses[4] == 0
    assert losses[[1, 3, 6]].max() > 0
    for labels in (alike, alike.double()):
        assert_second_derivative(sl.ContrastivePairs(1.5), outputs, (None, labels))
    factor = sl.ContrastivePairs(1.5).factor(outputs, (None, alike))
    assert factor.exact
    assert factor.signs.min() == -1


def test_sketches_of_gaussians_and_pairs() -> None:
    outputs, target = randn(5, 6), randn(5, 3, seed=2)
    assert_unbiased(sl.GaussianNLL(), outputs, (None, target), draws=20_000)
    assert_signs_belong_to_the_sample(sl.GaussianNLL(), outputs, lambda chosen: (None, target[chosen]))
    images, target = randn(5, 2, 2, 2), randn(5, 1, 2, 2, seed=2)
    assert_unbiased(sl.GaussianNLL(), images, (None, target), draws=20_000)
    pairs, alike = 0.4 * randn(5, 2, 4), randint(2, 5, seed=4)
    assert set(alike.tolist()) == {0, 1}
    assert_unbiased(sl.ContrastivePairs(2.0), pairs, (None, alike), draws=20_000)
    assert_signs_belong_to_the_sample(sl.ContrastivePairs(2.0), pairs, lambda chosen: (None, alike[chosen]))


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "words"),
    [
        (sl.GaussianNLL(), randn(3, 3), torch.zeros(3), r"labels of shape \(3,\) .*half of the outputs"),
        (sl.GaussianNLL(), randn(3), torch.zeros(3), "half of the outputs"),
        (sl.GaussianNLL(), randn(3, 4), torch.zeros(3, 4), "half of the outputs"),
        (sl.GaussianNLL(), randn(3, 2, 2), torch.zeros(3, 2), r"GaussianNLL\(axis=1\)"),
        (sl.ContrastivePairs(), randn(3, 4), torch.ones(3), r"torch.stack\(model\(...\), 1\)"),
        (sl.ContrastivePairs(), randn(3, 2, 4), torch.ones(3, 1), r"labels of shape \(3, 1\)"),
        (sl.ContrastivePairs(), randn(3, 2, 4), torch.tensor([1, -1, 1]), "label -1 at pair 1"),
    ],
)
def test_what_does_not_fit_is_said(loss: sl.Loss, outputs: Tensor, labels: Tensor, words: str) -> None:
    for call in (loss.per_sample, loss.factor):
        with pytest.raises(UsageError, match=words):
            call(outputs, (None, labels))


def test_the_axis_of_the_halves_can_be_said() -> None:
    outputs, labels = randn(3, 2, 2), randn(3, 2, seed=2)
    for axis in (1, -1):
        mean, log = outputs.unbind(axis)
        expected = F.gaussian_nll_loss(mean, labels, log.exp(), eps=1e-300)
        assert_total(sl.GaussianNLL(axis), outputs, (None, labels), expected)
        assert_second_derivative(sl.GaussianNLL(axis), outputs, (None, labels))


@pytest.mark.parametrize("make", [lambda: sl.GaussianNLL(2), lambda: sl.ContrastivePairs(0.0)])
def test_impossible_settings_are_refused(make: Any) -> None:
    with pytest.raises(UsageError, match=r"axis is 2|margin is 0\.0"):
        make()


def test_pairs_that_meet_and_are_not_alike_have_a_kink() -> None:
    outputs = torch.zeros(2, 2, 3, dtype=torch.float64)
    outputs[0, 0] = 0.1
    with pytest.raises(SpiritlevelError, match=r"pair 1 .* kink"):
        sl.ContrastivePairs().factor(outputs, (None, torch.tensor([0, 0])))
    assert sl.ContrastivePairs().factor(outputs, (None, torch.tensor([0, 1]))).exact
