"""Every form of data gives the same samples in the same order; what cannot be read again is refused in one sentence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import spiritlevel as sl
from spiritlevel.inputs.data import stratified_choice
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.helpers import opened

COUNT = 11


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()


def arrays() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(COUNT, 3, generator=generator).double(), torch.arange(COUNT) % 3


class Items(Dataset):
    """Samples one by one, as tuples or as dicts."""

    def __init__(self, as_dict: bool = False) -> None:
        self.x, self.y = arrays()
        self.as_dict = as_dict

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.as_dict:
            return {"input": self.x[index], "label": int(self.y[index])}
        return self.x[index], int(self.y[index])


class Stream(IterableDataset):
    """Samples in a stream that starts anew each time."""

    def __iter__(self) -> Iterator[Any]:
        return iter(list(zip(*arrays())))


class Batches:
    """Batches of uneven sizes, from the start with every iteration."""

    def __init__(self, as_dict: bool = False) -> None:
        self.as_dict = as_dict

    def __iter__(self) -> Iterator[Any]:
        x, y = arrays()
        for a, b in ((0, 4), (4, 5), (5, COUNT)):
            yield {"input": x[a:b], "y": y[a:b]} if self.as_dict else (x[a:b], y[a:b])


def numpy_arrays() -> tuple[np.ndarray, np.ndarray]:
    x, y = arrays()
    return x.numpy(), y.numpy()


FORMS: dict[str, Any] = {
    "tensors": arrays,
    "list_of_two_tensors": lambda: list(arrays()),
    "arrays": numpy_arrays,
    "dict_of_tensors": lambda: dict(zip(("input", "labels"), arrays())),
    "dict_of_arrays": lambda: dict(zip(("input", "labels"), numpy_arrays())),
    "tensor_dataset": lambda: TensorDataset(*arrays()),
    "dataset": Items,
    "dataset_of_dicts": lambda: Items(as_dict=True),
    "loader": lambda: DataLoader(Items(), batch_size=4),
    "loader_shuffled_dropping": lambda: DataLoader(Items(), batch_size=4, shuffle=True, drop_last=True),
    "loader_of_dicts": lambda: DataLoader(Items(as_dict=True), batch_size=3),
    "loader_batch_sampler": lambda: DataLoader(
        Items(), batch_sampler=torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(Items()), 5, False)
    ),
    "loader_of_whole_batches": lambda: DataLoader(WholeBatches(), batch_size=None),
    "loader_over_a_stream": lambda: DataLoader(Stream(), batch_size=4),
    "batches": lambda: list(Batches()),
    "dict_batches": lambda: list(Batches(as_dict=True)),
    "reiterable": Batches,
    "reiterable_of_dicts": lambda: Batches(as_dict=True),
}


class WholeBatches(Dataset):
    """A dataset whose items are batches already."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return list(Batches())[index]


def call_with_input(model: nn.Module, batch: Any) -> Tensor:
    return model(batch["input"] if isinstance(batch, dict) else batch[0])


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_every_form_gives_the_same_samples_in_the_same_order(
    name: str, batch_size: int | None, model: nn.Module
) -> None:
    expected = sl.per_sample(opened(model, arrays()), ["loss", "hessian_trace"])
    problem = opened(model, FORMS[name](), forward=call_with_input, batch_size=batch_size)
    found = sl.per_sample(problem, ["loss", "hessian_trace"])
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, rtol=1e-10, atol=1e-12)
    assert problem.survey.count == COUNT
    assert problem.survey.fingerprint == opened(model, arrays()).survey.fingerprint
    if name == "loader_shuffled_dropping":
        assert any("dataset order" in note and "drop_last" in note for note in problem.notes)


def test_the_fingerprint_sees_every_number_and_the_order_of_samples(model: nn.Module) -> None:
    def of(x: Tensor, y: Tensor) -> str:
        return opened(model, (x, y)).survey.fingerprint

    x, y = arrays()
    swapped, nudged, turned = x.clone(), x.clone(), torch.arange(COUNT).flip(0)
    swapped[4, :2] = x[4, :2].flip(0)
    nudged[10, 2] *= 1 + 1e-6
    others = {of(swapped, y), of(nudged, y), of(x[turned], y[turned]), of(x, (y + 1) % 3), of(x[:-1], y[:-1])}
    assert len(others | {of(x, y)}) == 6
    assert of(x.float().double(), y) == of(x, y)


def test_a_batch_size_cuts_given_batches_smaller(model: nn.Module) -> None:
    problem = opened(model, list(Batches()), batch_size=2)
    assert max(batch.count for batch in problem.batches()) == 2


def test_the_collate_function_of_a_loader_is_used(model: nn.Module) -> None:
    def collate(items: list[Any]) -> Any:
        return torch.stack([2 * x for x, _ in items]), torch.tensor([y for _, y in items])

    x, y = arrays()
    found = opened(model, DataLoader(Items(), batch_size=4, collate_fn=collate)).survey
    assert found.loss == pytest.approx(opened(model, (2 * x, y)).survey.loss, rel=1e-12)


# --- samples -------------------------------------------------------------------------------------------------------


class Augmented(Dataset):
    """Inputs that change with every reading, by torch's, numpy's and Python's random numbers; 60 : 30 : 10 classes."""

    def __init__(self) -> None:
        self.y = [0] * 60 + [1] * 30 + [2] * 10

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = torch.randn(3) + np.random.randn() + random.random()  # noqa: NPY002
        return noise.double(), self.y[index]


def test_samples_are_stratified_drawn_once_and_kept(model: nn.Module) -> None:
    loader = DataLoader(Augmented(), batch_size=16, shuffle=True)
    problem = opened(model, loader, samples=20, seed=3)
    labels = torch.cat([batch.content[1] for batch in problem.batches()])
    assert labels.bincount().tolist() == [12, 6, 2]
    assert problem.survey.count == 20
    assert any("20 of 100" in note for note in problem.notes)
    first, again = ([b.content[0] for b in problem.batches()] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    report = sl.measure(problem, ["hessian_trace", "output_margin"])
    assert report.header.samples == 20
    assert report.header.samples_total == 100


def test_the_draw_is_a_matter_of_the_seed_alone(model: nn.Module) -> None:
    def fingerprint(seed: int) -> str:
        loader = DataLoader(Augmented(), batch_size=16, shuffle=True)
        return opened(model, loader, samples=20, seed=seed).survey.fingerprint

    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    one = fingerprint(3)
    torch.manual_seed(2), np.random.seed(2), random.seed(2)  # noqa: NPY002
    assert fingerprint(3) == one
    assert fingerprint(4) != one


def test_drawing_leaves_all_random_states_alone(model: nn.Module) -> None:
    torch.manual_seed(1), np.random.seed(1), random.seed(1)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    sl.measure(opened(model, DataLoader(Augmented(), shuffle=True), samples=10), "hessian_trace")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert random.getstate() == before[2]


def test_augmentation_without_samples_is_refused(model: nn.Module) -> None:
    problem = opened(model, DataLoader(Augmented(), batch_size=16, shuffle=True))
    with pytest.raises(SpiritlevelError, match=r"two sweeps .* disagree.*samples=N"):
        sl.measure(problem, "hessian_trace")


@pytest.mark.parametrize("name", FORMS)
def test_samples_of_every_form(name: str, model: nn.Module) -> None:
    problem = opened(model, FORMS[name](), forward=call_with_input, samples=6, seed=1)
    same = opened(model, arrays(), samples=6, seed=1)
    assert problem.survey.count == 6
    torch.testing.assert_close(problem.survey.losses, same.survey.losses, rtol=1e-10, atol=1e-12)
    everything = opened(model, FORMS[name](), forward=call_with_input, samples=1000)
    assert everything.survey.count == COUNT


def test_stratified_choice_keeps_proportions_and_never_repeats() -> None:
    labels = np.repeat([0, 1, 2, 3], [50, 30, 15, 5])
    for samples in (1, 3, 10, 37, 99, 100, 200):
        chosen = stratified_choice(labels, samples, seed=0)
        assert len(chosen) == len(set(chosen.tolist())) == min(samples, 100)
        assert (np.sort(chosen) == chosen).all()
        counts = np.bincount(labels[chosen], minlength=4)
        assert (np.abs(counts - np.array([50, 30, 15, 5]) * min(samples, 100) / 100) < 1).all()


def test_regression_targets_are_drawn_plainly(model: nn.Module) -> None:
    x, _ = arrays()
    problem = opened(model, (x, x.sin()), "mean_squared_error", samples=5)
    assert problem.survey.count == 5


def test_a_loss_without_labels_needs_none(model: nn.Module) -> None:
    x, _ = arrays()

    def energy(outputs: Tensor, batch: Any) -> Tensor:
        return outputs.square().sum(1)

    def of_features(net: nn.Module, batch: Any) -> Tensor:
        return net(batch["features"])

    for data, forward in (({"features": x}, of_features), ([(x[:4],), (x[4:],)], None)):
        for samples in (None, 5):
            problem = opened(model, data, energy, forward=forward, samples=samples)
            report = sl.measure(problem, ["hessian_trace", "output_margin"])
            assert report["hessian_trace"].ok
            assert report["output_margin"].status == "not_applicable"
            assert report.accuracy is None


# --- refusals ------------------------------------------------------------------------------------------------------


def generator() -> Iterator[Any]:
    yield from Batches()


REFUSED: dict[str, tuple[Any, str]] = {
    "generator": (generator, "can be read only once"),
    "iterator": (lambda: iter(list(Batches())), "can be read only once"),
    "loader_iterator": (lambda: iter(DataLoader(Items())), "can be read only once"),
    "text": (lambda: "mnist", "type str is not understood"),
    "number": (lambda: 3, "type int is not understood"),
    "bare_stream": (Stream, "wrap it in a DataLoader"),
    "no_tensors": (list, "the data is empty"),
    "empty_tensors": (lambda: (torch.zeros(0, 3), torch.zeros(0).long()), "the data is empty"),
    "empty_dataset": (lambda: TensorDataset(torch.zeros(0, 3), torch.zeros(0).long()), "the data is empty"),
    "uneven": (lambda: (torch.zeros(3, 3), torch.zeros(4).long()), "different first dimensions"),
    "batch_of_text": (lambda: ["a", "b"], "a batch of type str is not understood"),
    "meta_inputs": (lambda: (arrays()[0].to("meta"), arrays()[1]), "on the meta device, which holds no numbers"),
    "meta_labels": (lambda: [(arrays()[0], arrays()[1].to("meta"))], "on the meta device, which holds no numbers"),
    "sparse_inputs": (lambda: (arrays()[0].to_sparse(), arrays()[1]), r"is sparse, .*x\.to_dense\(\)"),
    "sparse_in_a_dict": (lambda: {"x": arrays()[0].to_sparse(), "y": arrays()[1]}, "is sparse"),
    "sparse_items": (lambda: DataLoader(Sparse(), batch_size=None), "is sparse"),
    "nested_tensor": (lambda: {"x": ragged(), "y": arrays()[1]}, "is nested"),
    "packed": (lambda: [(packed(), arrays()[1])], "PackedSequence, in which samples do not lie apart"),
    "texts_in_an_array": (lambda: (np.array(["a"] * COUNT), arrays()[1]), "array of type <U1"),
    "failing_item": (lambda: Failing(), "could not be read beyond 2 batches: KeyError: 9"),
    "failing_batches": (lambda: FailingBatches(), "could not be read beyond 1 batches: ZeroDivisionError"),
}


def ragged() -> Tensor:
    x, _ = arrays()
    return torch.nested.nested_tensor(list(x), layout=torch.jagged)


def packed() -> Any:
    x, _ = arrays()
    return nn.utils.rnn.pack_padded_sequence(x[:, :, None], torch.full((COUNT,), 3), batch_first=True)


class Sparse(Dataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        x, y = arrays()
        return x.to_sparse(), y


class Failing(Items):
    def __getitem__(self, index: int) -> Any:
        if index == 9:
            raise KeyError(9)
        return super().__getitem__(index)


class FailingBatches(Batches):
    def __iter__(self) -> Iterator[Any]:
        yield next(super().__iter__())
        yield 1 / 0


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("samples", [None, 2])
def test_unusable_data_is_refused_in_one_sentence(name: str, samples: int | None, model: nn.Module) -> None:
    make, message = REFUSED[name]
    size = 4 if name == "failing_item" else None
    with pytest.raises(SpiritlevelError, match=message) as caught:
        opened(model, make(), samples=samples, batch_size=size).survey  # noqa: B018
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive whole number, not 0"),
        ({"batch_size": 2.5}, "batch_size must be a positive whole number"),
        ({"samples": 0}, "samples must be a positive whole number or None"),
        ({"samples": "all"}, "samples must be a positive whole number or None"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, Any], message: str, model: nn.Module) -> None:
    with pytest.raises(UsageError, match=message):
        opened(model, arrays(), **options)


def test_data_that_shrinks_is_refused(model: nn.Module) -> None:
    class Shrinking:
        def __init__(self) -> None:
            self.reads = 0

        def __iter__(self) -> Iterator[Any]:
            self.reads += 1
            x, y = arrays()
            yield x[: COUNT - self.reads], y[: COUNT - self.reads]

    with pytest.raises(SpiritlevelError, match="in the first sweep and"):
        sl.measure(opened(model, Shrinking()), "hessian_trace")
