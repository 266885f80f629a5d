"""Outputs that hold positions (tokens, pixels), seen with the classes last and all positions in one axis."""

from __future__ import annotations

from torch import Tensor


def to_positions(x: Tensor, axis: int, lead: int) -> Tensor:
    """View with the classes, which stand second (``axis`` 1) or last (-1) in a batch, last and all positions in one
    axis behind the ``lead`` axes that stay."""
    if axis == 1:
        x = x.movedim(lead, -1)
    return x.reshape(*x.shape[:lead], -1, x.shape[-1])


def from_positions(x: Tensor, outputs: Tensor, axis: int) -> Tensor:
    """Bring ``(K, B, T, C)`` back to ``(K, *outputs.shape)``."""
    if axis == 1:
        return x.reshape(len(x), *outputs.movedim(1, -1).shape).movedim(-1, 2)
    return x.reshape(len(x), *outputs.shape)
