"""What a tensor knows of itself: how often it was written to, and which one it is a view of."""

from __future__ import annotations

from torch import Tensor

_VERSION = "_version"
_BASE = "_base"


def version_of(tensor: Tensor) -> object:
    """Return what is equal to itself while nobody writes to a tensor in place.

    Public ways to tell there are none: without torch's counter nothing is equal to what was before.
    """
    found: int | None = getattr(tensor, _VERSION, None)
    return object() if found is None else found


def viewed(tensor: Tensor) -> Tensor:
    """Return the tensor that one is a view of, itself where it is none or torch does not tell."""
    found: Tensor | None = getattr(tensor, _BASE, None)
    return tensor if found is None else found
