"""Random signs that depend on nothing but a seed and an index, and sample means that know when to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spiritlevel.values.draws import Samples
from spiritlevel.values.errors import UsageError


def seeded_generator(*key: int) -> torch.Generator:
    """Return a CPU generator whose stream is fixed by all of ``key``; neighbouring keys give unrelated streams."""
    word = int(np.random.SeedSequence([abs(int(part)) for part in key]).generate_state(1)[0])
    return torch.Generator(device="cpu").manual_seed(word)


def random_signs(
    size: int,
    count: int,
    *,
    seed: int = 0,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return ``count`` columns of independent fair signs, numbers ``first, first + 1, …`` of the seed's sequence.

    Probe j is drawn on the CPU from its own generator, so it is the same whatever number of probes is asked for,
    however they are blocked and wherever they are used.
    """
    if size < 1 or count < 1 or first < 0:
        raise UsageError(f"random signs need size >= 1, count >= 1, first >= 0; found {size}, {count}, {first}.")
    rows = torch.empty((count, size), dtype=dtype, device=device)
    for row in range(count):
        bits = torch.randint(0, 2, (size,), generator=seeded_generator(seed, first + row), dtype=torch.int8)
        rows[row] = bits.to(device=device, dtype=dtype).mul_(2).sub_(1)
    return rows.T  # (size, count), each column contiguous


def until(
    draw: Callable[[int, int], Sequence[float]],
    *,
    tolerance: float,
    minimum: int = 8,
    maximum: int = 256,
    block: int = 8,
) -> tuple[Samples, Literal["ok", "budget_spent"]]:
    """Draw until the standard error is at most ``tolerance`` times the mean's size, or ``maximum`` draws are spent.

    ``draw(first, count)`` returns the draws numbered ``first … first + count - 1``.  The rule looks at the standard
    error and never at how little the running mean moved, which stops by accident long before the mean is right.
    """
    if minimum < 2 or maximum < minimum or block < 1 or tolerance < 0:
        raise UsageError(
            f"adaptive sampling needs 2 <= minimum <= maximum, block >= 1 and tolerance >= 0; found minimum={minimum}, "
            f"maximum={maximum}, block={block}, tolerance={tolerance}."
        )
    samples = Samples()
    while True:
        done = samples.count >= minimum and samples.stderr <= tolerance * abs(samples.mean)
        if done or samples.count >= maximum:
            return samples, "ok" if done else "budget_spent"
        # The first block brings the minimum at once: fewer draws could not stop anyway.
        count = min(max(block, minimum - samples.count), maximum - samples.count)
        samples.add(draw(samples.count, count))
