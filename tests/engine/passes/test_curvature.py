"""Exact curvature against the dense reference: whole network, each layer, each sample, every form of each weight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.inputs.losses import CrossEntropy, NextToken
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.reference import Dense
from spiritlevel.measures.reference.curvature import quadratic_forms
from tests.engine.passes.agreement import ALL, close
from tests.helpers import Case, opened
from tests.networks import PIECEWISE_LINEAR, SMOOTH, Positions


def relative_flatness(dense: Dense, full: str) -> float:
    """Σ over rows s, s' of ⟨w_s, w_s'⟩ Tr H_ss' for an ungrouped weight, by its indices alone."""
    weight = dense.tensor(full).flatten(1)
    block = dense.block(full).reshape(*weight.shape, *weight.shape)
    return float(torch.einsum("sk,tk,sata->", weight, weight, block))


def assert_exact(problem: OpenProblem, *, samples: int = 2) -> Dense:
    """Compare everything the blocks give with the dense Hessian; all layers must be exact."""
    dense = Dense(problem)
    blocks = Blocks(problem, ALL)
    assert blocks.exact_layers == dict.fromkeys(problem.layers, True)
    assert_agreement(problem, dense, blocks, set(problem.layers))
    trace = blocks.network_trace()
    assert (trace.how, trace.stderr, trace.verified) == ("exact", 0.0, True)
    close(trace.value, dense.hessian.trace())
    close(blocks.ggn_trace().value, dense.ggn.trace())
    traces = blocks.sample_traces()
    assert (traces.how, float(traces.stderr.abs().max())) == ("exact", 0.0)
    for index in torch.linspace(0, problem.survey.count - 1, samples).long().tolist():
        close(traces.value[index], dense.sample_hessian(index).trace())
    close((traces.value * dense.weights).sum(), dense.hessian.trace())
    return dense


def assert_agreement(problem: OpenProblem, dense: Dense, blocks: Blocks, layers: set[str]) -> None:
    diagonal = dense.hessian.diagonal()
    for name in layers:
        parameters = problem.layers[name].parameters.values()
        estimate = blocks.layer_trace(name)
        assert (estimate.how, estimate.stderr) == ("exact", 0.0)
        close(estimate.value, sum(float(diagonal[dense.slices[full]].sum()) for full in parameters))
        for full in parameters:
            close(blocks.diagonal(full).value, diagonal[dense.slices[full]].reshape(dense.shapes[full]))
    for weight, full in problem.weights.items():
        if not any(full in problem.layers[name].parameters.values() for name in layers):
            continue
        close(blocks.weight_trace(weight).value, dense.block(full).trace())
        close(blocks.rows(weight).value, quadratic_forms(dense, full, "in"))
        close(blocks.columns(weight).value, quadratic_forms(dense, full, "out"))
        close(blocks.whole(weight).value, quadratic_forms(dense, full, "layer")[0])
        module = problem.model.get_submodule(full.rpartition(".")[0])
        if getattr(module, "groups", 1) == 1 and not isinstance(module, nn.Embedding | nn.ConvTranspose2d):
            close(blocks.transposed(weight).value, relative_flatness(dense, full))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", PIECEWISE_LINEAR)
def test_exact_blocks_of_every_architecture_agree_with_the_dense_hessian(name: str) -> None:
    problem = PIECEWISE_LINEAR[name].opened()
    assert problem.size < 300
    assert_exact(problem)
    # The rules, not the slow general way, did the work.
    sums = Blocks(problem).sums
    assert sums is not None
    assert not sums.fallback


@pytest.mark.parametrize("name", SMOOTH)
def test_only_layers_behind_the_last_curved_operation_are_exact(name: str) -> None:
    case = SMOOTH[name]
    problem = case.opened()
    blocks = Blocks(problem, ALL)
    assert {layer for layer, exact in blocks.exact_layers.items() if not exact} == case.smooth
    dense = Dense(problem)
    assert_agreement(problem, dense, blocks, set(problem.layers) - case.smooth)
    close(blocks.ggn_trace().value, dense.ggn.trace())
    # The Gauss–Newton part is exact in every layer, by rules and by fallbacks alike.
    assert blocks.sums is not None
    for full in problem.parameters:
        sums = blocks.sums.parameters[full]
        assert sums.diagonal is not None
        close(sums.diagonal[0], dense.ggn.diagonal()[dense.slices[full]].reshape(dense.shapes[full]))


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mlp", "conv2d_dilated_grouped", "batch_norm_2d", "embedding", "prelu", "functional"])
def test_every_device_present_gives_the_dense_hessian(name: str, device: str) -> None:
    problem = PIECEWISE_LINEAR[name].opened(device=device)
    assert problem.device.type == device
    assert_exact(problem)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["gelu", "attention", "lstm", "weight_norm"])
def test_remainders_are_sampled_on_every_device_present(name: str, device: str) -> None:
    problem = SMOOTH[name].opened(device=device)
    blocks = Blocks(problem, ALL)
    dense = Dense(problem)
    trace = blocks.network_trace()
    rounding = 1e-9 * float(dense.hessian.diagonal().abs().sum())
    assert abs(trace.value - float(dense.hessian.trace())) <= 5 * trace.stderr + rounding
    for weight, full in problem.weights.items():
        forms = quadratic_forms(dense, full, "in")
        rows = blocks.row_sum(weight)
        assert abs(rows.value - float(forms.sum())) <= 5 * rows.stderr + 1e-8 * float(forms.abs().sum()) + 1e-12
        assert blocks.columns(weight).value.device.type == "cpu"


# --- losses --------------------------------------------------------------------------------------------------------


def _weighted_huber(outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    target = F.one_hot(batch[1], outputs.shape[1]).to(outputs)
    losses = (1 + (outputs - target).square()).sqrt().sum(1) - outputs.prod(1)
    return losses, 1.0 + batch[1].to(outputs)


LOSSES: dict[str, tuple[Any, Callable[[Tensor, Tensor], Any]]] = {
    "class_weights": (nn.CrossEntropyLoss(weight=torch.tensor([0.5, 2.0, 1.0])), lambda x, y: (x, y)),
    "label_smoothing": (nn.CrossEntropyLoss(label_smoothing=0.2), lambda x, y: (x, y)),
    "smoothing_and_weights": (CrossEntropy(0.1, (0.5, 2.0, 1.0)), lambda x, y: (x, y)),
    "ignored_labels": ("cross_entropy", lambda x, y: (x, torch.where(torch.arange(len(y)) % 3 == 0, -100, y))),
    "own_ignore_index": (nn.CrossEntropyLoss(ignore_index=1), lambda x, y: (x, y)),
    "soft_labels": ("cross_entropy", lambda x, y: (x, torch.softmax(x[:, :3], 1))),
    "normalized": ("normalized_cross_entropy", lambda x, y: (x, y)),
    "mean_squared_error": ("mean_squared_error", lambda x, y: (x, x[:, :3].sin())),
    "binary": ("binary_cross_entropy", lambda x, y: (x, (x[:, :3] > 0).double())),
    "callable_with_weights": (_weighted_huber, lambda x, y: (x, y)),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("net", ["mlp", "conv2d_strided_padded"])
def test_every_loss_agrees_with_the_dense_hessian(name: str, net: str) -> None:
    loss, make = LOSSES[name]
    case = PIECEWISE_LINEAR[net]
    inputs, labels = case.data()
    if name in ("soft_labels", "mean_squared_error", "binary"):
        data = (inputs, make(inputs.flatten(1), labels)[1])
    else:
        data = make(inputs, labels)
    assert_exact(opened(case.model(), data, loss, batch_size=3), samples=3)


@pytest.mark.parametrize("loss", ["cross_entropy", NextToken()])
def test_outputs_with_positions(loss: Any) -> None:
    torch.manual_seed(3)
    tokens = torch.randint(0, 5, (5, 4))
    labels = torch.randint(0, 3, (5, 4)) if loss == "cross_entropy" else tokens
    labels = labels.clone()
    labels[0, :2], labels[3, 2] = -100, -100
    model = Positions(classes=3 if loss == "cross_entropy" else 5).double()
    assert_exact(opened(model, (tokens, labels), loss, batch_size=2), samples=5)


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("name", ["mlp", "embedding", "batch_norm_2d", "functional"])
def test_any_batch_size_gives_the_same_numbers(name: str, batch_size: int) -> None:
    case = PIECEWISE_LINEAR[name]
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([0.5, 2.0, 1.0]))
    one, many = (Blocks(case.opened(weighted, batch_size=size), ALL) for size in (4, batch_size))
    close(many.network_trace().value, one.network_trace().value, 1e-12)
    close(many.sample_traces().value, one.sample_traces().value, 1e-12)
    for full in one.problem.parameters:
        close(many.diagonal(full).value, one.diagonal(full).value, 1e-12)
    for layer in one.problem.weights:
        close(many.rows(layer).value, one.rows(layer).value, 1e-12)
        close(many.transposed(layer).value, one.transposed(layer).value, 1e-12)


def test_dict_batches_of_uneven_sizes() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 3), nn.Linear(3, 3)

        def forward(self, features: Tensor, scale: Tensor) -> dict[str, Tensor]:
            return {"logits": self.head(F.relu(self.inner(features)) * scale[:, None])}

    torch.manual_seed(1)
    x, y = torch.randn(9, 4), torch.randint(0, 3, (9,))
    batches = [
        {"features": x[a:b], "scale": 1 + x[a:b, 0].abs(), "labels": y[a:b]} for a, b in ((0, 1), (1, 6), (6, 9))
    ]
    assert_exact(opened(Keyword().double(), batches))


def test_frozen_unused_and_chosen_parameters() -> None:
    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.inner, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(2, 2)
            self.head = nn.Linear(4, 3)
            self.loose = nn.Parameter(torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(F.relu(self.inner(F.relu(self.frozen(x)))))

    torch.manual_seed(2)
    model = Partly().double()
    model.frozen.requires_grad_(False)
    data = (torch.randn(6, 4), torch.randint(0, 3, (6,)))
    problem = opened(model, data, batch_size=4)
    assert "frozen.weight" not in problem.parameters
    assert_exact(problem)
    assert float(Blocks(problem, ALL).layer_trace("unused")) == 0.0
    for patterns in (["*.weight"], ["*.bias"], ["frozen.*", "head.weight"], "*"):
        chosen = opened(model, data, batch_size=4, parameters=patterns)
        assert_exact(chosen)
    assert not model.frozen.weight.requires_grad


def test_a_rule_that_covers_only_some_batches_is_not_trusted() -> None:
    """A weight that is used a second time only for rare samples: the first batch does not show it."""

    class RareReuse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = F.relu(self.inner(x))
            if bool((x[:, 0] > 5).any()):
                again = F.relu(F.linear(hidden, self.inner.weight))
                hidden = torch.where((x[:, 0] > 5)[:, None], hidden + again, hidden)
            return self.head(hidden)

    torch.manual_seed(5)
    x, y = torch.randn(12, 4).double(), torch.randint(0, 3, (12,))
    x[10, 0] = 6.0
    problem = opened(RareReuse().double(), (x, y), batch_size=4)
    blocks = Blocks(problem, ALL)
    assert blocks.exact_layers == {"inner": False, "head": True}
    close(blocks.ggn_trace().value, Dense(problem).ggn.trace())


# --- more outputs than columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "normalized_cross_entropy"])
def test_sketched_columns_are_unbiased_and_carry_their_error(loss: str) -> None:
    """Forty classes: the factor's columns are sketched, in folds whose spread is the error."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 40)).double()
    data = (torch.randn(12, 3), torch.randint(0, 40, (12,)))
    dense = Dense(opened(model, data, loss, batch_size=5))
    truth = {"network": float(dense.hessian.trace())}
    scores: dict[str, list[float]] = {}
    sample_scores = []
    own = torch.tensor([float(dense.sample_hessian(i).trace()) for i in range(3)])
    for seed in range(30):
        blocks = Blocks(opened(model, data, loss, batch_size=5), ALL, seed=seed)
        assert not blocks.exact
        found = {"network": blocks.network_trace()}
        for layer in blocks.problem.layers:
            names = blocks.problem.layers[layer].parameters.values()
            truth[layer] = float(sum(dense.hessian.diagonal()[dense.slices[full]].sum() for full in names))
            found[layer] = blocks.layer_trace(layer)
        for key, estimate in found.items():
            assert estimate.how == "estimated"
            assert estimate.stderr > 0
            scores.setdefault(key, []).append((estimate.value - truth[key]) / estimate.stderr)
        traces = blocks.sample_traces()
        assert traces.how == "estimated"
        sample_scores.extend(((traces.value[:3] - own) / traces.stderr[:3]).tolist())
    for values in [*scores.values(), sample_scores]:
        z = torch.tensor(values)
        assert abs(float(z.mean())) < 0.6  # 3.3 standard errors of a mean of 30
        assert 0.4 < float(z.square().mean()) < 2.5  # eight folds: Student with seven degrees has variance 1.4


def test_sketches_do_not_depend_on_the_batch_size() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 40)).double()
    data = (torch.randn(12, 3), torch.randint(0, 40, (12,)))
    one, other = (Blocks(opened(model, data, batch_size=size), ALL, seed=3) for size in (2, 12))
    close(one.network_trace().value, other.network_trace().value, 1e-12)
    close(one.network_trace().stderr, other.network_trace().stderr, 1e-9)


def test_sketched_columns_and_a_sampled_remainder_add_their_errors() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 40)).double()
    problem = opened(model, (torch.randn(12, 3), torch.randint(0, 40, (12,))))
    truth = float(Dense(problem).hessian.trace())
    found = [Blocks(problem, ALL, seed=seed).network_trace() for seed in range(6)]
    z = torch.tensor([(estimate.value - truth) / estimate.stderr for estimate in found])
    assert float(z.abs().max()) < 4
    assert float(z.square().mean()) < 3


def test_curvature_gives_traces_diagonals_and_labels() -> None:
    problem = SMOOTH["tanh"].opened()
    found = sl.curvature(problem, seed=1)
    assert not found.exact
    assert found.exact_layers == {"0": False, "2": False, "4": True}
    assert {name: tensor.shape for name, tensor in found.diagonal.items()} == {
        name: tensor.shape for name, tensor in problem.chosen_parameters.items()
    }
    total = sum(float(part.sum()) for part in found.diagonal.values())
    assert found.trace.value == pytest.approx(total, rel=1e-10)
    assert sum(estimate.value for estimate in found.layer_trace.values()) == pytest.approx(total, rel=1e-10)
    assert float(found.diagonal_stderr["4.weight"].abs().max()) == 0.0
    assert float(found.diagonal_stderr["0.weight"].min()) > 0.0
    assert found.trace.status == "ok"
    assert found.trace.stderr <= 0.05 * found.trace.value
    assert sl.curvature(PIECEWISE_LINEAR["mlp"].opened()).exact


def test_the_error_over_samples_is_that_of_a_mean() -> None:
    problem = PIECEWISE_LINEAR["mlp"].opened(count=30)
    blocks = Blocks(problem)
    traces = blocks.sample_traces().value
    assert blocks.network_trace().stderr_data == pytest.approx(float(traces.std() / 30**0.5), rel=1e-10)
    layers = [blocks.layer_trace(name).stderr_data for name in problem.layers]
    assert all(error is not None and error > 0 for error in layers)


def test_coupled_samples_have_no_factor_pass_but_a_trace_by_products() -> None:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)).double()
    data = (torch.randn(12, 3), torch.randint(0, 2, (12,)))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    problem = opened(model, data, mode="train", batch_size=6)
    assert problem.survey.coupled
    blocks = Blocks(problem, frozenset({"diagonal"}))
    trace = blocks.network_trace()
    while blocks.improve(trace):
        trace = blocks.network_trace()
    assert trace.how in ("estimated", "exact")  # so few parameters may be written out
    assert not trace.verified
    gap = abs(trace.value - float(Dense(problem).hessian.trace()))
    assert gap <= 4 * trace.stderr + 1e-9 * abs(trace.value)
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])


def test_cases_are_small() -> None:
    for case in [*PIECEWISE_LINEAR.values(), *SMOOTH.values()]:
        assert isinstance(case, Case)
        assert case.opened().size < 300
