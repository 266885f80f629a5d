"""Sums of products over batches, in float64 where there is room for that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spiritlevel.engine.operators.memory import free_bytes
from spiritlevel.inputs.process.ranks import Ranks

# Share of the free memory that sums in float64 may take.  Where they would take more they are taken in the parameters'
# dtype: of n batches, with an error of at most n - 1 roundings of the sum of the parts' sizes.
FLOAT64_SHARE = 0.1
FLOAT64_BYTES = 8


class BatchSums:
    """What products of a block with the parts of all batches add up to, tensor by tensor.

    What one batch alone gives is left as it is: there is nothing to add.
    """

    def __init__(self, blocks: Sequence[Tensor]) -> None:
        numbers = sum(block.numel() for block in blocks)
        self.in_float64 = numbers * FLOAT64_BYTES <= FLOAT64_SHARE * free_bytes(blocks[0].device)
        self._parts = [block.new_zeros(()).expand(block.shape) for block in blocks]  # until there is a batch
        self._count = 0

    def add(self, parts: Sequence[Tensor]) -> None:
        """Add one batch's part."""
        self._count += 1
        if self._count == 1:
            self._parts = [part.detach() for part in parts]
            return
        if self._count == 2:  # only now: a batch's part may be something that others hold
            self._parts = [part.to(self._dtype(part), copy=True) for part in self._parts]
        for total, part in zip(self._parts, parts):
            total += part.detach()

    def unite(self, group: Ranks) -> None:
        """Add what the other ranks added."""
        if not group.meets:
            return
        own = {str(place): part for place, part in enumerate(self.found())}
        found, _ = group.united(own, device=self._parts[0].device)
        self._parts, self._count = list(found.values()), self._count + 2

    def found(self) -> list[Tensor]:
        """Return the sums, in float64 where there was room for that."""
        return [part.to(self._dtype(part)) for part in self._parts]

    def rounded(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the sums in a dtype."""
        return [part.to(dtype) for part in self._parts]

    def _dtype(self, part: Tensor) -> torch.dtype:
        return torch.float64 if self.in_float64 else part.dtype
