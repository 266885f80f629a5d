"""What a DataLoader's sampler chooses is what is measured; a choice that changes from epoch to epoch is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

import spiritlevel as sl
from spiritlevel.values.errors import SpiritlevelError
from tests.helpers import opened

COUNT = 40


def arrays() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(COUNT, 3, generator=generator).double(), torch.arange(COUNT) % 3


def network() -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def dataset() -> Dataset:
    return TensorDataset(*arrays())


def mean_loss(indices: list[int]) -> float:
    """The mean over the named samples, by hand."""
    x, y = arrays()
    with torch.no_grad():
        return float(F.cross_entropy(network()(x[indices]), y[indices]))


CHOSEN = [31, 4, 17, 8, 25, 12, 39, 0, 22, 6]


class Validation(Sampler):
    """A fixed list, in its own order."""

    def __init__(self, indices: list[int]) -> None:
        self.indices = indices

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)


class ShuffledValidation(Validation):
    """The same samples in another order in each epoch, with a generator and a counter of its own."""

    def __init__(self, indices: list[int]) -> None:
        super().__init__(indices)
        self.generator = torch.Generator().manual_seed(3)
        self.numpy, self.python, self.epoch = np.random.default_rng(3), random.Random(3), 0

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        self.numpy.random(), self.python.random()
        order = torch.randperm(len(self.indices), generator=self.generator)
        return iter(torch.tensor(self.indices)[order])  # tensors, as some samplers give them


class Buckets(Sampler):
    """Batches of what fits together."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(random.sample(self.batches, len(self.batches)))


class ChangingBatches(BatchSampler):
    """A subclass that drops other samples in each epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.randperm(COUNT).tolist()
        return iter([order[:8], order[8:16]])


class Endless(Sampler):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0

    def __len__(self) -> int:
        return COUNT


class ByName(Dataset):
    """Samples under names in place of numbers."""

    def __getitem__(self, name: str) -> tuple[Tensor, Tensor]:
        x, y = arrays()
        return x[int(name[1:])], y[int(name[1:])]


class ManyAtOnce(Dataset):
    """A dataset that takes a list of indices and gives a batch."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, indices: Any) -> tuple[Tensor, Tensor]:
        x, y = arrays()
        return x[indices], y[indices]


def share(rank: int, **options: Any) -> DistributedSampler:
    return DistributedSampler(dataset(), num_replicas=3, rank=rank, **options)


def distributed(rank: int, **options: Any) -> DataLoader:
    return DataLoader(dataset(), batch_size=4, sampler=share(rank, **options))


ALL = list(range(COUNT))
# a loader, the samples it stands for, and a word of the note that says so
HONOURED: dict[str, tuple[Callable[[], DataLoader], list[int], str]] = {
    "sequential": (lambda: DataLoader(dataset(), batch_size=7), ALL, ""),
    "shuffled": (lambda: DataLoader(dataset(), batch_size=7, shuffle=True), ALL, "read once, in dataset order"),
    "shuffled_dropping": (
        lambda: DataLoader(dataset(), batch_size=7, shuffle=True, drop_last=True),
        ALL,
        "RandomSampler, drop_last",
    ),
    "subset_random": (
        lambda: DataLoader(dataset(), batch_size=4, sampler=SubsetRandomSampler(CHOSEN)),
        CHOSEN,
        "SubsetRandomSampler chooses 10 of the 40 samples",
    ),
    "subset_random_dropping": (
        lambda: DataLoader(dataset(), batch_size=4, sampler=SubsetRandomSampler(CHOSEN), drop_last=True),
        CHOSEN,
        "nothing dropped",
    ),
    "subset_random_of_an_array": (
        lambda: DataLoader(dataset(), batch_size=4, sampler=SubsetRandomSampler(np.array(CHOSEN))),
        CHOSEN,
        "chooses 10 of the 40",
    ),
    "batches_of_a_subset": (
        lambda: DataLoader(dataset(), batch_sampler=BatchSampler(SubsetRandomSampler(CHOSEN), 3, True)),
        CHOSEN,
        "chooses 10 of the 40 samples of its dataset: these are measured, in dataset order, nothing dropped",
    ),
    "sequential_over_less": (
        lambda: DataLoader(dataset(), batch_size=4, sampler=SequentialSampler(range(9))),
        list(range(9)),
        "chooses 9 of the 40",
    ),
    "random_over_less": (
        lambda: DataLoader(dataset(), batch_size=4, sampler=RandomSampler(range(9))),
        list(range(9)),
        "chooses 9 of the 40",
    ),
    "weighted_without_replacement": (
        lambda: DataLoader(dataset(), sampler=WeightedRandomSampler(torch.rand(COUNT) + 0.1, COUNT, replacement=False)),
        ALL,
        "WeightedRandomSampler) is not used",
    ),
    "own_list": (lambda: DataLoader(dataset(), batch_size=4, sampler=Validation(CHOSEN)), CHOSEN, "Validation chooses"),
    "bare_list": (lambda: DataLoader(dataset(), batch_size=4, sampler=CHOSEN), CHOSEN, "list chooses 10"),
    "own_repeating": (
        lambda: DataLoader(dataset(), batch_size=4, sampler=Validation([5, 5, 9])),
        [5, 5, 9],
        "chooses 3 of the 40 samples of its dataset (1 of them repetitions)",
    ),
    "own_shuffling": (
        lambda: DataLoader(dataset(), batch_size=4, sampler=ShuffledValidation(CHOSEN)),
        CHOSEN,
        "ShuffledValidation chooses 10",
    ),
    "own_batches": (
        lambda: DataLoader(dataset(), batch_sampler=Buckets([[1, 30, 2], [7], [20, 21]])),
        [1, 30, 2, 7, 20, 21],
        "Buckets chooses 6 of the 40 samples of its dataset: these are measured, in the batches it forms",
    ),
    "own_batches_of_all": (
        lambda: DataLoader(dataset(), batch_sampler=Buckets([ALL[::2], ALL[1::2]])),
        ALL,
        "in the batches that its Buckets forms",
    ),
    "rank": (lambda: distributed(0, shuffle=False), ALL[::3], "rank 0 of 3"),
    "rank_with_padding": (
        lambda: distributed(2, shuffle=False),
        [*ALL[2::3], 1],
        "14 of 40 samples are measured, 1 of them repeated",
    ),
    "rank_dropping": (lambda: distributed(2, shuffle=False, drop_last=True), ALL[2:39:3], "13 of 40"),
    "rank_shuffled": (lambda: distributed(0, seed=4), list(share(0, seed=4)), "rank 0 of 3"),
    "subset_of_a_subset": (
        lambda: DataLoader(Subset(Subset(dataset(), ALL[10:30]), [0, 3, 19]), batch_size=2, shuffle=True),
        [10, 13, 29],
        "dataset order",
    ),
    "sampler_over_a_subset": (
        lambda: DataLoader(Subset(dataset(), ALL[10:30]), batch_size=2, sampler=SubsetRandomSampler([4, 1])),
        [11, 14],
        "chooses 2 of the 20",
    ),
    "names": (
        lambda: DataLoader(ByName(), batch_size=2, sampler=Validation([f"s{i}" for i in CHOSEN])),  # type: ignore[misc]
        CHOSEN,
        "chooses 10 samples",
    ),
    "lists_of_indices": (
        lambda: DataLoader(ManyAtOnce(), batch_size=None, sampler=BatchSampler(RandomSampler(ALL), 6, True)),
        ALL,
        "dataset order",
    ),
    "lists_of_some_indices": (
        lambda: DataLoader(ManyAtOnce(), batch_size=None, sampler=BatchSampler(SubsetRandomSampler(CHOSEN), 6, False)),
        CHOSEN,
        "chooses 10 of the 40",
    ),
}


@pytest.mark.parametrize("name", HONOURED)
def test_what_a_loader_chooses_is_what_is_measured(name: str) -> None:
    make, indices, word = HONOURED[name]
    problem = opened(network(), make())
    assert problem.survey.count == len(indices)
    assert problem.survey.loss == pytest.approx(mean_loss(indices), rel=1e-12)
    assert any(word in note for note in problem.notes) if word else not problem.notes
    cut = opened(network(), make(), batch_size=3)
    assert max(batch.count for batch in cut.batches()) <= 3
    assert cut.survey.loss == pytest.approx(problem.survey.loss, rel=1e-12)


@pytest.mark.parametrize("name", ["subset_random", "rank", "own_batches", "own_shuffling"])
def test_a_draw_is_made_among_what_the_loader_chooses(name: str) -> None:
    make, indices, _ = HONOURED[name]
    x, _ = arrays()
    problem = opened(network(), make(), samples=4)
    drawn = torch.cat([batch.content[0] for batch in problem.batches()])
    assert len(drawn) == 4
    assert all(any(torch.equal(row, x[i]) for i in indices) for row in drawn)
    assert problem.source.drawn_from == len(indices)


def test_the_trace_over_a_validation_split_is_that_of_its_samples() -> None:
    x, y = arrays()
    loader = DataLoader(dataset(), batch_size=4, sampler=SubsetRandomSampler(CHOSEN))
    found = sl.measure(opened(network(), loader), "hessian_trace")["hessian_trace"].value
    kept = sorted(CHOSEN)
    expected = sl.measure(opened(network(), (x[kept], y[kept])), "hessian_trace")["hessian_trace"].value
    everything = sl.measure(opened(network(), (x, y)), "hessian_trace")["hessian_trace"].value
    assert found == pytest.approx(expected, rel=1e-10)
    assert abs(found - everything) > 1e-3 * everything


REFUSED: dict[str, tuple[Callable[[], DataLoader], str]] = {
    "with_replacement": (
        lambda: DataLoader(dataset(), sampler=RandomSampler(dataset(), replacement=True)),
        "RandomSampler draws samples with replacement anew",
    ),
    "some_of_all": (
        lambda: DataLoader(dataset(), sampler=RandomSampler(dataset(), num_samples=10)),
        "RandomSampler draws samples 10 of 40 anew",
    ),
    "more_than_all": (
        lambda: DataLoader(dataset(), sampler=RandomSampler(dataset(), num_samples=50)),
        "RandomSampler draws samples 50 of 40 anew",
    ),
    "weighted": (
        lambda: DataLoader(dataset(), sampler=WeightedRandomSampler(torch.rand(COUNT), COUNT)),
        "WeightedRandomSampler draws samples by their weights",
    ),
    "batches_of_weighted": (
        lambda: DataLoader(
            dataset(), batch_sampler=BatchSampler(WeightedRandomSampler(torch.rand(COUNT), COUNT), 4, True)
        ),
        "WeightedRandomSampler draws samples by their weights",
    ),
    "changing_batches": (
        lambda: DataLoader(dataset(), batch_sampler=ChangingBatches(SequentialSampler(ALL), 8, False)),
        "ChangingBatches gives other samples in each epoch",
    ),
    "own_drawing": (
        lambda: DataLoader(dataset(), sampler=DrawingAnew()),
        "DrawingAnew gives other samples in each epoch",
    ),
    "endless": (lambda: DataLoader(dataset(), sampler=Endless()), "Endless does not end"),
    "broken": (lambda: DataLoader(dataset(), sampler=Broken()), r"Broken could not be read \(KeyError"),
    "nothing": (lambda: DataLoader(dataset(), sampler=SubsetRandomSampler([])), "the data is empty"),
}


class DrawingAnew(Sampler):
    def __iter__(self) -> Iterator[int]:
        return iter(np.random.choice(COUNT, 10, replace=False).tolist())  # noqa: NPY002 (what user code draws from)


class Broken(Sampler):
    def __iter__(self) -> Iterator[int]:
        raise KeyError("epoch")


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("samples", [None, 5])
def test_a_loader_without_fixed_samples_is_refused(name: str, samples: int | None) -> None:
    make, words = REFUSED[name]
    with pytest.raises(SpiritlevelError, match=words) as caught:
        opened(network(), make(), samples=samples).survey  # noqa: B018
    message = str(caught.value)
    assert "\n" not in message
    assert "Subset(dataset, indices)" in message or name == "nothing"


def test_a_sampler_and_all_random_states_are_left_as_they_were() -> None:
    sampler, model = ShuffledValidation(CHOSEN), network()
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    expected = [int(i) for i in ShuffledValidation(CHOSEN)], torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    opened(model, DataLoader(dataset(), sampler=sampler)).survey  # noqa: B018
    assert sampler.epoch == 0
    assert sampler.numpy.random() == np.random.default_rng(3).random()
    assert sampler.python.random() == random.Random(3).random()
    sampler.numpy, sampler.python = np.random.default_rng(3), random.Random(3)
    found = [int(i) for i in sampler], torch.rand(1), np.random.rand(), random.random()  # noqa: NPY002
    assert found == expected


class Doubled(DataLoader):
    """A loader that makes something of its batches on the way."""

    def __iter__(self) -> Any:
        return ((2 * x, y) for x, y in super().__iter__())


def test_a_loader_with_an_iteration_of_its_own_is_asked_itself() -> None:
    x, y = arrays()
    found = opened(network(), Doubled(dataset(), batch_size=7, drop_last=True)).survey
    assert found.count == 35
    assert found.loss == pytest.approx(opened(network(), (2 * x[:35], y[:35])).survey.loss, rel=1e-12)
