"""Pull-backs that stop at a max-pooling: which layers they serve, and that nothing changes but the cost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.passes.graph import look_at
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.measures.reference import Dense
from tests.helpers import opened


class _TwoReaders(nn.Module):
    """A convolution whose output is pooled, and read by a second branch too."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.head = nn.Linear(3 * 4 + 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv(x)
        return self.head(torch.cat([nn.functional.max_pool2d(inner, 3).flatten(1), inner.mean((2, 3))], 1))


def _chain(*middle: nn.Module, conv: nn.Module | None = None) -> nn.Module:
    return nn.Sequential(conv or nn.Conv2d(1, 3, 3), *middle, nn.Flatten(), nn.LazyLinear(3))


NETWORKS = {
    "rectified, then pooled": (lambda: _chain(nn.ReLU(), nn.MaxPool2d(2)), True),
    "rectified in place": (lambda: _chain(nn.ReLU(inplace=True), nn.MaxPool2d(2)), True),
    "pooled, then rectified": (lambda: _chain(nn.MaxPool2d(2), nn.ReLU()), True),
    "overlapping windows": (lambda: _chain(nn.ReLU(), nn.MaxPool2d(3, stride=1)), True),
    "padded, dilated windows": (lambda: _chain(nn.MaxPool2d(3, stride=2, padding=1, dilation=2)), True),
    "groups": (lambda: _chain(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2), conv=nn.Conv2d(1, 2, 1)), True),
    "no bias": (lambda: _chain(nn.ReLU(), nn.MaxPool2d(2), conv=nn.Conv2d(1, 3, 3, bias=False)), True),
    "leaky": (lambda: _chain(nn.LeakyReLU(), nn.MaxPool2d(2)), False),
    "averaged": (lambda: _chain(nn.ReLU(), nn.AvgPool2d(2)), False),
    "two readers": (_TwoReaders, False),
}


def _network(name: str, x: Tensor) -> nn.Module:
    torch.manual_seed(1)
    model = NETWORKS[name][0]().double()
    model(x)  # fills in the lazy layer's size
    return model


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_are_those_of_the_dense_hessian(name: str) -> None:
    x = torch.randn(7, 1, 8, 8, dtype=torch.float64)
    y = torch.arange(7) % 3
    problem = opened(_network(name, x), (x, y), batch_size=3)
    found = sl.curvature(problem)
    dense = Dense(problem)
    diagonal = torch.cat([part.reshape(-1) for part in found.diagonal.values()])
    torch.testing.assert_close(diagonal, dense.hessian.diagonal(), rtol=1e-9, atol=1e-12)
    assert found.exact


@pytest.mark.parametrize("name", NETWORKS)
def test_only_what_is_pooled_at_once_is_stopped_at(name: str) -> None:
    x = torch.randn(4, 1, 8, 8, dtype=torch.float64)
    problem = opened(_network(name, x), (x, torch.zeros(4, dtype=torch.long)))
    with problem.session(), Recorder(problem) as recorder:
        outputs = problem.outputs((x, None))
    recorder.stop_after_poolings(look_at(outputs))
    assert bool(recorder.poolings) is NETWORKS[name][1]
