"""The order in which training sees the data: a fresh permutation every epoch, drawn on the CPU from a seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from spiritlevel.errors import UsageError


def steps_per_epoch(samples: int, batch_size: int, drop_last: bool = False) -> int:
    """Return how many batches one epoch has."""
    if batch_size < 1:
        raise UsageError(f"batch_size={batch_size} must be at least 1.")
    steps = samples // batch_size if drop_last else -(-samples // batch_size)
    if steps == 0:
        raise UsageError(f"{samples} samples give no batch of {batch_size}: take a smaller batch_size.")
    return steps


def epoch_batches(
    samples: int, batch_size: int, generator: torch.Generator, drop_last: bool = False
) -> Iterator[Tensor]:
    """Yield the sample indices of each batch of one epoch."""
    permutation = torch.randperm(samples, generator=generator)
    for step in range(steps_per_epoch(samples, batch_size, drop_last)):
        yield permutation[step * batch_size : (step + 1) * batch_size]


def plan_length(epochs: int | None, steps: int | None, per_epoch: int) -> int:
    """Return the number of gradient steps asked for, given as epochs or as steps but not both."""
    if (epochs is None) == (steps is None):
        raise UsageError(f"Training needs either epochs or steps, and got epochs={epochs} and steps={steps}.")
    total = steps if steps is not None else (epochs or 0) * per_epoch
    if total < 0:
        raise UsageError(f"Training cannot run for epochs={epochs}, steps={steps}: give a count that is not negative.")
    return total
