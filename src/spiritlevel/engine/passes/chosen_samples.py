"""Some samples of the data, in batches as large as the data's own."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor

from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import Content, concatenate, pick_samples, tensors_of
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.ranks import ranks

# Numbers of samples' contents that are kept, so that the data is not read again for a few of its samples.
KEPT_NUMBERS = 16_000_000


class ChosenSamples:
    """The samples at some places, in order."""

    def __init__(self, problem: OpenProblem, places: Tensor) -> None:
        self.problem, self.places = problem, places.sort().values
        self._kept: list[Batch] | None = None

    @property
    def share(self) -> float:
        """Of all samples."""
        return len(self.places) / self.problem.survey.count

    def batches(self, what: str, units: float = 1.0) -> Iterator[Batch]:
        """Sweep them once; ``units`` says how much work of that name it would be for all samples."""
        if self._kept is not None:
            if self.problem.deadline is not None:
                self.problem.deadline.pace(what, units * self.share, 0)  # refuses what could not be finished
            yield from self._kept
            return
        kept: list[Batch] | None = []
        numbers = 0
        for batch in self._read(what, units * self.share):
            yield batch
            numbers += sum(tensor.numel() for tensor in tensors_of(batch.content))
            kept = None if kept is None or numbers > KEPT_NUMBERS else [*kept, batch]
        if not ranks().again:  # or they were not read
            self._kept = kept

    def _read(self, what: str, units: float) -> Iterator[Batch]:
        waiting: list[tuple[Content, Tensor]] = []
        largest = 0
        for batch in self.problem.batches(what, units):
            largest = max(largest, batch.count)
            ends = torch.tensor([batch.start, batch.start + batch.count], device="cpu")
            first, last = torch.searchsorted(self.places, ends).tolist()
            own = self.places[first:last]
            if len(own) == batch.count and not waiting:
                yield batch
            elif len(own):
                waiting.append((pick_samples(batch.content, own - batch.start), own))
                if sum(len(places) for _, places in waiting) >= largest:
                    yield from _together(waiting)
                    waiting = []
        yield from _together(waiting)


class DrawsInPart(ABC):
    """What can be drawn of all samples, or of some alone."""

    chosen: ChosenSamples | None
    spent: dict[str, float]  # sweeps of all samples by kind, which are known to nobody else yet

    def begin_whole(self) -> None:
        """Begin with all samples."""
        self.chosen, self.spent = None, {}

    @abstractmethod
    def forget(self) -> None:
        """Give up all draws."""

    def of_samples(self, chosen: ChosenSamples) -> Self:
        """Return the same for some samples alone; what was found out of the layers is known to all."""
        found = copy.copy(self)
        found.chosen, found.spent = chosen, {}
        found.forget()
        return found

    @property
    def share(self) -> float:
        """Of all samples, those that are drawn."""
        return 1 if self.chosen is None else self.chosen.share


def _together(waiting: list[tuple[Content, Tensor]]) -> Iterator[Batch]:
    """Yield one batch where the contents can be joined, else one for each."""
    if not waiting:
        return
    contents, places = [content for content, _ in waiting], [own for _, own in waiting]
    joined = contents[0] if len(contents) == 1 else concatenate(contents)
    if joined is not None:
        yield Batch.of(joined, torch.cat(places))
        return
    for content, own in waiting:
        yield Batch.of(content, own)
