"""One batch of the data, where the model is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.inputs.contents import Content, slice_batch


@dataclass(frozen=True)
class Batch:
    """Some consecutive samples of the data, or chosen ones, on the model's device and in its dtype."""

    content: Content
    start: int
    count: int
    places: Tensor | None = None  # of chosen samples

    @classmethod
    def of(cls, content: Content, places: Tensor) -> Batch:
        """Return a batch of the samples at some places."""
        return cls(content, int(places[0]), len(places), places)

    @property
    def indices(self) -> Tensor:
        """The samples' places in a sweep, which seed everything random about them."""
        return torch.arange(self.start, self.start + self.count) if self.places is None else self.places

    def pieces(self, most: int) -> Iterator[Batch]:
        """Yield the batch in pieces of about one size, of at most so many samples."""
        if most >= self.count:
            yield self
            return
        step = -(-self.count // -(-self.count // most))
        for start in range(0, self.count, step):
            content, count = slice_batch(self.content, start, start + step), min(step, self.count - start)
            if self.places is not None:
                yield Batch.of(content, self.places[start : start + count])
            else:
                yield Batch(content, self.start + start, count)
