"""Eigenvectors over a part of the data as the start of a search over all of it."""

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.engine import warm_start as first_guess
from spiritlevel.engine.warm_start import warm_start
from spiritlevel.measures.reference import Dense
from spiritlevel.measures.workbench import Workbench
from tests.helpers import opened


def problem(samples: int = 400, **options) -> sl.Problem:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x = torch.randn(samples, 6, dtype=torch.float64)
    return opened(model, (x, x[:, :3].argmax(1)), **options)


def test_few_samples_are_not_worth_a_guess() -> None:
    assert warm_start(problem(), 2, "largest", 1e-2, 0) is None


def test_the_search_ends_at_the_same_pairs_with_fewer_products(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.linalg.eigvalsh(Dense(problem()).hessian).flip(0)[:4]
    cold = Workbench(problem()).eigen(4, "largest", 1e-2)
    monkeypatch.setattr(first_guess, "FEWEST", 20)
    guessing = problem()
    warm = Workbench(guessing).eigen(4, "largest", 1e-2)
    assert warm.products < cold.products
    for pairs in (cold, warm):
        assert pairs.status == "ok"
        assert ((pairs.values - exact).abs() <= pairs.residuals).all()
    # What the guess cost is counted, in sweeps over all of the data.
    assert guessing.spent["hessian product"] > warm.products


def test_the_part_is_spread_over_the_data_and_the_problem_stays_what_it_was() -> None:
    whole = problem(41)
    few = whole.on_every(10)
    assert few.survey.count == 5
    assert few.survey.losses.tolist() == pytest.approx(whole.survey.losses[::10].tolist())
    assert whole.survey.count == 41


def test_data_in_batches_of_its_own_is_left_alone() -> None:
    inner = problem()
    x, y = next(iter(inner.source.read()))
    assert warm_start(opened(inner.model, [(x, y)] * 40), 1, "largest", 1e-2, 0) is None
