"""Errors of sums whose variance few samples hold: as wide as few draws of these deserve."""

from __future__ import annotations

import pytest
import torch

from spiritlevel.engine.passes.sample_spread import SampleSpread
from spiritlevel.engine.passes.sampled_form import Pooled


def pooled(scales: torch.Tensor, draws: int, sweeps: int, generator: torch.Generator) -> tuple[float, float]:
    """Return the mean over samples of normal draws with standard deviations (B,) about 0, and its stated error."""
    found, spread, freedom = Pooled(), None, 0
    for _ in range(sweeps):
        values = torch.randn(draws, len(scales), generator=generator, dtype=torch.float64) * scales
        own = SampleSpread(["weight"])
        own.begin(len(scales), draws)
        own.add("trace", "weight", slice(0, draws), slice(0, len(scales)), values)
        own.end()
        own = own.scaled(len(scales))
        spread = own if spread is None else spread.pooled(freedom, own, draws - 1)
        freedom += draws - 1
        found.add(values.mean(1), own.variance("trace", {"weight": 1.0}), spread.sharers("trace"))
    return float(found.mean), float(found.stderr)


@pytest.mark.parametrize("sweeps", [1, 2])
@pytest.mark.parametrize("held_by", [1, 3, 200])
def test_errors_cover_however_few_samples_hold_the_variance(held_by: int, sweeps: int) -> None:
    generator = torch.Generator().manual_seed(5)
    scales = torch.full((200,), 1e-3, dtype=torch.float64)
    scales[:held_by] = 1.0
    runs = [pooled(scales, 4, sweeps, generator) for _ in range(400)]
    covered = sum(abs(mean) <= 1.96 * error for mean, error in runs) / len(runs)
    assert covered > 0.92
    true = float(scales.square().sum().sqrt()) / 200 / (4 * sweeps) ** 0.5
    typical = sorted(error for _, error in runs)[200]
    assert typical < {1: 1.75, 3: 1.6, 200: 1.02}[held_by] * true  # no wider than it has to be
