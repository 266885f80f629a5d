"""The order in which training sees the data: a fresh permutation every epoch, drawn on the CPU from a seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spiritlevel.values.errors import UsageError


def steps_per_epoch(samples: int, batch_size: int, drop_last: bool = False) -> int:
    """Return how many batches one epoch has."""
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size} must be at least 1.")
    steps = samples // batch_size if drop_last else -(-samples // batch_size)
    if steps == 0:
        raise UsageError(f"{samples} samples give no batch of {batch_size}: take a smaller batch_size.")
    return steps


def epoch_batches(
    samples: int,
    batch_size: int,
    generator: torch.Generator,
    drop_last: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield the sample indices of each batch of one epoch."""
    yield from _batches(torch.randperm(samples, generator=generator).to(device), batch_size, drop_last)


def stacked_epoch_batches(
    samples: int,
    batch_size: int,
    generators: Sequence[torch.Generator],
    drop_last: bool = False,
    device: torch.device | str = "cpu",
) -> Iterator[Tensor]:
    """Yield (networks, batch) indices: the batches that `epoch_batches` gives each generator, one row a network."""
    orders = torch.stack([torch.randperm(samples, generator=generator) for generator in generators])
    yield from _batches(orders.to(device), batch_size, drop_last)


def _batches(order: Tensor, batch_size: int, drop_last: bool) -> Iterator[Tensor]:
    """Cut the last axis into batches; an epoch's order moves to the device once, not batch by batch."""
    for step in range(steps_per_epoch(order.shape[-1], batch_size, drop_last)):
        yield order[..., step * batch_size : (step + 1) * batch_size]


def plan_length(epochs: int | None, steps: int | None, per_epoch: int) -> int:
    """Return the number of gradient steps asked for, given as epochs or as steps but not both."""
    if (epochs is None) == (steps is None):
        raise UsageError(f"Training needs either epochs or steps, and got epochs={epochs} and steps={steps}.")
    total = steps if steps is not None else (epochs or 0) * per_epoch
    if total < 0:
        raise UsageError(f"Training cannot run for epochs={epochs}, steps={steps}: give a count that is not negative.")
    return total
