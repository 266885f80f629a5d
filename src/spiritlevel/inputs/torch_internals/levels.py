"""What is behind a tensor inside ``torch.func.vmap``, and back: functorch's own names.

torch offers it publicly through one's own rule for vmap alone (``torch.autograd.Function.vmap``), by layers that take a
quarter of a millisecond a call.  Where a name is missing every tensor counts as one that holds no block, and
operations on it go by torch's own rules for vmap.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_NAMES = ("is_batchedtensor", "maybe_get_level", "get_unwrapped", "maybe_get_bdim", "_add_batch_dim")


def _found() -> Any:
    functorch = getattr(getattr(torch, "_C", None), "_functorch", None)
    return functorch if all(hasattr(functorch, name) for name in _NAMES) else None


_functorch = _found()


def level_of(tensor: Tensor) -> int:
    """Return the level of the vmap whose block a tensor holds, -1 where it holds none."""
    if _functorch is None or not _functorch.is_batchedtensor(tensor):
        return -1
    return int(_functorch.maybe_get_level(tensor))


def opened(tensor: Tensor) -> tuple[Tensor, int]:
    """Return the tensor behind one that holds a block, and the dimension that the block lies along."""
    return _functorch.get_unwrapped(tensor), _functorch.maybe_get_bdim(tensor)


def closed(tensor: Tensor, dim: int, level: int) -> Tensor:
    """Return a tensor whose block lies along a dimension, for the world inside the vmap of that level."""
    found: Tensor = _functorch._add_batch_dim(tensor, dim, level)
    return found
