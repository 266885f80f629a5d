"""Data is read to its end: nothing is dropped, and what stops on the way is no smaller data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, SubsetRandomSampler

from spiritlevel.values.errors import SpiritlevelError
from tests.helpers import opened
from tests.inputs.test_samplers import ALL, COUNT, Buckets, arrays, mean_loss, network


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter(list(zip(*arrays())))


def test_a_stream_is_read_to_its_end() -> None:
    problem = opened(network(), DataLoader(Stream(), batch_size=7, drop_last=True))
    assert problem.survey.count == COUNT
    assert problem.survey.loss == pytest.approx(mean_loss(ALL), rel=1e-12)
    assert any("drop_last is not used" in note for note in problem.notes)


class Stopping(Dataset):
    """A dataset out of which the end of something else comes, as ``next()`` in a transform lets it."""

    def __init__(self, at: int = 20) -> None:
        self.at = at

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = arrays()
        return x[index], y[index] if index < self.at else next(iter([]))


STOPPING: dict[str, Callable[[], Any]] = {
    "dataset": Stopping,
    "at_the_first": lambda: Stopping(0),
    "loader": lambda: DataLoader(Stopping(), batch_size=7, shuffle=True),
    "loader_one_by_one": lambda: DataLoader(Stopping(39), batch_size=1),
    "subset": lambda: DataLoader(Stopping(), batch_size=2, sampler=SubsetRandomSampler([1, 2, 30, 31])),
    "own_batches": lambda: DataLoader(Stopping(), batch_sampler=Buckets([[1, 2], [30, 31]])),
    "whole_batches": lambda: DataLoader(
        Stopping(), batch_size=None, collate_fn=lambda item: tuple(t[None] for t in item)
    ),
}


@pytest.mark.parametrize("name", STOPPING)
@pytest.mark.parametrize("samples", [None, 5])
def test_a_dataset_that_stops_on_the_way_is_no_smaller_dataset(name: str, samples: int | None) -> None:
    with pytest.raises(SpiritlevelError, match=r"the data ended after \d+ of \d+ batches.*StopIteration"):
        opened(network(), STOPPING[name](), samples=samples).survey  # noqa: B018
