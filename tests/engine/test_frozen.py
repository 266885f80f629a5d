"""A problem is what was given; what a measurement finds out is the measurement's own."""

from __future__ import annotations

import pytest

import spiritlevel as sl
from spiritlevel.engine.operators.derivative_check import path_of
from spiritlevel.inputs.open_problem import open_problem
from tests.networks import PIECEWISE_LINEAR, SMOOTH

CASES = {**PIECEWISE_LINEAR, **SMOOTH}


def test_a_problem_cannot_be_written_to() -> None:
    problem = CASES["mlp"].problem()
    with pytest.raises(sl.UsageError, match="frozen"):
        problem.seed = 3
    with pytest.raises(sl.UsageError, match="frozen"):
        problem.notes = ()


def test_measuring_leaves_nothing_on_a_problem() -> None:
    problem = CASES["gelu"].problem()
    before = dict(vars(problem))
    sl.measure(problem, ["hessian_trace", "hessian_top_eigenvalue"], progress=False)
    sl.spectrum(problem, probes=2, steps=4)
    sl.audit(problem, measures=["hessian_trace"])
    after = dict(vars(problem))
    assert {name for name in after if name not in before} <= {"layers", "weights"}  # derived from what was given alone
    assert all(after[name] is before[name] for name in before)


def test_two_measurements_of_one_problem_share_nothing_they_find_out() -> None:
    problem = CASES["gelu"].problem()
    first, second = open_problem(problem), open_problem(problem)
    first.survey  # noqa: B018
    path_of(first)
    first.note("said of the first")
    assert second.known_survey is None
    assert second.derivatives is None
    assert not second.spent
    assert "said of the first" not in second.notes
    assert open_problem(first) is first
