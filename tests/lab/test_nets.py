"""The built-in networks have the papers' parameter counts, accept the data's shape and depend only on their seed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from spiritlevel.lab import nets
from spiritlevel.values.errors import UsageError

COUNTS = [
    ("softmax_regression", {}, 7_850),
    ("mlp", {}, 784 * 512 + 512 + 2 * (512 * 512 + 512) + 5_130),
    ("mlp", {"widths": (100,)}, 79_510),
    ("mlp_9960", {}, 9_960),
    ("mlp_petzka", {}, 784 * 50 + 50 + 2 * 2_550 + 1_530 + 310),
    ("fcnbn", {}, 784 * 512 + 512 + 2 * (512 * 512 + 512) + 5_130 + 3 * 1_024),
    ("fcnbn", {"size": 32}, 1_024 * 512 + 512 + 2 * (512 * 512 + 512) + 5_130 + 3 * 1_024),
    ("lenet5", {}, 61_706),
    ("lenet5", {"channels": 3, "size": 32}, 62_006),
    ("lenet5", {"activation": "tanh", "pool": "avg"}, 61_706),
    ("allcnnc", {}, 1_387_108),
    ("preresnet164", {}, 1_726_388),
    ("wrn28_10", {}, 36_546_980),
    ("vgg16_bn", {}, 15_299_748),
    ("digits_mlp", {}, 3_466),
    ("digits_cnn", {}, 1_898),
]


@pytest.mark.parametrize(("name", "args", "count"), COUNTS)
def test_parameter_count(name: str, args: dict[str, object], count: int) -> None:
    model = nets.build(name, device="meta", **args)  # type: ignore[arg-type]
    assert sum(p.numel() for p in model.parameters()) == count


@pytest.mark.parametrize("name", list(nets.NETS))
def test_every_network_maps_images_of_any_admitted_shape_to_class_scores(name: str) -> None:
    spec = nets.spec(name)
    for channels, size, classes in ((spec.channels, spec.size, spec.classes), (3, nets.size_for(name, 32), 7)):
        model = nets.build(name, channels=channels, size=size, classes=classes, device="meta").eval()
        assert model(torch.empty(2, channels, size, size, device="meta")).shape == (2, classes)


@pytest.mark.parametrize(("name", "args"), [("preresnet164", {"depth": 11}), ("wrn28_10", {"depth": 10, "width": 1})])
def test_residual_networks_run_and_reach_every_parameter(name: str, args: dict[str, int]) -> None:
    model = nets.build(name, seed=0, classes=3, **args)  # type: ignore[arg-type]
    model(torch.rand(4, 3, 32, 32)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    assert float(next(model.parameters()).grad.abs().sum()) > 0  # type: ignore[union-attr]


def test_a_zero_residual_leaves_the_identity() -> None:
    block: Any = list(nets.build("wrn28_10", seed=0, depth=16, width=1).children())[2]  # second block, first stage
    with torch.no_grad():
        block.residual[-1].weight.zero_()
        block.residual[-1].bias.zero_()
    x = torch.randn(2, 16, 8, 8)
    assert torch.equal(block(x.clone()), x)


def test_the_seed_decides_the_weights_and_the_global_state_is_left_alone() -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    a, b, c = (nets.build("lenet5", seed=s) for s in (3, 3, 4))
    assert torch.equal(torch.random.get_rng_state(), before)
    first = [torch.cat([p.flatten() for p in m.parameters()]) for m in (a, b, c)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def test_tanh_lenet_has_no_relu_and_no_max_pooling() -> None:
    kinds = {type(m).__name__ for m in nets.build("lenet5", activation="tanh", pool="avg").modules()}
    assert {"Tanh", "AvgPool2d"} <= kinds
    assert not kinds & {"ReLU", "MaxPool2d"}


def test_small_images_are_refused_with_the_remedy_and_size_for_gives_the_side() -> None:
    assert nets.size_for("lenet5", 8) == 28
    assert nets.size_for("lenet5", 32) == 32
    with pytest.raises(UsageError, match="fit_images"):
        nets.build("lenet5", size=8)


def test_wrong_names_are_answered_with_the_right_ones() -> None:
    with pytest.raises(UsageError, match="did you mean lenet5"):
        nets.build("lenet")
    with pytest.raises(UsageError, match="widths="):
        nets.build("mlp", width=3)
    with pytest.raises(UsageError, match="6n"):
        nets.build("wrn28_10", depth=27)
    with pytest.raises(UsageError, match="xavier_normal"):
        nets.initialise(nets.build("digits_mlp"), "xavier", 0)
    with pytest.raises(UsageError, match="relu, tanh"):
        nets.build("lenet5", activation="gelu")


STD = {
    "xavier_normal": math.sqrt(2 / (784 + 512)),
    "kaiming_uniform": math.sqrt(2 / 784),
    "uniform": 0.2 / math.sqrt(12),
    "normal": math.sqrt(0.1),
    "normal_tenth": 0.1,
}


@pytest.mark.parametrize("how", list(nets.INITIALISATIONS))
def test_initialisations_have_their_stated_spread_and_zero_biases(how: str) -> None:
    model: Any = nets.initialise(nets.build("fcnbn", seed=0), how, seed=1)
    layer, norm = model[1], model[2]
    assert float(layer.weight.detach().std()) == pytest.approx(STD[how], rel=0.02)
    assert float(layer.bias.detach().abs().max()) == 0.0
    assert torch.equal(norm.weight, torch.ones(512))
    again: Any = nets.initialise(nets.build("fcnbn", seed=5), how, seed=1)
    assert torch.equal(again[1].weight, layer.weight)
