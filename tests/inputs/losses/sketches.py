"""What every sketch is held against: its mean, and the draws of a sample, which belong to it alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spiritlevel.inputs import losses as sl
from tests.inputs.losses.derivatives import assembled


def assert_unbiased(
    loss: sl.Loss, outputs: Tensor, batch: Any, draws: int = 40_000, expected: Tensor | None = None
) -> None:
    factor = loss.factor(outputs, batch, limit=1, draws=draws, generator_seed=5)
    assert not factor.exact
    assert factor.draws == draws
    if expected is None:
        expected = assembled(loss.factor(outputs, batch, limit=10_000))
    columns = factor.columns.reshape(*factor.signs.shape, -1).unflatten(0, (draws, -1))
    each = torch.einsum("dcb,dcbi,dcbj->dbij", factor.signs.unflatten(0, (draws, -1)), columns, columns)
    error = each.std(0) / draws**0.5
    assert (each.mean(0) - expected).abs().le(4.5 * error + 1e-12 * expected.abs().max()).all()
    assert bool((factor.signs == 1).all()) or not factor.psd


def assert_signs_belong_to_the_sample(loss: sl.Loss, outputs: Tensor, batch_of: Callable[[Tensor], Any]) -> None:
    everything = torch.arange(len(outputs))
    whole = loss.factor(outputs, batch_of(everything), limit=1, draws=3, indices=everything + 100)
    chosen = torch.tensor([4, 1])
    part = loss.factor(outputs[chosen], batch_of(chosen), limit=1, draws=3, indices=chosen + 100)
    torch.testing.assert_close(part.columns, whole.columns[:, chosen], rtol=1e-12, atol=1e-15)
    other = loss.factor(outputs, batch_of(everything), limit=1, draws=3, indices=everything + 100, generator_seed=1)
    assert not torch.allclose(other.columns, whole.columns)
