"""SplitMix64: whole numbers without visible order, the same on every device."""

from __future__ import annotations

from torch import Tensor


def _signed(constant: int) -> int:
    return constant - (1 << 64) if constant >= 1 << 63 else constant


# The increment and multipliers of SplitMix64 (Steele, Lea and Flood 2014), as int64, whose products wrap modulo 2^64.
_INCREMENT = _signed(0x9E3779B97F4A7C15)
_FIRST = _signed(0xBF58476D1CE4E5B9)
_SECOND = _signed(0x94D049BB133111EB)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically: mask off the copies of the sign bit.
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def splitmix64(state: Tensor | int, value: Tensor) -> Tensor:
    """Return the output function at state + (value + 1) increments, as int64; a hash takes it as its next state."""
    x = state + (value + 1) * _INCREMENT
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)
