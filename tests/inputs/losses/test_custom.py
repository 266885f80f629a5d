"""Losses that users write: their derivatives, their batches, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs import losses as sl
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.inputs.losses.derivatives import assembled, assert_second_derivative, assert_total, focal, randint, randn


def weighted_focal(outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    return focal(outputs, batch), batch[2]


def test_callable_loss() -> None:
    outputs, labels = 2 * randn(6, 4), randint(4, 6)
    loss = sl.CallableLoss(focal)
    assert loss.name == "focal"
    assert_total(loss, outputs, (None, labels), focal(outputs, (None, labels)).mean())
    assert_second_derivative(loss, outputs, (None, labels))
    assert loss.factor(outputs, (None, labels)).signs.min() == -1
    positions, labels = randn(4, 3, 4), randint(4, 4, 3)
    weights = torch.tensor([[1.0, 0.5, 0.0], [2.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0, 3.0]])
    batch = (None, labels, weights.double())
    expected = (focal(positions, batch) * weights).sum() / weights.sum()
    assert_total(sl.CallableLoss(weighted_focal), positions, batch, expected)
    assert_second_derivative(sl.CallableLoss(weighted_focal), positions, batch)


def test_callable_loss_is_formed_in_float64() -> None:
    """A confident float32 sample keeps its curvature; float32 constants inside the function are tolerated."""
    outputs, labels = torch.tensor([[20.0, 0.0, 1.0]]), torch.tensor([0])

    def plain(f: Tensor, batch: Any) -> Tensor:
        return F.cross_entropy(f, batch[1], reduction="none")

    def with_constant(f: Tensor, batch: Any) -> Tensor:
        return plain(f @ torch.eye(3), batch)

    truth = sl.softmax_impurity(outputs).item()
    factor = sl.CallableLoss(plain).factor(outputs, (None, labels))
    assert factor.columns.dtype == torch.float32
    assert factor.columns.double().square().sum().item() == pytest.approx(truth, rel=1e-5, abs=0)
    assert sl.CallableLoss(with_constant).factor(0.1 * outputs, (None, labels)).exact


class Pair(NamedTuple):
    inputs: Any
    target: Tensor


@pytest.mark.parametrize("container", ["named tuple", "list", "dict"])
def test_callable_loss_sees_its_own_kind_of_batch(container: str) -> None:
    outputs, target = randn(3, 4).float(), randn(3, 4, seed=2).float()
    kinds: dict[str, tuple[Any, Callable[[Any], Tensor]]] = {
        "named tuple": (Pair(None, target), lambda batch: batch.target),
        "list": ([None, target], lambda batch: batch.copy()[1]),
        "dict": ({"target": target}, lambda batch: batch["target"]),
    }
    batch, target_of = kinds[container]
    loss = sl.CallableLoss(lambda f, b: F.mse_loss(f, target_of(b), reduction="none").sum(1))
    expected = 2 * torch.eye(4, dtype=torch.float64).expand(3, 4, 4)
    torch.testing.assert_close(assembled(loss.factor(outputs, batch)).double(), expected, rtol=1e-6, atol=1e-6)
    assert target_of(batch).dtype == torch.float32


def test_callable_loss_linear_in_the_outputs_has_no_curvature() -> None:
    loss = sl.CallableLoss(lambda f, batch: f.abs().sum(1))
    assert loss.factor(randn(3, 4), (None,)).columns.abs().max() == 0
    assert loss.hessian_product(randn(3, 4), (None,), randn(2, 3, 4)).abs().max() == 0


@pytest.mark.parametrize(
    ("fn", "words"),
    [
        (lambda f, batch: F.cross_entropy(f, batch[1]), r"shape \(\) for 3 samples"),
        (lambda f, batch: 1.0, "type float"),
        (lambda f, batch: (f.sum(1), f), "weights"),
        (lambda f, batch: (f.sum(1), -torch.ones(3)), "weights"),
    ],
)
def test_callable_loss_refuses_what_has_no_samples(fn: Callable[..., Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        sl.CallableLoss(fn).per_sample(randn(3, 4), (None, randint(4, 3)))


def test_callable_loss_refuses_coupled_samples_and_numbers() -> None:
    batch = (None, randint(4, 3))
    with pytest.raises(SpiritlevelError, match="couples the samples"):
        sl.CallableLoss(lambda f, b: (f - f.mean(0)).square().sum(1)).factor(randn(3, 4), batch)
    with pytest.raises(SpiritlevelError, match="cannot be differentiated"):
        sl.CallableLoss(lambda f, b: f.detach().sum(1)).factor(randn(3, 4), batch)
