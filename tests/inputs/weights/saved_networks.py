"""Networks that are saved, and what reading them back must give."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import pathlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spiritlevel.inputs.weights.checkpoints import load_weights
from spiritlevel.values.errors import SpiritlevelError


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
            self.head = nn.Linear(3, 2)
        self.register_buffer("scale", torch.tensor([2.0 + seed]))
        self.register_buffer("constant", torch.arange(3.0), persistent=False)


@dataclasses.dataclass
class Settings:
    width: int = 3
    path: pathlib.Path = pathlib.Path("runs")


class Runs:
    """Pickles as a call of any function on any arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def assert_same(model: nn.Module, wanted: dict[str, Tensor]) -> None:
    found = model.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def assert_loads(path: Path, wanted: nn.Module, key: str | None = None, **found: Any) -> None:
    model = Net(seed=1)
    loaded = load_weights(model, path, key)
    assert_same(model, wanted.state_dict())
    for name, value in found.items():
        assert getattr(loaded, name) == value


def assert_refused(
    path: Path, words: str, key: str | None = None, model: nn.Module | None = None, error: Any = SpiritlevelError
) -> str:
    model = Net(seed=1) if model is None else model
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=words) as caught:
        load_weights(model, path, key)
    assert_same(model, before)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def training_state(net: nn.Module) -> dict[str, Any]:
    """The rest of what training loops save: optimiser, NumPy numbers, options, paths, objects."""
    optimizer = torch.optim.Adam(net.parameters())
    torch.stack([p.sum() for p in net.parameters()]).sum().backward()
    optimizer.step()
    return {
        "optimizer": optimizer.state_dict(),
        "epoch": np.int64(3),
        "best": np.float64(0.5),
        "history": np.arange(6.0).reshape(2, 3),
        "names": np.array(["a", None], dtype=object),
        "rng": np.random.RandomState(0).get_state(),
        "args": argparse.Namespace(lr=0.1, path=pathlib.Path("/data"), shape=torch.Size([2, 3])),
        "out": pathlib.Path("/runs"),
        "settings": Settings(),
        "counts": collections.Counter("abca"),
        "meters": collections.defaultdict(list, {"loss": [1.0]}),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "loss": nn.CrossEntropyLoss(),
        "seen": {1, 2},
        "mask": frozenset({"x"}),
    }
