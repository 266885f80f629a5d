"""Random signs that belong to a sample of the data set, whatever batch or device it is met on."""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 64


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


# The increment and multipliers of SplitMix64 (Steele, Lea and Flood 2014), as int64, whose products wrap modulo 2^64.
_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically: mask off the copies of the sign bit.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _absorb(state: Tensor, value: Tensor) -> Tensor:
    """Next state of the hash: the SplitMix64 output function at state + (value + 1) increments."""
    x = state + (value + 1) * _INCREMENT
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def index_signs(seed: int, draws: int, indices: Tensor, count: int, *, first_draw: int = 0) -> Tensor:
    """Signs ±1 ``(draws, B, count)`` in float64, each a function of (seed, draw, sample index, position) alone.

    Integer arithmetic is the same on every device, so the signs are made where the indices are. ``first_draw`` is the
    number of the first draw, for those who take them in several calls.
    """
    device = indices.device
    state = _absorb(torch.zeros((), dtype=torch.int64, device=device), torch.tensor(seed, device=device))
    state = _absorb(state, torch.arange(first_draw, first_draw + draws, device=device)[:, None])
    state = _absorb(state, indices[None].to(torch.int64))
    words = _absorb(state[..., None], torch.arange(-(-count // _WORD), device=device))
    bits = (words[..., None] >> torch.arange(_WORD, device=device)) & 1
    return bits.flatten(-2)[..., :count].double() * 2 - 1
