"""A sweep that all ranks make together: what they tell each other when it ends, beside what they summed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.process.memory_limit import free_bytes_here
from spiritlevel.inputs.process.ranks import ALONE, Ranks, ranks
from spiritlevel.inputs.row_buffer import RowBuffer

if TYPE_CHECKING:
    from spiritlevel.inputs.open_problem import OpenProblem


@contextlib.contextmanager
def swept_together(problem: OpenProblem, what: str) -> Iterator[Ranks]:
    """Hold the problem's model through a sweep of all ranks; what one of them cannot do, none of them does."""
    group, deadline = ranks(), problem.deadline
    if problem.looks_only:
        with problem.session(), group.apart():
            yield ALONE
        return

    def said() -> tuple[Any, ...]:
        free = {device.type: free_bytes_here(device) for device in (torch.device("cpu"), problem.device)}
        rates = {} if deadline is None else deadline.rates
        return time.monotonic(), free, problem.notes, problem.spent.samples, rates

    def heard(answers: list[tuple[Any, ...]]) -> None:
        times, free, notes, samples, rates = zip(*answers)
        group.exchange(times[0], list(free))
        problem.notes[:] = dict.fromkeys(text for own in notes for text in own)
        problem.spent.samples = max(samples)
        if deadline is not None:
            for kind in dict.fromkeys(kind for own in rates for kind in own):
                deadline.took(kind, max(own[kind] for own in rates if kind in own))

    with problem.session(), group.together(what, said, heard):
        yield group


def laid_out(problem: OpenProblem, rows: Tensor, places: Tensor) -> Tensor:
    """Return rows of some samples in the places of all, with zeros for the others: added over ranks they are whole."""
    whole = rows.new_zeros((problem.spent.samples, *rows.shape[1:]))
    whole[places.to(rows.device)] = rows
    return whole


class SampleRows:
    """Numbers of every sample by name, taken in batch by batch, of which each rank has those of its own batches."""

    def __init__(self, problem: OpenProblem) -> None:
        self.problem = problem
        self._places = RowBuffer()
        self._rows: dict[str, RowBuffer | None] = {}

    def add(self, batch: Batch, rows: Mapping[str, Tensor | None]) -> None:
        """Take in a batch's rows (B, ...); what one batch does not have is None for all of them."""
        self._places.add(batch.indices)
        for name, values in rows.items():
            column = self._rows.setdefault(name, RowBuffer())
            if values is None or column is None:
                self._rows[name] = None
            else:
                column.add(values)

    def united(self, group: Ranks) -> dict[str, Tensor | None]:
        """Return the rows of all samples in their order, once the sweep has ended."""
        if not group.meets:
            return {name: None if column is None else column.whole() for name, column in self._rows.items()}
        missing = [name for name, column in self._rows.items() if column is None]
        left_out = dict.fromkeys(name for own in group.meet("rows of samples", missing) for name in own)
        places = self._places.whole()
        own = {
            name: laid_out(self.problem, column.whole(), places)
            for name, column in self._rows.items()
            if column is not None and name not in left_out
        }
        found, _ = group.united(own, device=self.problem.device)
        return {**found, **dict.fromkeys(left_out)}
