"""Binary cross-entropy, squared error and the normalised cross-entropy against torch, the paper and dense Hessians."""

from __future__ import annotations

from decimal import Decimal, localcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs import losses as sl
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.inputs.losses.derivatives import WEIGHTS, assert_second_derivative, assert_total, randint, randn


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 5)])
@pytest.mark.parametrize("pos_weight", [None, 2.5, WEIGHTS])
def test_binary_cross_entropy_is_torchs(shape: tuple[int, ...], pos_weight: Any) -> None:
    if isinstance(pos_weight, tuple) and shape != (6, 5):
        pos_weight = pos_weight[1:2]
    outputs, labels = 3 * randn(*shape), randint(2, *shape)
    loss = sl.BinaryCrossEntropy(pos_weight)
    torch_weight = None if pos_weight is None else torch.tensor(pos_weight, dtype=torch.float64)
    expected = F.binary_cross_entropy_with_logits(outputs, labels.double(), pos_weight=torch_weight)
    assert_total(loss, outputs, (None, labels), expected)
    assert_second_derivative(loss, outputs, (None, labels))
    assert_second_derivative(loss, outputs, (None, torch.sigmoid(randn(*shape, seed=9))))


def test_binary_cross_entropy_keeps_its_digits() -> None:
    columns = sl.BinaryCrossEntropy().factor(torch.tensor([-700.0, 40.0]).double(), (None, torch.ones(2))).columns
    for got, margin in zip(columns[0].square().tolist(), (700, 40)):
        with localcontext() as context:
            context.prec = 400
            tail = 1 / (1 + Decimal(margin).exp())
            assert got == pytest.approx(float(tail * (1 - tail)), rel=2e-13, abs=0)


def test_one_logit_takes_labels_of_either_shape() -> None:
    outputs, labels = randn(4, 1), randint(2, 4)
    for loss in (sl.BinaryCrossEntropy(), sl.MeanSquaredError()):
        column = loss.per_sample(outputs, (None, labels))[0]
        torch.testing.assert_close(loss.per_sample(outputs[:, 0], (None, labels[:, None]))[0], column)
        torch.testing.assert_close(loss.per_sample(outputs, (None, labels[:, None]))[0], column)


@pytest.mark.parametrize("shape", [(6,), (6, 1), (6, 5), (4, 2, 3)])
def test_mean_squared_error_is_torchs(shape: tuple[int, ...]) -> None:
    outputs, labels = randn(*shape), randn(*shape, seed=8)
    assert_total(sl.MeanSquaredError(), outputs, (None, labels), F.mse_loss(outputs, labels))
    assert_second_derivative(sl.MeanSquaredError(), outputs, (None, labels))


def test_mean_squared_error_of_classes() -> None:
    outputs, labels = randn(6, 4), randint(4, 6)
    expected = F.mse_loss(outputs, F.one_hot(labels, 4).double())
    assert_total(sl.MeanSquaredError(one_hot=True), outputs, (None, labels), expected)
    assert_second_derivative(sl.MeanSquaredError(one_hot=True), outputs, (None, labels))


@pytest.mark.parametrize(
    ("loss", "outputs", "labels", "words"),
    [
        (sl.BinaryCrossEntropy(), randn(3, 2), torch.tensor([0, 1, 0]), r"\(3,\).*\(3, 2\)"),
        (sl.BinaryCrossEntropy(), randn(3), torch.tensor([0, 2, 0]), "label 2 at sample 1"),
        (sl.BinaryCrossEntropy((1.0, 2.0)), randn(3, 3), torch.zeros(3, 3), "pos_weight has 2"),
        (sl.MeanSquaredError(), randn(3, 2), torch.tensor([0, 1, 0]), "one_hot=True"),
        (sl.MeanSquaredError(one_hot=True), randn(3, 2), torch.tensor([0, 1, 2]), "label 2 at sample 2.*2 classes"),
        (sl.MeanSquaredError(one_hot=True), randn(3, 2), torch.zeros(3), "integer labels"),
        (sl.NormalizedCrossEntropy(), randn(3, 2, 2), torch.tensor([0, 1, 0]), "at least two classes"),
        (sl.NormalizedCrossEntropy(), randn(3, 2), torch.ones(3, 2), "integer class"),
        (sl.NextToken(), randn(3, 2), torch.tensor([0, 1, 0]), r"\(B, T, C\)"),
    ],
)
def test_other_losses_say_what_is_wrong(loss: sl.Loss, outputs: Tensor, labels: Tensor, words: str) -> None:
    for call in (loss.per_sample, loss.factor):
        with pytest.raises(UsageError, match=words):
            call(outputs, (None, labels))


def test_normalized_cross_entropy_is_the_paper_s() -> None:
    outputs, labels = 4 * randn(6, 5) + 3, randint(5, 6)
    standardised = (outputs - outputs.mean(1, keepdim=True)) / outputs.std(1, correction=0, keepdim=True)
    assert_total(sl.NormalizedCrossEntropy(), outputs, (None, labels), F.cross_entropy(standardised, labels))
    assert_second_derivative(sl.NormalizedCrossEntropy(), outputs, (None, labels))
    factor = sl.NormalizedCrossEntropy().factor(outputs, (None, labels))
    assert len(factor.columns) == 4
    assert not factor.psd
    assert set(factor.signs.unique().tolist()) == {-1.0, 1.0}
    labels[3] = -100
    assert_second_derivative(sl.NormalizedCrossEntropy(), outputs, (None, labels))


def test_normalized_cross_entropy_has_its_floor() -> None:
    """One logit above nine equal ones is the most confident a standardised sample of ten classes can be."""
    outputs = torch.zeros(1, 10, dtype=torch.float64)
    outputs[0, 3] = 1e6
    value = sl.NormalizedCrossEntropy().per_sample(outputs, (None, torch.tensor([3])))[0].item()
    assert value == pytest.approx(0.2784389, abs=1e-7)


def test_normalized_cross_entropy_refuses_equal_logits() -> None:
    outputs = randn(3, 4)
    outputs[1] = 2.0
    with pytest.raises(SpiritlevelError, match=r"sample 1 .*standard deviation"):
        sl.NormalizedCrossEntropy().per_sample(outputs, (None, randint(4, 3)))
