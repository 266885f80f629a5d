"""Max-pooling by shifted views: the same numbers as torch's own kernel, only where nothing but values is needed."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad

import spiritlevel as sl
from spiritlevel.inputs.process import fast_max_pool as module
from spiritlevel.inputs.process.fast_max_pool import fast_max_pool
from tests.helpers import opened

CPU = torch.device("cpu")


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The windows that were reduced by views."""
    found: list[tuple[int, int]] = []
    original = module._largest

    def watched(values: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        found.append(size)
        return original(values, size)

    monkeypatch.setattr(module, "_largest", watched)
    return found


@pytest.mark.parametrize(
    ("options", "quick"),
    [
        ({"kernel_size": 2}, True),
        ({"kernel_size": 3}, True),
        ({"kernel_size": (2, 3)}, True),
        ({"kernel_size": 2, "stride": 2}, True),
        ({"kernel_size": (1, 4), "stride": (1, 4)}, True),
        ({"kernel_size": 3, "stride": 2}, False),
        ({"kernel_size": 2, "stride": 3}, False),
        ({"kernel_size": 2, "padding": 1}, False),
        ({"kernel_size": 2, "dilation": 2}, False),
        ({"kernel_size": 2, "ceil_mode": True}, False),
        ({"kernel_size": 2, "return_indices": True}, False),
        ({"kernel_size": 5}, False),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 8, 9), (3, 10, 7)])
def test_values_are_those_of_torch(shape, options, quick, taken) -> None:  # type: ignore[no-untyped-def]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values.view(-1)[5] = torch.nan
    values.view(-1)[40] = torch.inf
    with torch.no_grad():
        expected = F.max_pool2d(values, **options)
        with fast_max_pool(CPU):
            found = F.max_pool2d(values, **options)
            again = nn.MaxPool2d(**options)(values)
            named = F.max_pool2d(input=values, **options)
    for one in (found, again, named):
        torch.testing.assert_close(one, expected, rtol=0, atol=0, equal_nan=True)
    assert bool(taken) is quick


def test_derivatives_in_either_direction_keep_torchs_own(taken) -> None:  # type: ignore[no-untyped-def]
    values = torch.zeros(1, 1, 2, 2, requires_grad=True)  # four equal: a derivative goes to one of them
    with fast_max_pool(CPU):
        F.max_pool2d(values, 2).backward()
    assert values.grad is not None
    assert values.grad.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]
    with torch.no_grad(), forward_ad.dual_level():
        dual = forward_ad.make_dual(torch.zeros(1, 1, 2, 2), torch.arange(4.0).reshape(1, 1, 2, 2))
        with fast_max_pool(CPU):
            assert float(forward_ad.unpack_dual(F.max_pool2d(dual, 2)).tangent) == 0.0
    assert not taken


def test_a_forward_pass_takes_it(taken) -> None:  # type: ignore[no-untyped-def]
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3))
    problem = opened(model, (torch.randn(5, 1, 8, 8), torch.randint(3, (5,))))
    sl.per_sample(problem, "loss")
    assert taken
    sl.curvature(problem)  # compares losses at two other points, the first time
    before = len(taken)
    sl.curvature(problem)  # the graph itself needs the places of the maxima
    assert len(taken) == before
