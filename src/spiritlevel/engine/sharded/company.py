"""The ranks over which a model is sharded: what they add up, tell each other and agree on.

Every rank makes the same calls in the same order: whatever decides how work goes on is asked of all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from spiritlevel.inputs.sharding import Layout, told_of_losses
from spiritlevel.values.errors import SpiritlevelError


class Company:
    """All ranks that hold a part of a model, or the same part again."""

    def __init__(self, layouts: Iterable[Layout], device: torch.device) -> None:
        first = next(iter(layouts))
        self.device = device
        self._parts = first.group
        self._all = [first.group] if first.replicas is None else [first.group, first.replicas]
        sizes = [group.size() for group in self._all]
        self.size = sizes[0] if len(sizes) == 1 else sizes[0] * sizes[1]
        inner = self._all[0].rank()
        self.rank = inner if len(sizes) == 1 else inner + sizes[0] * self._all[1].rank()

    def total(self, numbers: Tensor) -> Tensor:
        """Return the sum over the parts of vectors, in float64: replicas hold the same ones."""
        found = numbers.detach().double().contiguous().clone()
        _reduce(found, self._parts)
        return found

    def over_data(self, numbers: Tensor) -> Tensor:
        """Return the sum over all ranks, each of which has data of its own, in float64."""
        found = numbers.detach().double().to(self.device).contiguous().clone()
        for group in self._all:
            _reduce(found, group)
        return found

    def anywhere(self, flag: bool) -> bool:
        """Whether something holds on some rank."""
        return bool(self.over_data(torch.tensor([float(flag)])).item() > 0)

    def told(self, words: Any) -> list[Any]:
        """Return what every rank says, in their order."""
        from torch import distributed

        found = [words]
        for group in self._all:
            gathered: list[Any] = [None] * group.size()
            told_of_losses(distributed.all_gather_object)(gathered, found, group=group)
            found = [one for some in gathered for one in some]
        return found

    def refuse_together(self, reason: str) -> None:
        """Refuse on all ranks what one of them found."""
        reasons = [(rank, words) for rank, words in enumerate(self.told(reason)) if words]
        if reasons:
            rank, words = reasons[0]
            raise SpiritlevelError(words if len(reasons) == self.size else f"on rank {rank}: {words}")


def _reduce(numbers: Tensor, group: Any) -> None:
    from torch import distributed

    told_of_losses(distributed.all_reduce)(numbers, group=group)
