"""Symmetries found in small networks of the usual kinds, proven in float64 and counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spiritlevel.analyses import symmetries
from spiritlevel.values.errors import SpiritlevelError, UsageError


@dataclass(frozen=True)
class Case:
    """A network, its input, and how many factors per channel and per layer are free in it."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    neurons: int
    layers: int
    units: int

    def build(self) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        model = self.make().double()
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.normal_()
                module.running_var.uniform_(0.3, 3.0)
                module.weight.data.uniform_(0.5, 2.0)
                module.bias.data.normal_()
        return model, torch.randn(5, *self.shape, dtype=torch.float64)


def mlp(bias: bool = True) -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 9, bias), nn.ReLU(), nn.Linear(9, 7, bias), nn.LeakyReLU(0.1), nn.Linear(7, 4, bias)
    )


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.head = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.conv1(x).relu(), 2)
        x = F.max_pool2d(self.conv2(x).relu(), 2)
        x = x.view(x.size(0), -1)
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


class VGG(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, o in ((3, 8), (8, 8), (8, 12)):
            layers += [nn.Conv2d(i, o, 3, padding=1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers, nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2))
        self.classifier = nn.Sequential(
            nn.Dropout(), nn.Linear(48, 10), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(10, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.features(x), 1))


class PreActBlock(nn.Module):
    def __init__(self, width: int, out: int, stride: int = 1) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(out)
        self.conv1 = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(width, out, 1, stride, bias=False) if (width, stride) != (out, 1) else None

    def forward(self, x: Tensor) -> Tensor:
        first = F.relu(self.bn1(x))
        kept = self.shortcut(first) if self.shortcut is not None else x
        return self.conv2(F.relu(self.bn2(self.conv1(first)))) + kept


class PreAct(nn.Module):
    """A pre-activation residual network; ``widths`` above the stem's make it a wide one with projections."""

    def __init__(self, stem: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, stem, 3, padding=1, bias=False)
        ins = (stem, *widths[:-1])
        self.blocks = nn.Sequential(*(PreActBlock(i, o, 2 if o > i else 1) for i, o in zip(ins, widths)))
        self.bn = nn.BatchNorm2d(widths[-1])
        self.head = nn.Linear(widths[-1], 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.blocks(self.stem(x))))
        return self.head(F.avg_pool2d(x, x.shape[-1]).flatten(1))


class Separable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.depth1, self.point1 = nn.Conv2d(4, 8, 3, padding=1, groups=4), nn.Conv2d(8, 6, 1)
        self.bn = nn.BatchNorm2d(6)
        self.grouped = nn.Conv2d(6, 10, 3, groups=2, bias=False)
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn(self.point1(F.relu(self.depth1(F.relu(self.stem(x)))))))
        return self.head(self.grouped(x).relu().mean((2, 3)))


NETS = {
    "mlp": Case(mlp, (6,), 9 + 7, 2, 9 + 7),
    "mlp_no_bias": Case(lambda: mlp(False), (6,), 9 + 7, 2, 9 + 7),
    "lenet": Case(LeNet, (1, 28, 28), 6 + 16 + 120 + 84, 4, 6 + 16 + 120 + 84),
    # every BatchNorm has a factor before it and one after it, but its channels are one unit each
    "vgg_bn": Case(VGG, (3, 8, 8), 2 * (8 + 8 + 12) + 10, 7, 8 + 8 + 12 + 10),
    # stream 6; per block bn1 6, conv1 6, bn2 6; last bn 6. Units: the stream, and one set inside each block
    "preact": Case(lambda: PreAct(6, (6, 6)), (3, 8, 8), 6 + 2 * 18 + 6, 8, 6 + 2 * 6),
    # streams 4, 8, 12; blocks: bn1 of the input width, conv1 and bn2 of the output width; last bn
    "wide_resnet": Case(
        lambda: PreAct(4, (8, 12)),
        (3, 8, 8),
        (4 + 8 + 12) + (4 + 16) + (8 + 24) + 12,
        3 + 3 + 3 + 1,
        4 + 8 + 12 + 8 + 12,
    ),
    # the grouped convolution holds its 6 input channels in place, and its output is followed by no rule
    "separable": Case(Separable, (3, 8, 8), 4 + 8 + 6 + 6 + 10, 5, 4),
}


@pytest.fixture(scope="module")
def analysed() -> Callable[[str], tuple[nn.Module, Tensor, symmetries.Symmetries, Case]]:
    """Each network once, with what was found in it: tracing is the slow part."""
    known: dict[str, Any] = {}

    def get(name: str) -> Any:
        if name not in known:
            case = NETS[name]
            model, example = case.build()
            known[name] = model, example, symmetries.find(model, example), case
        return known[name]

    return get


def relative_difference(model: nn.Module, changed: nn.Module, x: Tensor, alpha: float = 1.0) -> float:
    """The test's own comparison, on the models as they are, put in eval mode here."""
    modes = [(module, module.training) for net in (model, changed) for module in net.modules()]
    with torch.no_grad():
        expected, found = alpha * model.eval()(x), changed.eval()(x)
    for module, mode in modes:
        module.training = mode
    return float((expected - found).abs().max() / expected.abs().max())


@pytest.mark.parametrize("name", NETS)
def test_free_factors_are_those_counted_by_hand(name: str, analysed: Any) -> None:
    _, _, found, case = analysed(name)
    assert found.free_factors("neurons") == case.neurons
    assert found.free_factors("layers") == case.layers
    assert found.free_factors("output_scale") == 1
    assert not found.left_alone


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("low", "high"), [(1e-3, 1e-3), (1e3, 1e3), (1e-3, 1e3)])
def test_neurons_rescaled_at_any_strength_keep_the_function(name: str, low: float, high: float, analysed: Any) -> None:
    model, x, found, _ = analysed(name)
    changed = symmetries.rescale_neurons(model, x, seed=3, low=low, high=high, found=found)
    assert relative_difference(model, changed, torch.randn_like(x) if x.is_floating_point() else x) < 1e-10
    moved = [n for n, p in changed.named_parameters() if not torch.equal(p, model.get_parameter(n))]
    assert len(moved) >= 2


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_every_layer_symmetry_keeps_the_function(name: str, factor: float, analysed: Any) -> None:
    model, x, found, _ = analysed(name)
    for symmetry in found.of_kind("layers"):
        changed = symmetries.rescale_layers(model, x, {symmetry.name: factor}, found=found)
        assert relative_difference(model, changed, torch.randn_like(x)) < 1e-10
        before, after = (net.get_submodule(symmetry.name).weight for net in (model, changed))
        torch.testing.assert_close(after, before * factor, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", NETS)
def test_hidden_units_can_change_places(name: str, analysed: Any) -> None:
    model, x, found, case = analysed(name)
    assert found.free_factors("permutation") == case.units
    changed = symmetries.permute_neurons(model, x, seed=0, found=found)
    assert relative_difference(model, changed, torch.randn_like(x)) < 1e-10
    for before, after in zip(model.parameters(), changed.parameters(), strict=True):
        torch.testing.assert_close(after.flatten().sort().values, before.flatten().sort().values, rtol=0, atol=0)
    first = next(iter(model.parameters()))
    assert not torch.equal(first, next(iter(changed.parameters())))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("where", ["last", "all"])
@pytest.mark.parametrize("alpha", [1e-3, 1e3])
def test_outputs_scale_by_alpha(name: str, where: str, alpha: float, analysed: Any) -> None:
    model, x, found, _ = analysed(name)
    changed = symmetries.scale_output(model, x, alpha, where=where, found=found)
    assert relative_difference(model, changed, torch.randn_like(x), alpha) < 1e-10


def test_sharing_alpha_over_a_chain_gives_bias_l_the_power_l(analysed: Any) -> None:
    model, x, found, _ = analysed("mlp")
    changed = symmetries.scale_output(model, x, 8.0, where="all", found=found)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    assert len(linear) == 3
    for depth, name in enumerate(linear, start=1):
        before, after = model.get_submodule(name), changed.get_submodule(name)
        torch.testing.assert_close(after.weight, 2.0 * before.weight, rtol=1e-12, atol=0)
        torch.testing.assert_close(after.bias, 2.0**depth * before.bias, rtol=1e-12, atol=0)


def test_scaling_the_last_layer_touches_it_alone(analysed: Any) -> None:
    model, x, found, _ = analysed("lenet")
    changed = symmetries.scale_output(model, x, 5.0, found=found)
    for name, parameter in model.named_parameters():
        expected = 5.0 * parameter if name.startswith("head") else parameter
        torch.testing.assert_close(changed.get_parameter(name), expected, rtol=1e-15, atol=0)


def test_a_layer_factor_reaches_weight_bias_and_consumer_only(analysed: Any) -> None:
    model, x, found, _ = analysed("mlp")
    changed = symmetries.rescale_layers(model, x, {"0": 7.0}, found=found)
    torch.testing.assert_close(changed[0].weight, model[0].weight * 7, rtol=1e-15, atol=0)
    torch.testing.assert_close(changed[0].bias, model[0].bias * 7, rtol=1e-15, atol=0)
    torch.testing.assert_close(changed[2].weight, model[2].weight / 7, rtol=1e-15, atol=0)
    assert torch.equal(changed[2].bias, model[2].bias)
    assert torch.equal(changed[4].weight, model[4].weight)


def test_biases_between_two_layers_are_carried_along(analysed: Any) -> None:
    """Layer 1 times a and layer 3 divided by a: Petzka et al. 2019, Theorem 2, for a network with biases."""
    model, x, found, _ = analysed("mlp")
    changed = symmetries.rescale_layers(model, x, {"0": 7.0, "2": 7.0}, found=found)
    assert torch.equal(changed[2].weight, model[2].weight)
    torch.testing.assert_close(changed[2].bias, model[2].bias * 7, rtol=1e-15, atol=0)
    torch.testing.assert_close(changed[4].weight, model[4].weight / 7, rtol=1e-15, atol=0)


def test_batch_norm_moves_its_mean_and_weight_and_never_its_variance(analysed: Any) -> None:
    model, x, found, _ = analysed("vgg_bn")
    changed = symmetries.rescale_layers(model, x, {"features.0": 7.0}, found=found)
    before, after = model.features[1], changed.features[1]
    torch.testing.assert_close(after.running_mean, before.running_mean * 7, rtol=1e-15, atol=0)
    torch.testing.assert_close(after.weight, before.weight / 7, rtol=1e-14, atol=0)
    assert torch.equal(after.running_var, before.running_var)
    assert torch.equal(after.bias, before.bias)


def test_given_factors_are_applied_in_order(analysed: Any) -> None:
    model, x, found, _ = analysed("mlp")
    factors = torch.linspace(0.5, 4.0, model[0].out_features, dtype=torch.float64)
    changed = symmetries.rescale_neurons(model, x, factors={"0": factors}, found=found)
    torch.testing.assert_close(changed[0].weight, model[0].weight * factors[:, None], rtol=1e-15, atol=0)
    torch.testing.assert_close(changed[2].weight, model[2].weight / factors[None, :], rtol=1e-14, atol=0)


def test_the_users_model_stays_bit_identical_and_flags_and_hooks_are_kept(analysed: Any) -> None:
    model, x = NETS["preact"].build()
    model.train()
    model.head.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones_like(model.head.bias)
    model.head.register_forward_hook(lambda module, inputs, output: None)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(5)
    random_state = torch.get_rng_state()
    found = symmetries.find(model, x)
    copies = [
        symmetries.rescale_neurons(model, x, seed=0, low=0.1, high=10.0, found=found),
        symmetries.scale_output(model, x, 3.0, found=found),
    ]
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert torch.equal(model.head.bias.grad, torch.ones_like(model.head.bias))
    for changed in copies:
        assert all(module.training for module in changed.modules())
        assert not changed.head.weight.requires_grad
        assert changed.head.bias.requires_grad
        assert len(changed.head._forward_hooks) == 1
        assert not {id(p) for p in changed.parameters()} & {id(p) for p in model.parameters()}


@pytest.mark.parametrize("name", ["mlp", "lenet", "vgg_bn", "preact"])
def test_float32_models_work_at_strength_1000(name: str) -> None:
    model, x = NETS[name].build()
    model, x = model.float(), x.float()
    changed = symmetries.rescale_neurons(model, x, seed=1, low=1e-3, high=1e3)
    assert next(changed.parameters()).dtype == torch.float32
    assert relative_difference(model, changed, x) < 1e-4


@pytest.mark.parametrize(
    ("net", "factors", "words"),
    [
        ("mlp", {"4": 2.0}, "produces the outputs"),
        ("mlp", {"0": -1.0}, "only positive"),
        ("mlp", {"0": float("inf")}, "only positive"),
        ("mlp", {"5": 2.0}, "no layer '5'"),
        ("preact", {"stem": 2.0, "blocks.0.conv2": 3.0}, "share one scale"),
    ],
)
def test_what_would_change_the_function_is_refused(
    net: str, factors: dict[str, float], words: str, analysed: Any
) -> None:
    model, x, found, _ = analysed(net)
    with pytest.raises(UsageError, match=words):
        symmetries.rescale_layers(model, x, factors, found=found)


def test_a_residual_stream_takes_one_factor(analysed: Any) -> None:
    model, x, found, _ = analysed("preact")
    stream = next(each for each in found.of_kind("layers") if "stem" in each.layers)
    assert stream.layers == ("stem", "blocks.0.conv2", "blocks.1.conv2")
    changed = symmetries.rescale_layers(model, x, {"blocks.1.conv2": 3.0}, found=found)
    torch.testing.assert_close(changed.stem.weight, 3 * model.stem.weight, rtol=1e-15, atol=0)


def test_same_seed_same_model_and_other_seed_another(analysed: Any) -> None:
    model, x, found, _ = analysed("mlp")
    first, again, other = (
        symmetries.rescale_neurons(model, x, seed=seed, low=0.1, high=10, found=found)[0].weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_wrong_analysis_cannot_pass_the_proof(analysed: Any) -> None:
    """What was found in one network, applied to another of the same shape but with a GELU, is refused."""
    model, x, found, _ = analysed("mlp")
    other = nn.Sequential(model[0], nn.GELU(), model[2], nn.GELU(), model[4])
    with pytest.raises(SpiritlevelError, match="not the same"):
        symmetries.rescale_neurons(other, x, seed=0, low=0.1, high=10, found=found)


def test_a_network_is_traced_once_and_again_when_it_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    from spiritlevel.analyses.symmetries import tracing

    class Chosen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.smooth = nn.Linear(4, 5), nn.Linear(5, 3), False

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            return self.second(hidden.tanh() if self.smooth else hidden.relu())

    traced: list[int] = []
    original = tracing.trace_model

    def counted(*arguments: Any) -> Any:
        traced.append(1)
        return original(*arguments)

    monkeypatch.setattr(tracing, "trace_model", counted)
    model, example = Chosen(), torch.randn(6, 4)
    first = symmetries.find(model, example)
    assert symmetries.find(model, example).of_kind("layers") == first.of_kind("layers") != ()
    assert len(traced) == 1
    model.smooth = True  # another graph, in which no layer can be rescaled
    assert not symmetries.find(model, example).of_kind("layers")
    assert len(traced) == 2
    symmetries.find(model, example[:1])
    assert len(traced) == 3
