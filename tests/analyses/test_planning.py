"""A plan counts what sampling and searches will take: in passes, within a factor, on networks of several kinds."""

from __future__ import annotations

import pytest

import spiritlevel as sl
from spiritlevel.analyses.planning import WEIGHT
from spiritlevel.engine.blocks import BUDGET
from spiritlevel.engine.remainder import DRAW_COST
from tests.networks import SMOOTH

# What a pass of a kind weighs in gradients; a product with G is one more of the same sweep.
KINDS = {"hessian product": WEIGHT["product"], "ggn product": WEIGHT["product"], **WEIGHT}
FACTOR = 2.5


def passes(report: sl.Report) -> float:
    assert report.header.passes is not None
    return sum(KINDS[kind] * count for kind, count in report.header.passes.items())


@pytest.mark.parametrize("name", ["gelu", "tanh", "layer_norm", "attention", "glu", "lstm"])
def test_the_default_group_takes_what_was_planned(name: str) -> None:
    model, data = SMOOTH[name].trained()
    planned = sl.plan(sl.Problem(model, data))
    spent = passes(sl.measure(sl.Problem(model, data)))
    least, most = planned.passes_range
    assert 0.9 * least <= spent <= most
    assert planned.gradient_passes / FACTOR <= spent <= planned.gradient_passes * FACTOR
    assert least <= planned.gradient_passes <= most


def test_a_smooth_network_is_planned_to_cost_more_than_its_exact_part() -> None:
    model, data = SMOOTH["attention"].trained()
    (trace,) = sl.plan(sl.Problem(model, data), "hessian_trace").measures
    assert trace.sweeps["column"] > 2
    least, most = trace.passes_range
    assert most >= least + 2 * WEIGHT["column"] * BUDGET / DRAW_COST


def test_seconds_are_the_end_of_a_plan() -> None:
    model, data = SMOOTH["gelu"].trained()
    planned = sl.plan(sl.Problem(model, data), seconds=1e-6)
    assert planned.seconds == planned.seconds_range[1] == 1e-6
    assert "not enough for a first look" in str(planned)
