"""Random signs that belong to a sample of the data set, whatever batch or device it is met on."""

from __future__ import annotations

import torch
from torch import Tensor

from spiritlevel.inputs.splitmix import splitmix64

_WORD = 64


def index_signs(seed: int, draws: int, indices: Tensor, count: int, *, first_draw: int = 0) -> Tensor:
    """Signs ±1 ``(draws, B, count)`` in float64, each a function of (seed, draw, sample index, position) alone.

    Integer arithmetic is the same on every device, so the signs are made where the indices are. ``first_draw`` is the
    number of the first draw, for those who take them in several calls.
    """
    device = indices.device
    state = splitmix64(0, torch.tensor(seed, device=device))
    state = splitmix64(state, torch.arange(first_draw, first_draw + draws, device=device)[:, None])
    state = splitmix64(state, indices[None].to(torch.int64))
    words = splitmix64(state[..., None], torch.arange(-(-count // _WORD), device=device))
    bits = (words[..., None] >> torch.arange(_WORD, device=device)) & 1
    return bits.flatten(-2)[..., :count].double() * 2 - 1
