"""Every claim of a measure about a symmetry, shown on a network that was transformed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.measures.declaration import SYMMETRIES
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results import Report
from spiritlevel.values.estimate import Estimate
from tests.helpers import opened
from tests.measures.trained import SETTINGS, reported, trained_mlp, uncertainty


def _scaled(model: nn.Sequential, first: Tensor, second: Tensor) -> nn.Sequential:
    """Multiply hidden units' outgoing values by factors and divide what reads them: the function stays."""
    changed = copy.deepcopy(model)
    with torch.no_grad():
        for layer, factors in ((0, first), (2, second)):
            changed[layer].weight.mul_(factors[:, None])
            changed[layer].bias.mul_(factors)
            changed[layer + 2].weight.div_(factors)
    return changed


def layer_rescaling(model: nn.Sequential) -> nn.Sequential:
    return _scaled(model, torch.full((5,), 3.0).double(), torch.full((4,), 0.25).double())


def neuron_rescaling(model: nn.Sequential) -> nn.Sequential:
    generator = torch.Generator().manual_seed(9)
    first, second = (torch.exp(2 * torch.randn(n, generator=generator).double()) for n in (5, 4))
    return _scaled(model, first, second)


OUTPUT_FACTOR = 0.15


def output_scaling(model: nn.Sequential) -> nn.Sequential:
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[4].weight.mul_(OUTPUT_FACTOR)
        changed[4].bias.mul_(OUTPUT_FACTOR)
    return changed


def permutation(model: nn.Sequential) -> nn.Sequential:
    changed = copy.deepcopy(model)
    first, second = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 3, 1, 0])
    with torch.no_grad():
        for layer, order in ((0, first), (2, second)):
            changed[layer].weight.copy_(changed[layer].weight[order])
            changed[layer].bias.copy_(changed[layer].bias[order])
            changed[layer + 2].weight.copy_(changed[layer + 2].weight[:, order])
    return changed


TRANSFORMS: dict[str, Callable[[nn.Sequential], nn.Sequential]] = {
    "layer_rescaling": layer_rescaling,
    "neuron_rescaling": neuron_rescaling,
    "output_scaling": output_scaling,
    "permutation": permutation,
}


@cache
def transformed_report(symmetry: str) -> Report:
    model, data = trained_mlp()
    changed = TRANSFORMS[symmetry](model)
    with torch.no_grad():
        factor = OUTPUT_FACTOR if symmetry == "output_scaling" else 1.0
        torch.testing.assert_close(changed(data[0]), factor * model(data[0]), rtol=1e-10, atol=1e-12)
    return sl.measure(opened(changed, data), "all", settings=SETTINGS)


def test_every_symmetry_is_answered_by_a_transformation() -> None:
    assert set(TRANSFORMS) == set(SYMMETRIES)


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("symmetry", SYMMETRIES)
def test_every_claim_about_a_symmetry_is_shown(name: str, symmetry: str) -> None:
    assert_claim(MEASURES[name].invariances[symmetry], reported("mlp")[name], transformed_report(symmetry)[name])


def assert_claim(claim: bool | None, before: Estimate, after: Estimate) -> None:
    """Hold two values to what is claimed of them: unchanged, changed, or not known."""
    difference = abs(after.value - before.value)
    noise = math.hypot(uncertainty(before), uncertainty(after))
    if claim is True:
        # A search for a maximum ends a little below it, from wherever it starts.
        searched = before.how == "lower_bound" and before.stderr == 0
        assert difference <= (1e-2 if searched else 1e-8) * abs(before.value) + 4 * noise, (before, after)
    elif claim is False:
        assert difference > 1e-3 * abs(before.value) + 2 * noise, (before, after)
