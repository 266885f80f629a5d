"""Samples drawn apart: their means add up to the dense remainder's, errors cover, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.passes.chosen_samples import ChosenSamples
from spiritlevel.engine.passes.strata import StratifiedSampling, divided
from spiritlevel.measures.reference import Dense
from tests.engine.operations.operation_networks import Between, OtherKind, attention
from tests.engine.operations.test_operation_sampling import WANTS, agrees_in_every_form
from tests.helpers import opened

COUNT = 80


def network() -> nn.Module:
    torch.manual_seed(1)
    return Between(attention).double()


def data() -> tuple[Tensor, Tensor]:
    """A few samples far from all others, whose draws lie far apart."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(COUNT, 3, 3, generator=generator).double()
    x[7::20] *= 3
    return x, torch.arange(COUNT) % 2


def sampling(seed: int = 0, batch_size: int = 11) -> StratifiedSampling:
    problem = opened(network(), data(), batch_size=batch_size)
    return Blocks(problem, WANTS, seed=seed).remainder.operations


@pytest.fixture(scope="module")
def dense() -> Dense:
    return Dense(sl.Problem(network(), data()))


def test_every_form_of_samples_drawn_unequally_often_agrees_with_the_dense_remainder(dense: Dense) -> None:
    found = sampling()
    found.more(16)
    found.add(found.further(4.0, 100.0))
    assert len(found.strata) == 4
    assert len({stratum.draws for stratum in found.strata}) > 1
    agrees_in_every_form(found, dense, dense.hessian - dense.ggn)


def test_errors_cover_where_draws_go_by_what_was_seen(dense: Dense) -> None:
    expected = float((dense.hessian - dense.ggn).trace())
    scores = []
    for seed in range(40):
        found = sampling(seed)
        found.more(4)
        found.add(found.further(4.0, 20.0))
        trace = found.form("entries").network
        scores.append((float(trace.mean) - expected) / float(trace.stderr))
    errors = torch.tensor(scores)
    assert float((errors.abs() <= 1.96).double().mean()) >= 0.85
    assert abs(float(errors.mean())) < 0.5


def test_more_goes_where_draws_lie_further_apart_and_costs_no_more_than_may_be_spent() -> None:
    found = sampling()
    found.more(8)
    before = float(found.form("entries").network.stderr)
    counts = found.further(4.0, 12.0)
    apart = [stratum.network.variance / stratum.share for stratum in found.strata]
    assert max(apart) > 4 * min(apart)
    assert counts[apart.index(max(apart))] == max(counts) > counts[apart.index(min(apart))]
    assert found.cost(counts) <= 14
    assert found.cost(found.further(1000.0, 3.0)) <= 5
    found.add(counts)
    assert float(found.form("entries").network.stderr) < 0.75 * before


def test_each_samples_trace_stands_at_its_own_place(dense: Dense) -> None:
    problem = opened(network(), data(), batch_size=11)
    found = Blocks(problem).sample_traces(120)
    own = torch.tensor([float(dense.sample_hessian(index).trace()) for index in range(COUNT)])
    errors = (found.value - own) / found.stderr
    assert float(errors.abs().max()) < 5
    assert float(errors.square().mean()) < 2


def test_draws_do_not_depend_on_the_batches_that_samples_come_in() -> None:
    traces = []
    for batch_size in (7, 80):
        found = sampling(3, batch_size)
        found.add([10, 4, 6, 4])
        traces.append(float(found.form("entries").network.mean))
    assert traces[0] == pytest.approx(traces[1], rel=1e-11)


def test_few_samples_are_not_parted() -> None:
    assert len(divided(torch.rand(30))) == 1
    places = divided(torch.rand(1000))
    assert [len(own) for own in places] == [10, 40, 150, 800]
    assert torch.cat(places).sort().values.tolist() == list(range(1000))


def test_a_stratum_of_another_kind_costs_its_layers_everywhere() -> None:
    torch.manual_seed(0)
    x, labels = data()
    x[:, 0, 0] = 0.1
    problem = opened(OtherKind(lambda x: x[:, 0, 0].abs() > 5).double(), (x, labels), batch_size=40)
    found = Blocks(problem).remainder.operations
    found.more(4)
    assert "first.weight" in found.names
    found.strata[1].rules.pop("first")
    found.strata[1].forget()
    found.more(4)
    assert "first.weight" not in found.names
    assert all("first" not in stratum.rules and stratum.draws for stratum in found.strata)


def test_chosen_samples_come_in_order_and_in_whole_batches() -> None:
    problem = opened(network(), data(), batch_size=10)
    with problem.session():
        _ = Blocks(problem)
        places = torch.tensor([3, 40, 12, 41, 42, 79, 77, 5, 6, 9, 15, 60])
        chosen = ChosenSamples(problem, places)
        for _ in range(2):  # read, and kept
            batches = list(chosen.batches("a test"))
            assert torch.cat([batch.indices for batch in batches]).tolist() == sorted(places.tolist())
            inputs = torch.cat([batch.content[0] for batch in batches])
            assert torch.equal(inputs, data()[0][places.sort().values])
            assert [batch.count for batch in batches] == [11, 1] or max(batch.count for batch in batches) >= 10
    assert chosen.share == pytest.approx(12 / COUNT)
