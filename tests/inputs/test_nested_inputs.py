"""Inputs in tuples and dicts of their own, and texts, are counted, cut and moved like plain tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import spiritlevel as sl
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.measures.reference.dense import Dense


class TwoInputs(nn.Module):
    """A sum of two branches."""

    def __init__(self, smooth: bool = False) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 3)
        self.free = nn.Parameter(torch.randn(4))  # of no rule: gradients the general way
        self.smooth = smooth

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        hidden = (self.left(a) + self.right(b)) * self.free
        return self.head(torch.tanh(hidden) if self.smooth else torch.relu(hidden))


def two_inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    a, b = (torch.randn(11, width, generator=generator).double() for width in (3, 2))
    return a, b, torch.arange(11) % 3


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


def items(make: Callable[[Tensor, Tensor], Any]) -> list[Any]:
    return [(make(a, b), y) for a, b, y in zip(*two_inputs())]


class Items(torch.utils.data.Dataset):
    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        self.items = items(make)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


def nested_batches(make: Callable[[Tensor, Tensor], Any]) -> list[Any]:
    a, b, y = two_inputs()
    return [(make(a[i : i + 4], b[i : i + 4]), y[i : i + 4]) for i in range(0, 11, 4)]


NESTED: dict[str, Callable[[], Any]] = {
    "tensors": lambda: (two_inputs()[:2], two_inputs()[2]),
    "lists": lambda: [list(two_inputs()[:2]), two_inputs()[2]],
    "arrays": lambda: (tuple(t.numpy() for t in two_inputs()[:2]), two_inputs()[2].numpy()),
    "named_tuple": lambda: (Pair(*two_inputs()[:2]), two_inputs()[2]),
    "keywords": lambda: (dict(zip("ba", two_inputs()[1::-1])), two_inputs()[2]),
    "batches": lambda: nested_batches(lambda a, b: (a, b)),
    "keyword_batches": lambda: nested_batches(lambda a, b: {"b": b, "a": a}),
    "dataset": lambda: Items(lambda a, b: (a, b)),
    "loader_of_dicts": lambda: DataLoader(Items(lambda a, b: {"a": a, "b": b}), batch_size=3, shuffle=True),
}


@pytest.mark.parametrize("samples", [None, 7])
@pytest.mark.parametrize("name", NESTED)
def test_nested_inputs_are_counted_cut_and_moved(name: str, samples: int | None) -> None:
    torch.manual_seed(0)
    model = TwoInputs().double()
    a, b, y = two_inputs()
    names = ["loss", "hessian_trace", "output_margin"]
    expected = sl.per_sample(Problem(model, {"a": a, "b": b, "y": y}, samples=samples), names)
    problem = open_problem(Problem(model, NESTED[name](), samples=samples, batch_size=3))
    found = sl.per_sample(problem, names)
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, rtol=1e-9, atol=1e-12)
    assert any("given the 2 inputs of a batch's first entry" in note for note in problem.notes)


@pytest.mark.parametrize("smooth", [False, True])
def test_every_measure_takes_nested_inputs(smooth: bool) -> None:
    torch.manual_seed(0)
    model = TwoInputs(smooth).double()
    a, b, y = two_inputs()
    nested = sl.measure(Problem(model, ((a, b), y), batch_size=4), "papers", tolerance=0.3)
    flat = sl.measure(Problem(model, {"a": a, "b": b, "y": y}, batch_size=4), "papers", tolerance=0.3)
    for name, estimate in flat.items():
        assert nested[name].status == estimate.status, name
        torch.testing.assert_close(nested[name].value, estimate.value, rtol=1e-7, atol=0, equal_nan=True)
    trace = float(Dense(Problem(model, ((a, b), y))).hessian.trace())
    assert abs(nested["hessian_trace"].value - trace) <= 1e-9 + 5 * nested["hessian_trace"].stderr


def test_an_audit_takes_nested_inputs() -> None:
    torch.manual_seed(0)
    model = TwoInputs().double()
    a, b, y = two_inputs()
    for data in (((a, b), y), ({"b": b, "a": a}, y)):
        audit = sl.audit(sl.Problem(model, data), ["hessian_trace"], strengths=("usual",), alphas=())
        assert "hessian_trace" in str(audit)


class Scaled(nn.Module):
    """A parameter of no rule, so that gradients go the general way, below a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.head = nn.Parameter(torch.tensor([0.5, -2.0, 1.5])), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(x * self.free))


@pytest.mark.parametrize("samples", [None, 7])
def test_texts_are_cut_with_their_samples(samples: int | None) -> None:
    torch.manual_seed(0)
    model = Scaled().double()
    x, _, y = two_inputs()
    texts = [" ".join(map(repr, row)) for row in x.tolist()]

    def read(net: nn.Module, batch: Any) -> Tensor:
        return net(torch.tensor([[float(word) for word in text.split()] for text in batch[0]]).double())

    names = ["loss", "hessian_trace"]
    expected = sl.per_sample(Problem(model, (x.float().double(), y), samples=samples), names)
    for size in (None, 4):
        batches = [(texts, y)]
        found = sl.per_sample(Problem(model, batches, forward=read, samples=samples, batch_size=size), names)
        for key, values in expected.items():
            torch.testing.assert_close(found[key], values, rtol=1e-9, atol=1e-12)
