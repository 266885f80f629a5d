"""What every loss is held against: second derivatives, totals and unbiased sketches."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs import losses as sl


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def randint(high: int, *shape: int, seed: int = 1) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


def dense_hessians(loss: sl.Loss, outputs: Tensor, batch: Any) -> Tensor:
    """Second derivative of each sample's loss in its outputs, (B, D, D), by autograd through the whole batch."""
    samples, size = len(outputs), outputs[0].numel()
    full = torch.func.hessian(lambda flat: loss.per_sample(flat.view_as(outputs), batch)[0])(outputs.reshape(-1))
    full = full.view(samples, samples, size, samples, size)
    return torch.stack([full[b, b, :, b] for b in range(samples)])


def assembled(factor: sl.Factor) -> Tensor:
    columns = factor.columns.reshape(*factor.signs.shape, -1)
    return torch.einsum("kb,kbi,kbj->bij", factor.signs, columns, columns) / factor.draws


def assert_second_derivative(loss: sl.Loss, outputs: Tensor, batch: Any, tolerance: float = 1e-12) -> None:
    expected = dense_hessians(loss, outputs, batch)
    scale = expected.abs().max().item()
    factor = loss.factor(outputs, batch, limit=10_000)
    assert factor.exact
    assert factor.draws == 1
    assert factor.columns.shape[1:] == outputs.shape
    assert (assembled(factor) - expected).abs().max() <= tolerance * scale
    vectors = randn(3, *outputs.shape, seed=7)
    product = loss.hessian_product(outputs, batch, vectors)
    reference = torch.einsum("bij,kbj->kbi", expected, vectors.reshape(*vectors.shape[:2], -1)).view_as(vectors)
    assert product.shape == vectors.shape
    assert not product.requires_grad
    assert (product - reference).abs().max() <= 10 * tolerance * scale


def assert_total(loss: sl.Loss, outputs: Tensor, batch: Any, expected: Tensor) -> None:
    values, weights = loss.per_sample(outputs, batch)
    assert values.shape == weights.shape == (len(outputs),)
    torch.testing.assert_close((values * weights).sum() / weights.sum(), expected, rtol=1e-13, atol=0)


WEIGHTS = (0.5, 2.0, 1.25, 0.1, 3.0)


def focal(outputs: Tensor, batch: Any) -> Tensor:
    """A loss that is not convex in the logits."""
    losses = F.cross_entropy(outputs.flatten(0, -2), batch[1].flatten(), reduction="none").view(batch[1].shape)
    return (1 - torch.exp(-losses)).square() * losses
