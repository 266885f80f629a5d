"""The remainder drawn at the operations is the dense Hessian's, and what is wrong of them is found out."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.operations import curvatures
from spiritlevel.engine.operations.local_curvature import Diagonal, LocalCurvature
from spiritlevel.engine.passes.strata import StratifiedSampling
from spiritlevel.inputs.torch_internals import operations
from spiritlevel.measures.reference import Dense
from tests.engine.operations.operation_networks import NETWORKS, Between, OtherKind, data
from tests.helpers import opened

WANTS = frozenset({"diagonal", "rows", "columns", "transposed"})
DRAWS = 160


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    return NETWORKS[name]().double()


@cache
def truth(name: str) -> tuple[Dense, Tensor]:
    dense = Dense(sl.Problem(made(name), data()))
    return dense, dense.hessian - dense.ggn


def sampled(name: str, draws: int = DRAWS, seed: int = 0) -> StratifiedSampling:
    problem = opened(made(name), data(), batch_size=3)
    found = Blocks(problem, WANTS, seed=seed).remainder.operations
    found.more(draws)
    return found


def forms(kind: str, weight: Tensor, block: Tensor, inputs_first: bool = False) -> float:
    rows, columns = weight.shape
    own = block.reshape(rows, columns, rows, columns)
    if inputs_first:
        weight, own = weight.T, own.permute(1, 0, 3, 2)
    how = {"rows": "ij,ijik,ik->", "columns": "ij,ijkj,kj->", "transposed": "st,sktk->", "whole": "ij,ijkl,kl->"}[kind]
    if kind == "transposed":
        return float(torch.einsum(how, weight @ weight.T, own))
    return float(torch.einsum(how, weight, own, weight))


def agrees_in_every_form(found: StratifiedSampling, dense: Dense, remainder: Tensor) -> None:
    """Hold traces, diagonals and quadratic forms against the dense remainder."""
    scale = float(remainder.diagonal().abs().sum())
    trace = found.form("entries").network
    own = torch.cat([remainder.diagonal()[dense.slices[full]] for full in found.names])
    assert abs(float(trace.mean) - float(own.sum())) <= 4 * float(trace.stderr) + 1e-9 * scale
    scores = []
    for full in found.names:
        part = found.form("entries").parts[full]
        gap = part.mean.flatten() - remainder.diagonal()[dense.slices[full]]
        known = part.stderr.flatten() > 1e-9 * scale
        assert float(gap[~known].abs().sum()) <= 1e-7 * scale
        scores.append((gap / part.stderr.flatten())[known])
    assert float(torch.cat(scores).square().mean()) < 2
    assert float(torch.cat(scores).abs().max()) < 6
    for kind in ("rows", "columns", "transposed", "whole"):
        for full in (full for full in found.names if "weight" in full and dense.tensor(full).ndim == 2):
            known_form = found.form(kind).sums[full]  # type: ignore[arg-type]
            block = remainder[dense.slices[full], dense.slices[full]]
            gap_of_form = abs(float(known_form.mean) - forms(kind, dense.tensor(full), block, "embedding" in full))
            assert gap_of_form <= 4.5 * float(known_form.stderr) + 1e-9 * scale, (kind, full)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_form_agrees_with_the_dense_remainder(name: str) -> None:
    found, (dense, remainder) = sampled(name), truth(name)
    assert "first" in {full.rpartition(".")[0] for full in found.names}
    agrees_in_every_form(found, dense, remainder)


@pytest.mark.parametrize("name", ["written gelu", "attention", "layer norm"])
def test_each_samples_trace_is_drawn_on_the_way(name: str) -> None:
    problem = opened(made(name), data(), batch_size=3)
    found = Blocks(problem).sample_traces(200)
    dense, _ = truth(name)
    own = torch.tensor([float(dense.sample_hessian(index).trace()) for index in range(len(dense.samples))])
    assert float(((found.value - own) / found.stderr).abs().max()) < 4.5


def test_parameters_behind_curved_functions_go_by_operations_whatever_the_batches() -> None:
    """Signs of theirs are every sample's own, and none is drawn for the function itself: its part is known."""
    found = [
        Blocks(opened(made("logarithms"), data(), batch_size=size), WANTS, seed=2).remainder.operations
        for size in (2, 4, 8)
    ]
    for one in found:
        one.more(6)
        assert {"log_scale", "log_decay", "log_step", "log_weight", "temperature"} <= set(one.names)
    traces = [float(one.form("entries").network.mean) for one in found]
    assert traces == pytest.approx([traces[0]] * 3, rel=1e-10)


def test_samples_traces_hold_what_curved_functions_of_parameters_add() -> None:
    class Exponential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.logarithm = nn.Parameter(torch.tensor([0.3, -0.2, 0.5]))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.logarithm.exp()).sum(1, keepdim=True).expand(-1, 2) * torch.tensor([1.0, -1.0])

    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double()
    problem = sl.Problem(Exponential().double(), (x, torch.tensor([0, 1, 0, 0, 1])))
    dense, traces = Dense(problem), sl.measure(problem, "hessian_trace", settings={"hessian_trace.samples": True})
    own = torch.tensor([float(dense.sample_hessian(index).trace()) for index in range(5)])
    # Nothing else is curved, and a square of a sign is 1.
    torch.testing.assert_close(traces.per_sample["hessian_trace_estimate"], own.double())
    assert traces["hessian_trace"].value == pytest.approx(float(dense.hessian.trace()))


def test_draws_do_not_depend_on_the_batch_size() -> None:
    torch.manual_seed(1)
    problems = [opened(made("attention"), data(), batch_size=size) for size in (2, 8)]
    traces = [Blocks(problem, WANTS, seed=5).network_trace() for problem in problems]
    assert traces[0].value == pytest.approx(traces[1].value, rel=1e-12)
    assert traces[0].stderr == pytest.approx(traces[1].stderr, rel=1e-9)


def test_draws_do_not_depend_on_how_many_samples_there_is_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sampled("gelu").form("entries").network
    monkeypatch.setattr("spiritlevel.engine.passes.operation_sampling.samples_that_fit", lambda problem, numbers: 3)
    pieces = sampled("gelu").form("entries").network
    assert float(pieces.mean) == pytest.approx(float(whole.mean), rel=1e-10)
    assert float(pieces.stderr) == pytest.approx(float(whole.stderr), rel=1e-8)


def test_entrywise_functions_of_one_tensor_are_one_operation() -> None:
    """Taken apart they would be sampled apart, and much of what they sample would cancel only on average."""
    problem = opened(made("written gelu"), data())
    with problem.session():
        (sampling,) = Blocks(problem).remainder.operations.strata
        (batch,) = problem.batches()
        _, _, graph = sampling._forward(batch)
        found, _ = sampling._find(graph, list(sampling.rules), batch.count)
    assert len(found.operations) == 2  # the activation, and the tanh behind the second layer


def right_anyway(model: nn.Module) -> sl.Estimate:
    """Return the trace that is measured, which must be right whatever was taken for granted."""
    problem = sl.Problem(model, data())
    trace = sl.measure(problem, "hessian_trace")["hessian_trace"]
    expected = float(Dense(problem).hessian.trace())
    assert abs(trace.value - expected) <= 4.5 * trace.stderr + 1e-9 * abs(expected)
    return trace


def test_an_operation_wrongly_taken_for_linear_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "LINEAR", operations.LINEAR | {"SoftmaxBackward0"})
    problem = opened(made("attention"), data())
    blocks = Blocks(problem)
    assert "first" not in {full.rpartition(".")[0] for full in blocks.remainder.operations.names}
    right_anyway(made("attention"))


@pytest.mark.parametrize("factor", [0.98, -1.0])
def test_a_wrong_second_derivative_is_found_out(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    true = curvatures.pointwise_curvature

    def wrong(*arguments: object) -> LocalCurvature:
        found = true(*arguments)  # type: ignore[arg-type]
        assert isinstance(found, Diagonal)
        return Diagonal(factor * found.values)

    monkeypatch.setattr(curvatures, "pointwise_curvature", wrong)
    blocks = Blocks(opened(made("gelu"), data()))
    assert "first" not in {full.rpartition(".")[0] for full in blocks.remainder.operations.names}
    right_anyway(made("gelu"))


class Unknown(nn.Module):
    """An operation that stands in no list."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.atan2(self.first(x), x.new_ones(())).mean(1))


def test_layers_below_an_unknown_operation_go_by_probes() -> None:
    torch.manual_seed(0)
    model = Unknown().double()
    blocks = Blocks(opened(model, data()))
    assert set(blocks.remainder.others.names) == {"first.weight", "first.bias"}
    right_anyway(model)


def test_a_later_batch_of_another_kind_costs_layers_and_not_truth() -> None:
    torch.manual_seed(0)
    inputs, labels = data()
    inputs[:4, 0, 0], inputs[4:, 0, 0] = -inputs[:4, 0, 0].abs(), inputs[4:, 0, 0].abs()
    problem = opened(OtherKind(lambda x: x[0, 0, 0] > 0).double(), (inputs, labels), batch_size=4)
    blocks = Blocks(problem)
    trace = blocks.network_trace()
    while blocks.improve(trace):
        trace = blocks.network_trace()
    assert "first.weight" in blocks.remainder.others.names
    expected = float(Dense(problem).hessian.trace())
    assert abs(trace.value - expected) <= 4.5 * trace.stderr + 1e-9 * abs(expected)


def test_only_the_value_that_was_asked_for_decides_how_much_is_drawn() -> None:
    torch.manual_seed(0)
    problem = opened(Between(torch.tanh).double(), data(64))
    blocks = Blocks(problem, tolerance=0.02)
    drawn = []
    while blocks.improve(blocks.network_trace()):
        drawn.append(blocks.remainder.operations.draws)
    trace = blocks.network_trace()
    assert drawn
    assert trace.stderr <= 0.02 * abs(trace.value)
    assert not blocks.improve(trace)
