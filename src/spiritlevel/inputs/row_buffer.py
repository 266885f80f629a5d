"""Numbers of batch after batch, one row a sample, in one tensor that grows by doubling.

As a list of small tensors they would lie among the large ones that every batch makes and frees, and keep an allocator
from using that room again: a process would grow with the data although nothing large is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor


class RowBuffer:
    """Rows of one shape, dtype and device, taken in batch by batch."""

    def __init__(self) -> None:
        self._room = torch.empty(0)
        self._count = 0

    def add(self, rows: Tensor) -> None:
        """Take in the rows of a batch."""
        needed = self._count + len(rows)
        if needed > len(self._room) or not self._count:
            grown = rows.new_empty((max(needed, 2 * self._count), *rows.shape[1:]))
            if self._count:
                grown[: self._count] = self._room[: self._count]
            self._room = grown
        self._room[self._count : needed] = rows
        self._count = needed

    def __len__(self) -> int:
        return self._count

    def whole(self) -> Tensor:
        """Return all rows, without the room beyond them."""
        return self._room if self._count == len(self._room) else self._room[: self._count].clone()
