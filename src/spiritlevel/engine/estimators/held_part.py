"""Vectors of which a part lies here and the rest elsewhere: what is summed over all parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.values.errors import UsageError

# Sums of products of entries, of those that lie here, to those of all entries
Total = Callable[[Tensor], Tensor]


def whole(numbers: Tensor) -> Tensor:
    """Return the numbers: vectors are held whole."""
    return numbers


@dataclass(frozen=True)
class HeldPart:
    """The entries of every vector that lie here, where others hold the rest and go through the same search in step.

    ``total`` sums over all of them; ``key`` is another one for each, so that random numbers differ.
    """

    rows: int
    total: Total = whole
    key: tuple[int, ...] = ()

    def check(self, start: Tensor) -> None:
        """Refuse start vectors (rows, columns) that are not what lies here, or not finite."""
        if start.ndim != 2 or start.shape[0] != self.rows or not bool(torch.isfinite(start).all()):
            raise UsageError(f"start must be finite and of shape ({self.rows}, columns); found {tuple(start.shape)}.")
