"""Identities that need no reference: closed forms, equal quadratic forms, invariance under rescaling, sandwiches."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.analyses.measuring import measure
from spiritlevel.analyses.symmetries import rescale_neurons
from spiritlevel.engine.blocks import Blocks
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.weight_matrices import as_matrix
from tests.helpers import opened

ALL = frozenset({"diagonal", "rows", "columns", "whole", "transposed"})


# --- an affine classifier: ACEHT is the trace ----------------------------------------------------------------------


def affine(margins: Tensor, dtype: torch.dtype) -> OpenProblem:
    """A classifier whose outputs have given margins: the first input decides, others only add to the norm."""
    torch.manual_seed(0)
    model = nn.Linear(5, 4).to(dtype)
    x = torch.randn(len(margins), 5).to(dtype)
    with torch.no_grad():
        model.weight.mul_(0.05)
        model.weight[:, 0] = torch.tensor([1.0, 0.0, -0.3, -0.7])
        model.bias.zero_()
        x[:, 0] = margins.to(dtype)
    return opened(model, (x, torch.zeros(len(margins)).long()), batch_size=16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_trace_of_an_affine_classifier_is_aceht_for_every_margin(dtype: torch.dtype) -> None:
    margins = torch.linspace(0, 60, 121)
    problem = affine(margins, dtype)
    found = sl.per_sample(problem, ["hessian_trace", "aceht", "margin_bound", "output_margin"])
    assert float(found["output_margin"].max()) > 55
    assert float(found["aceht"].min()) < 1e-20  # no cancellation, however confident
    assert float(found["aceht"].min()) > 0
    tolerance = 2e-6 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(found["hessian_trace"], found["aceht"], rtol=tolerance, atol=0)


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_margin_bound_is_above_aceht_and_the_printed_formula_is_not(scale: float) -> None:
    torch.manual_seed(1)
    model = nn.Linear(6, 5)
    with torch.no_grad():
        model.weight.mul_(scale)
    x = torch.randn(300, 6) * torch.linspace(0.1, 12, 300)[:, None]
    y = torch.randint(0, 5, (300,))  # most are misclassified
    problem = opened(model, (x, y))
    aceht, bound = (sl.per_sample(problem, name)[name] for name in ("aceht", "margin_bound"))
    assert bool((bound >= aceht * (1 - 1e-12)).all())
    printed = sl.per_sample(problem, "margin_bound", settings={"margin_bound.bound_norm": "l2"})["margin_bound"]
    assert bool((printed < aceht).any())
    assert float((printed < aceht).double().mean()) > 0.2


def test_the_bound_holds_for_margins_up_to_sixty() -> None:
    problem = affine(torch.linspace(0, 60, 121), torch.float32)
    found = sl.per_sample(problem, ["aceht", "margin_bound"])
    assert bool((found["margin_bound"] >= found["aceht"] * (1 - 1e-12)).all())
    printed = sl.per_sample(problem, "margin_bound", settings={"margin_bound.bound_norm": "l2"})["margin_bound"]
    assert bool((printed < found["aceht"]).any())


def test_the_last_layers_trace_is_aceht_of_the_features() -> None:
    """For any network: (‖φ‖² + 1)(1 - ‖p‖²), also behind smooth operations."""
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3)).double()
    x = torch.randn(12, 4).double()
    problem = opened(model, (x, torch.randint(0, 3, (12,))))
    blocks = Blocks(problem, ALL)
    head = blocks.layer_trace("3")
    aceht = measure(problem, "aceht", settings={"aceht.feature": "penultimate"})["aceht"]
    assert head.how == "exact"
    assert head.value == pytest.approx(aceht.value, rel=1e-10)
    with torch.no_grad():
        features = model[:3](x)
        p = model[3](features).softmax(1)
        gram = model[3].weight @ model[3].weight.T
        flatness = features.square().sum(1) * ((p * gram.diagonal()).sum(1) - torch.einsum("bi,ij,bj->b", p, gram, p))
    assert blocks.transposed("3").value == pytest.approx(float(flatness.mean()), rel=1e-10)


# --- equal quadratic forms -----------------------------------------------------------------------------------------


def test_a_bias_free_chain_has_the_same_quadratic_form_in_every_layer() -> None:
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, 6, bias=False),
        nn.LeakyReLU(0.1),
        nn.Linear(6, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 4, bias=False),
    ).double()
    x = 2 * torch.randn(15, 1, 6, 6).double()
    problem = opened(model, (x, torch.randint(0, 4, (15,))), batch_size=4)
    with torch.no_grad():
        f = model(x)
        p = f.softmax(1)
        expected = float(((p * f.square()).sum(1) - (p * f).sum(1).square()).mean())
    blocks = Blocks(problem, ALL)
    for layer in problem.weights:
        assert blocks.whole(layer).value == pytest.approx(expected, rel=1e-10)
    # θ = Σ over layers, each with the same push: θᵀGθ is the number of layers squared times it.
    radial = measure(problem, "fisher_rao_norm", settings={"fisher_rao_norm.labels": "model"})["fisher_rao_norm"]
    assert radial.value == pytest.approx(16 * expected, rel=1e-10)


# --- rescaling -----------------------------------------------------------------------------------------------------


class Stream(nn.Module):
    """Convolutions with BatchNorm, a residual stream, biases everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.inner, self.outer = nn.Conv2d(4, 3, 3, padding=1), nn.Conv2d(3, 4, 1)
        self.hidden, self.head = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.stem(x)))
        x = x + self.outer(torch.relu(self.inner(x)))
        return self.head(torch.relu(self.hidden(torch.relu(x).mean((2, 3)))))


def stream() -> tuple[Stream, tuple[Tensor, Tensor]]:
    torch.manual_seed(4)
    model = Stream()
    nn.init.uniform_(model.norm.weight, 0.5, 1.5)
    nn.init.normal_(model.norm.bias)
    nn.init.normal_(model.norm.running_mean)
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    return model.double().eval(), (torch.randn(9, 1, 4, 4).double(), torch.randint(0, 3, (9,)))


def rescaled_by_hand(model: Stream, seed: int) -> Stream:
    """Every neuron by its own factor between 1e-3 and 1e3, with everything that must follow it."""
    generator = torch.Generator().manual_seed(seed)

    def factors(count: int) -> Tensor:
        return 10 ** (6 * torch.rand(count, generator=generator).double() - 3)

    changed = copy.deepcopy(model)
    before_norm, residual, inner, hidden = factors(4), factors(4), factors(3), factors(5)
    with torch.no_grad():
        # Rows of the stem scale with the running mean; γ takes them back (scaling the variance would meet ε).
        changed.stem.weight.mul_(before_norm[:, None, None, None])
        changed.stem.bias.mul_(before_norm)
        changed.norm.running_mean.mul_(before_norm)
        changed.norm.weight.div_(before_norm).mul_(residual)
        changed.norm.bias.mul_(residual)
        # The residual stream takes one factor a channel: both of its sources, all of its readers.
        changed.outer.weight.mul_(residual[:, None, None, None])
        changed.outer.bias.mul_(residual)
        changed.inner.weight.div_(residual[:, None, None]).mul_(inner[:, None, None, None])
        changed.inner.bias.mul_(inner)
        changed.outer.weight.div_(inner[:, None, None])
        changed.hidden.weight.div_(residual).mul_(hidden[:, None])
        changed.hidden.bias.mul_(hidden)
        changed.head.weight.div_(hidden)
    return changed


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("loss", ["cross_entropy", "normalized_cross_entropy"])
def test_normalised_sharpness_and_rho_are_unchanged_by_rescaling_neurons(seed: int, loss: str) -> None:
    model, data = stream()
    changed = rescaled_by_hand(model, seed)
    torch.testing.assert_close(changed(data[0]), model(data[0]), rtol=1e-9, atol=1e-11)
    names = ["normalized_sharpness", "rho_sum", "rho_max", "hessian_trace"]
    before, after = (measure(opened(net, data, loss), names) for net in (model, changed))
    for name in names[:3]:
        assert after[name].value == pytest.approx(before[name].value, rel=1e-8)
        for layer, estimate in before.per_layer.get(name, {}).items():
            assert after.per_layer[name][layer].value == pytest.approx(estimate.value, rel=1e-7, abs=1e-12)
    assert abs(after["hessian_trace"].value / before["hessian_trace"].value - 1) > 0.1


def test_the_symmetries_found_in_the_graph_do_the_same() -> None:
    model, data = stream()
    changed = rescale_neurons(model, data[0], seed=3, low=1e-3, high=1e3)
    before, after = (measure(opened(net, data), ["normalized_sharpness", "rho_sum"]) for net in (model, changed))
    for name, estimate in before.items():
        assert after[name].value == pytest.approx(estimate.value, rel=1e-8)


@pytest.mark.parametrize(("factor", "shift"), [(1e-3, 0.0), (1e3, 0.0), (1.0, 5.0), (7.0, -3.0)])
def test_under_the_normalised_loss_outputs_may_be_scaled_and_shifted(factor: float, shift: float) -> None:
    model, data = stream()
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.head.weight.mul_(factor)
        changed.head.bias.mul_(factor).add_(shift)
    names = ["normalized_sharpness", "matrix_normalized_sharpness", "rho_sum", "kappa_tau_sum", "fisher_rao_norm"]
    before, after = (measure(opened(net, data, "normalized_cross_entropy"), names) for net in (model, changed))
    # A shift changes the size of the bias itself, which (13) counts and the length of θ too.
    for name in names if shift == 0 else ("normalized_sharpness", "rho_sum", "kappa_tau_sum"):
        assert after[name].value == pytest.approx(before[name].value, rel=1e-8)
    plain_before, plain_after = (measure(opened(net, data), "normalized_sharpness") for net in (model, changed))
    if factor != 1:
        ratio = plain_after["normalized_sharpness"].value / plain_before["normalized_sharpness"].value
        assert abs(ratio - 1) > 0.05


@pytest.mark.parametrize("loss", ["cross_entropy", "normalized_cross_entropy"])
def test_normalised_sharpness_lies_in_its_sandwich(loss: str) -> None:
    model, data = stream()
    problem = opened(model, data, loss)
    report = measure(problem, ["normalized_sharpness", "matrix_normalized_sharpness"])
    found, matrix = report["normalized_sharpness"], report["matrix_normalized_sharpness"]
    diagonal = sl.curvature(problem).diagonal
    lower = upper = 0.0
    for layer, full in problem.weights.items():
        weight, module = problem.chosen_parameters[full].detach(), problem.layers[layer].module
        h = as_matrix(module, diagonal[full].clamp(min=0), weight).sum(-1)
        w2 = as_matrix(module, weight.square(), weight).sum(-1)
        low = 2 * float((h * w2).sqrt().sum())
        high = 2 * math.sqrt(float(h.sum() * w2.sum()))
        own = report.per_layer["normalized_sharpness"][layer].value
        assert low * (1 - 1e-10) <= own <= high * (1 + 1e-10)
        lower, upper = lower + low, upper + high
    assert lower <= found.value <= upper
    assert found.details["lower"] == pytest.approx(lower, rel=1e-10)
    assert found.value <= 2 * matrix.value
    assert found.details["largest_residual"] <= 1e-8


def test_lambda_scales_normalised_sharpness_by_its_root() -> None:
    model, data = stream()
    problem = opened(model, data)
    one, other = (
        measure(problem, "normalized_sharpness", settings={"normalized_sharpness.lam": lam})["normalized_sharpness"]
        for lam in (0.5, 8.0)
    )
    assert other.value == pytest.approx(one.value / 4, rel=1e-10)


def test_linear_regression_has_the_known_kappa() -> None:
    """κ = 2 λ_max(mean xxᵀ)‖w‖² for a linear model under squared error."""
    torch.manual_seed(5)
    model = nn.Linear(4, 1, bias=False).double()
    x = torch.randn(30, 4).double()
    problem = opened(model, (x, torch.randn(30, 1).double()), "mean_squared_error")
    found = measure(problem, ["kappa_last", "kappa_tau_last"])
    moments = x.T @ x / 30
    norm = float(model.weight.detach().square().sum())
    assert found["kappa_last"].value == pytest.approx(2 * norm * float(torch.linalg.eigvalsh(moments)[-1]), rel=1e-6)
    assert found["kappa_tau_last"].value == pytest.approx(2 * norm * float(moments.trace()), rel=1e-10)


def test_the_floor_of_the_normalised_loss() -> None:
    """ln(1 + (K-1)exp(-K/√(K-1))): no network gets below it."""
    outputs = torch.zeros(1, 10).double()
    outputs[0, 3] = 1.0
    model = nn.Linear(10, 10, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.eye(10))
    survey = opened(model, (outputs, torch.tensor([3])), "normalized_cross_entropy").survey
    assert survey.loss == pytest.approx(math.log1p(9 * math.exp(-10 / 3)), rel=1e-10)
    assert survey.loss == pytest.approx(0.2784389, abs=1e-6)
