"""Weights that are used again behind themselves are drawn at the operations, right in every form, never wrongly so."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.operations import tied
from spiritlevel.engine.passes.strata import StratifiedSampling
from spiritlevel.measures.reference import Dense
from spiritlevel.values.errors import SpiritlevelError
from tests.engine.operations.test_operation_sampling import DRAWS, WANTS, agrees_in_every_form
from tests.engine.operations.tied_networks import HAZARDS, REFUSED, TIED, Twice, tied_data
from tests.helpers import opened

ALL = TIED | HAZARDS


def made(name: str) -> nn.Module:
    torch.manual_seed(1)
    return ALL[name]().double()


@cache
def truth(name: str) -> tuple[Dense, Tensor]:
    dense = Dense(sl.Problem(made(name), tied_data(name)))
    return dense, dense.hessian - dense.ggn


def sampled(name: str, draws: int = DRAWS, seed: int = 0) -> StratifiedSampling:
    problem = opened(made(name), tied_data(name), batch_size=3)
    found = Blocks(problem, WANTS, seed=seed).remainder.operations
    found.more(draws)
    return found


@pytest.mark.parametrize("name", TIED)
def test_every_form_of_a_tied_weight_agrees_with_the_dense_remainder(name: str) -> None:
    found, (dense, remainder) = sampled(name), truth(name)
    curved = {full for full, place in dense.slices.items() if bool(remainder[place, place].abs().max() > 1e-12)}
    assert curved <= set(found.names)
    agrees_in_every_form(found, dense, remainder)


@pytest.mark.parametrize("name", ["tied language", "lstm", "twice"])
def test_each_samples_trace_holds_what_its_tied_weights_add(name: str) -> None:
    problem = opened(made(name), tied_data(name), batch_size=3)
    found = Blocks(problem).sample_traces(200)
    dense, _ = truth(name)
    own = torch.tensor([float(dense.sample_hessian(index).trace()) for index in range(len(dense.samples))])
    assert float(((found.value - own) / found.stderr).abs().max()) < 4.5


def test_draws_of_a_tied_weight_do_not_depend_on_the_batch_size() -> None:
    problems = [opened(made("tied language"), tied_data("tied language"), batch_size=size) for size in (2, 8)]
    traces = [Blocks(problem, WANTS, seed=5).network_trace() for problem in problems]
    assert traces[0].value == pytest.approx(traces[1].value, rel=1e-12)


def test_the_error_covers_over_many_seeds() -> None:
    dense, remainder = truth("twice")
    place = dense.slices["same.weight"]
    expected = float(remainder[place, place].trace())
    errors = []
    for seed in range(40):
        found = sampled("twice", draws=8, seed=seed).form("entries").sums["same.weight"]
        errors.append((float(found.mean) - expected) / float(found.stderr))
    scores = torch.tensor(errors)
    assert 0.5 < float(scores.square().mean()) < 1.8
    assert abs(float(scores.mean())) < 0.5


@pytest.mark.parametrize("name", ALL)
def test_the_trace_is_right_whatever_way_it_goes(name: str) -> None:
    problem = opened(made(name), tied_data(name), batch_size=4)
    blocks = Blocks(problem)
    trace = blocks.network_trace()
    while blocks.improve(trace):
        trace = blocks.network_trace()
    expected = float(truth(name)[0].hessian.trace())
    assert abs(trace.value - expected) <= 4.5 * trace.stderr + 1e-9 * abs(expected)


@pytest.mark.parametrize("name", REFUSED)
def test_a_use_that_hides_from_its_gradient_is_refused(name: str) -> None:
    with pytest.raises(SpiritlevelError, match="no Hessian to measure"):
        Blocks(opened(REFUSED[name]().double(), tied_data(name)))


@pytest.mark.parametrize("factor", [0.0, 0.97, -1.0])
def test_a_wrong_second_derivative_of_a_tied_use_is_found_out(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    true = tied.TiedMatrixProduct.product

    def wrong(self: tied.TiedMatrixProduct, tangents: list[Tensor]) -> list[Tensor]:
        return [factor * part for part in true(self, tangents)]

    monkeypatch.setattr(tied.TiedMatrixProduct, "product", wrong)
    blocks = Blocks(opened(Twice().double(), tied_data("twice")))
    assert "same.weight" in blocks.remainder.others.names
