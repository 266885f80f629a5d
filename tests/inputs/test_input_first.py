"""Weights stored with the inputs first give what torch's linear layers give, and nothing else passes for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.input_first import storage_order


class Conv1D(nn.Module):
    """A linear layer as GPT-2 has it: weight (inputs, outputs)."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.nf = outputs
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        size = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size)


class Turned(nn.Module):
    """The same under other names, without a bias."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.kernel


class Body(nn.Module):
    """Three layers of a kind, one of them square, at several positions or at one; a linear head."""

    def __init__(self, make: Callable[[int, int], nn.Module], activation: Any, positions: bool) -> None:
        super().__init__()
        self.c_fc, self.c_proj, self.square = make(6, 4), make(4, 6), make(4, 4)
        self.head, self.activation, self.positions = nn.Linear(4, 3), activation, positions

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.positions else x[:, 0]
        x = x + self.c_proj(self.activation(self.c_fc(x)))
        x = self.activation(self.square(x))
        return self.head(x.mean(1) if self.positions else x)


def pair_of_bodies(make: Callable[[int, int], nn.Module], activation: Any, positions: bool) -> tuple[Body, Body]:
    """The same network with weights inputs first, and with torch's linear layers."""
    generator = torch.Generator().manual_seed(7)
    turned = Body(make, activation, positions).double()
    with torch.no_grad():
        for parameter in turned.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=generator))
    with_bias = hasattr(turned.c_fc, "bias")
    plain = Body(lambda outputs, inputs: nn.Linear(inputs, outputs, with_bias), activation, positions).double()
    with torch.no_grad():
        for parameter, other in zip(plain.parameters(), turned.parameters()):
            parameter.copy_(other.T if other.ndim == 2 and parameter is not plain.head.weight else other)
    return turned, plain


def body_data(count: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(8)
    return torch.randn(count, 3, 4, generator=generator).double(), torch.arange(count) % 3


ON_MATRICES = [
    "hessian_trace", "kappa_tau_sum", "rho_sum", "rho_max", "relative_flatness", "normalized_sharpness",
    "matrix_normalized_sharpness", "spectral_complexity", "fisher_rao_norm", "aceht",
]  # fmt: skip


def assert_equal_reports(turned: Body, plain: Body, measures: Any) -> None:
    x, _ = body_data()
    data = x, plain(x).argmax(1)  # all right, so that margins are positive
    found, expected = (sl.measure(Problem(body, data, batch_size=5), measures) for body in (turned, plain))
    exact = {name for name, own in expected.items() if own.how == "exact" and own.ok}
    assert exact >= set(ON_MATRICES)
    for name, own in expected.items():
        assert (found[name].status, found[name].verified, found[name].how) == (own.status, own.verified, own.how), name
        # What is drawn at random follows the order a parameter is stored in, which is another one here.
        if name in exact:
            assert found[name].value == pytest.approx(own.value, rel=1e-7), name
        elif own.interval is not None:
            assert max(found[name].interval[0], own.interval[0]) <= min(found[name].interval[1], own.interval[1]), name
        elif own.stderr > 0 and name != "pac_bayes_terms":  # a search over noise, whose error is not all of its spread
            assert abs(found[name].value - own.value) <= 5 * (found[name].stderr ** 2 + own.stderr**2) ** 0.5, name
    for name in exact & expected.per_layer.keys():
        for layer, own in expected.per_layer[name].items():
            assert found.per_layer[name][layer].value == pytest.approx(own.value, rel=1e-7), (name, layer)
    assert not any("Read as matrices" in note for note in found.header.notes)


@pytest.mark.parametrize(("make", "positions"), [(Conv1D, False), (Conv1D, True), (Turned, True)])
def test_a_weight_stored_inputs_first_gives_what_torchs_linear_layer_gives(make: Any, positions: bool) -> None:
    assert_equal_reports(*pair_of_bodies(make, torch.relu, positions), ON_MATRICES)


@pytest.mark.slow
@pytest.mark.parametrize("positions", [False, True])
@pytest.mark.parametrize("make", [Conv1D, Turned])
def test_every_measure_of_a_weight_stored_inputs_first(make: Any, positions: bool) -> None:
    assert_equal_reports(*pair_of_bodies(make, torch.relu, positions), "papers")


@pytest.mark.parametrize("make", [Conv1D, Turned])
def test_a_last_layer_stored_inputs_first_is_the_head(make: Any) -> None:
    torch.manual_seed(0)
    last = make(3, 5)
    plain_last = nn.Linear(5, 3, bias=make is Conv1D)
    with torch.no_grad():
        for other, parameter in zip(last.parameters(), plain_last.parameters()):
            other.copy_(parameter.T if parameter.ndim == 2 else parameter)
    below = nn.Linear(4, 5)
    turned, plain = (nn.Sequential(below, nn.ReLU(), head).double() for head in (last, plain_last))
    x, y = body_data()
    names = ["feature_robustness", "aceht", "kappa_last", "kappa_tau_last", "relative_flatness"]
    found, expected = (
        sl.measure(Problem(model, (x[:, 0], y)), names, settings={"aceht.feature": "penultimate"})
        for model in (turned, plain)
    )
    for name in names:
        assert expected[name].ok
        assert found[name].value == pytest.approx(expected[name].value, rel=1e-2 if "robust" in name else 1e-9), name
    assert found["feature_robustness"].details["layer"] == "2"


def test_rows_of_a_conv1d_under_a_smooth_activation() -> None:
    turned, plain = pair_of_bodies(Conv1D, F.gelu, True)
    names = ["rho_sum", "relative_flatness"]
    found, expected = (sl.measure(Problem(body, body_data()), names).per_layer for body in (turned, plain))
    for name in names:
        for layer, own in expected[name].items():
            other = found[name][layer]
            assert abs(other.value - own.value) <= 5 * (other.stderr**2 + own.stderr**2) ** 0.5 + 1e-9, (name, layer)


def test_symmetries_of_a_conv1d_are_those_of_a_linear_layer() -> None:
    turned, plain = (
        nn.Sequential(first, nn.ReLU(), nn.Linear(6, 3)).double() for first in (Conv1D(6, 4), nn.Linear(4, 6))
    )
    with torch.no_grad():
        turned[0].weight.copy_(plain[0].weight.T)
        turned[0].bias.copy_(plain[0].bias)
        turned[2].load_state_dict(plain[2].state_dict())
    data = body_data()[0][:, 0], body_data()[1]
    audits = [
        sl.audit(Problem(body, data), ["rho_sum", "hessian_trace"], strengths=("usual",), alphas=())
        for body in (turned, plain)
    ]
    values = [sl.measure(Problem(body, data), ["rho_sum"])["rho_sum"].value for body in (turned, plain)]
    assert values[0] == pytest.approx(values[1], rel=1e-9)
    assert str(audits[0]).splitlines()[2:] == str(audits[1]).splitlines()[2:]


class Named(nn.Module):
    """What only looks alike: rules by name would take it for a Conv1D."""

    def __init__(self, rule: Callable[[Tensor, Tensor, Tensor], Tensor], square: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4) if square else torch.randn(3, 4))
        self.bias, self.rule = nn.Parameter(torch.randn(len(self.weight))), rule

    def forward(self, x: Tensor) -> Tensor:
        return self.rule(x, self.weight, self.bias)


Named.__name__ = "Conv1D"
LOOK_ALIKE: dict[str, Callable[[], nn.Module]] = {
    "outputs_first": lambda: Named(F.linear),
    "square_outputs_first": lambda: Named(F.linear, square=True),
    "normalised": lambda: Named(lambda x, w, b: F.linear(x, w / w.norm(dim=1, keepdim=True), b)),
    "rectified": lambda: Named(lambda x, w, b: F.linear(x, w, b).relu()),
    "rounding": lambda: Named(lambda x, w, b: F.linear(x.float().double(), w, b)),
}


@pytest.mark.parametrize("name", LOOK_ALIKE)
def test_a_layer_that_only_looks_like_one_keeps_its_rows(name: str) -> None:
    torch.manual_seed(0)
    layer = LOOK_ALIKE[name]()
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(len(layer.weight), 3)).double()
    x, y = body_data()
    found = sl.measure(Problem(model, (x[:, 0], y)), ["rho_sum", "kappa_tau_sum"])
    said = any("Read as matrices" in note and "0.weight" in note for note in found.header.notes)
    assert said == (not name.endswith("outputs_first"))
    if name.endswith("outputs_first"):
        plain = nn.Linear(4, len(layer.weight)).double()
        plain.load_state_dict(layer.state_dict())
        expected = sl.measure(Problem(nn.Sequential(plain, *model[1:]), (x[:, 0], y)), ["rho_sum", "kappa_tau_sum"])
        assert found["rho_sum"].value == pytest.approx(expected["rho_sum"].value, rel=1e-9)


def test_zero_and_symmetric_weights_do_not_hide_the_layout() -> None:
    for fill in (nn.init.zeros_, nn.init.eye_):
        layers = Conv1D(4, 4), Named(F.linear, square=True)
        for layer in layers:
            fill(layer.weight.data)
        before = [layer.weight.clone() for layer in layers]
        assert [storage_order(layer) for layer in layers] == ["inputs first", "outputs first"]
        assert all(torch.equal(layer.weight, kept) for layer, kept in zip(layers, before))
