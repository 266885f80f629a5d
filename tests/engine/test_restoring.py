"""The model comes back as it was: weights, gradients, modes, buffers, hooks, random state, also after a failure."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.errors import SpiritlevelError
from tests.engine.small_problem import data
from tests.helpers import opened


class Stateful(nn.Module):
    """Some of everything that can be left changed: buffers, frozen parts, submodules in different modes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(3, 4), nn.BatchNorm1d(4)
        self.middle, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.middle.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.head(F.relu(self.middle(F.relu(self.norm(self.first(x))))))


def snapshot(model: nn.Module) -> dict[str, Any]:
    return {
        "state": {name: tensor.clone() for name, tensor in model.state_dict().items()},
        "identity": {name: id(tensor) for name, tensor in model.named_parameters()},
        "gradients": {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        "requires": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "modes": {name: module.training for name, module in model.named_modules()},
        "hooks": {
            name: [len(getattr(module, kind)) for kind in vars(module) if kind.endswith("_hooks")]
            for name, module in model.named_modules()
        },
        "random": (torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()),  # noqa: NPY002
        "grad_mode": torch.is_grad_enabled(),
        "default": torch.get_default_dtype(),
        "inference": torch.is_inference_mode_enabled(),
    }


def assert_same(before: Any, after: Any) -> None:
    if isinstance(before, dict):
        assert before.keys() == after.keys()
        for key in before:
            assert_same(before[key], after[key])
    elif isinstance(before, tuple):
        for a, b in zip(before, after, strict=True):
            assert_same(a, b)
    elif isinstance(before, Tensor):
        assert torch.equal(before, after)
    else:
        assert before == after


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("measures", ["all", "hessian_trace"])
def test_the_model_comes_back_as_it_was(mode: str, measures: str) -> None:
    torch.manual_seed(2)
    model = Stateful().train()
    model.middle.eval()
    x, y = data()
    F.cross_entropy(model(x), y).backward()
    model.head.bias.grad = None
    before = snapshot(model)
    with torch.no_grad():
        quick = {"normalized_sharpness_direct.steps": 20}
        sl.measure(opened(model, (x, y), mode=mode, batch_size=5), measures, settings=quick, tolerance=0.2)
    assert_same(before, snapshot(model))


def test_an_embedding_that_renorms_its_own_weight_comes_back() -> None:
    model = nn.Sequential(nn.Embedding(6, 4, max_norm=0.5), nn.Flatten(), nn.Linear(12, 3))
    given = torch.randint(0, 6, (5, 3)), torch.randint(0, 3, (5,))
    before = snapshot(model)
    problem = opened(model, given)
    assert problem.survey.count == 5
    assert_same(before, snapshot(model))


def test_the_model_comes_back_after_a_failure() -> None:
    torch.manual_seed(2)
    model = Stateful().train()
    before = snapshot(model)
    x, y = data()
    with pytest.raises(SpiritlevelError):
        sl.measure(opened(model, (x, y + 5)), "hessian_trace")

    @sl.declare(title="fails", formula="!", citation="none")
    def failing(problem: OpenProblem) -> float:
        """Fail in the middle of a sweep."""
        for batch in problem.batches("failing"):
            problem.outputs(batch.content)
            raise KeyboardInterrupt
        return 0.0

    with pytest.raises(KeyboardInterrupt):
        sl.measure(opened(model, (x, y)), failing)
    assert_same(before, snapshot(model))
