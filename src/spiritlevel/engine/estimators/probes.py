"""Random signs that depend on nothing but a seed and an index, and sample means that know when to stop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from spiritlevel.inputs.splitmix import splitmix64
from spiritlevel.values.draws import Samples
from spiritlevel.values.errors import UsageError

WORD = 64  # signs in one
# Words that are made at a time: temporaries of some ten megabytes.
WORDS_AT_ONCE = 2**16
STREAM = 0x70726F6265  # "probe": no other signs of the same seed are these


def seeded_generator(*key: int) -> torch.Generator:
    """Return a CPU generator whose stream is fixed by all of ``key``; neighbouring keys give unrelated streams."""
    word = int(np.random.SeedSequence([abs(int(part)) for part in key]).generate_state(1)[0])
    return torch.Generator(device="cpu").manual_seed(word)


def normal_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Return normal numbers of a tensor's shape, drawn where the generator is; a large tensor's take long elsewhere."""
    return torch.empty_like(tensor, requires_grad=False).normal_(generator=generator)


def random_signs(
    size: int,
    count: int,
    *,
    seed: int = 0,
    first: int = 0,
    begin: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Return ``count`` columns of independent fair signs, numbers ``first, first + 1, …`` of the seed's sequence.

    Entry i of probe j is bit i mod 64 of a hash of (seed, j, i // 64), in whole numbers, so it is the same whatever
    number of probes is asked for, however they are blocked, and on every device.  The entries ``begin, begin + 1, …``
    are returned, where only a part of a probe is wanted.
    """
    if size < 1 or count < 1 or first < 0 or begin < 0:
        raise UsageError(
            f"random signs need size >= 1, count >= 1, first >= 0 and begin >= 0; found {size}, {count}, {first}, "
            f"{begin}."
        )
    device = torch.device(device)
    rows = torch.empty((count, size), dtype=dtype, device=device)
    # The signs of every byte there is: looking eight up at once is much quicker than shifting bits one by one.
    bits = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device)
    signs = ((bits & 1) * 2 - 1).to(dtype)
    state = splitmix64(splitmix64(0, torch.tensor(seed % 2**63, device=device)), torch.tensor(STREAM, device=device))
    for row in range(count):
        own = splitmix64(state, torch.tensor(first + row, device=device))
        for start in range(0, size, WORD * WORDS_AT_ONCE):
            part, place = rows[row, start : start + WORD * WORDS_AT_ONCE], begin + start
            words = torch.arange(place // WORD, -(-(place + len(part)) // WORD), device=device)
            # Byte by byte by arithmetic, not by a view, whose order would be the machine's.
            shifts = torch.arange(0, WORD, 8, device=device)
            bytes = (splitmix64(own, words)[:, None] >> shifts) & 255
            part.copy_(signs[bytes.reshape(-1)].reshape(-1)[place % WORD :][: len(part)])
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
