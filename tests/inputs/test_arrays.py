"""Arrays are read however they lie in memory; parameters and models without numbers change nothing or are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.values.errors import SpiritlevelError
from tests.helpers import opened
from tests.inputs.test_data import COUNT, Items, arrays, call_with_input, numpy_arrays


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3)).double()


class FlippedItems(Items):
    """Samples as views that run backwards."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x.numpy()[::-1], y


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


ARRAYS: dict[str, tuple[Any, bool]] = {  # and whether each sample's inputs are in reversed order
    "flipped": (lambda x, y: (x[:, ::-1], y), True),
    "flipped_in_a_dict": (lambda x, y: {"input": np.flip(x, 1), "labels": y}, True),
    "flipped_twice_in_batches": (lambda x, y: [(x[:, ::-1][a:b], y[a:b]) for a, b in ((0, 4), (4, COUNT))], True),
    "flipped_items": (lambda x, y: FlippedItems(), True),
    "flipped_items_in_a_dict": (
        lambda x, y: [{"input": x[:6, ::-1], "y": y[:6]}, {"input": x[6:, ::-1], "y": y[6:]}],
        True,
    ),
    "another_byte_order": (lambda x, y: (x.astype(">f8"), y.astype(">i4")), False),
    "read_only": (lambda x, y: (read_only(x), read_only(y)), False),
    "unsigned": (lambda x, y: (x, y.astype(np.uint16)), False),
    "unsigned_tensor": (lambda x, y: (x, torch.from_numpy(y).to(torch.uint32)), False),
    "strided": (lambda x, y: (np.repeat(x, 2, 0)[::2], np.repeat(y, 2)[::2]), False),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_are_read_however_they_lie(name: str, model: nn.Module) -> None:
    make, reverse = ARRAYS[name]
    x, y = arrays()
    expected = opened(model, (x.flip(1) if reverse else x, y)).survey
    found = opened(model, make(*numpy_arrays()), forward=call_with_input).survey
    torch.testing.assert_close(found.losses, expected.losses, rtol=1e-12, atol=0)
    assert found.fingerprint == expected.fingerprint


def test_the_fingerprint_sees_the_imaginary_part() -> None:
    model = nn.Linear(3, 3).double()
    x, y = arrays()

    def of(imaginary: Tensor) -> str:
        problem = opened(model, (torch.complex(x, imaginary), y), forward=lambda net, batch: net(batch[0].real))
        return problem.survey.fingerprint

    assert of(x) != of(2 * x)


# --- parameters and models without numbers -------------------------------------------------------------------------


class WithEmpty(nn.Module):
    """A network beside parameters of no entries."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.none = inner, nn.Parameter(torch.zeros(0).double())
        self.rows, self.columns = (nn.Parameter(torch.zeros(shape).double()) for shape in ((0, 3), (3, 0)))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.none.sum() + (x @ self.columns).sum(1, keepdim=True) + self.rows.sum()


def test_parameters_of_no_entries_change_nothing(model: nn.Module) -> None:
    problem, plain = opened(WithEmpty(model), arrays()), opened(model, arrays())
    found, expected = (sl.measure(each, ["default", "relative_flatness", "weight_norm"]) for each in (problem, plain))
    for name, own in expected.items():
        torch.testing.assert_close(found[name].value, own.value, rtol=1e-7, atol=0, equal_nan=True, msg=name)
    assert problem.size == plain.size
    assert HessianOperator(problem) @ torch.ones(problem.size).double() is not None
    audit = sl.audit(problem, ["rho_sum"], strengths=("usual",), alphas=())
    assert "rho_sum" in str(audit)
    with pytest.raises(SpiritlevelError, match="every chosen parameter is empty"):
        opened(WithEmpty(model), arrays(), parameters=["none", "rows"])


@pytest.mark.parametrize("part", ["all", "weight", "buffer"])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_model_without_numbers_is_refused(part: str, device: str | None, model: nn.Module) -> None:
    if part == "all":
        model.to("meta")
    elif part == "weight":
        model[0].weight = nn.Parameter(torch.empty(4, 3, device="meta"))
    else:
        model.register_buffer("scale", torch.empty(1, device="meta"))
    with pytest.raises(SpiritlevelError, match="on the meta device, which holds shapes and no numbers"):
        opened(model, arrays(), device=device)
