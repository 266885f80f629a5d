"""What an audit, a comparison and a spectrum say they cost: their own clock, and all passes made for them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel import page
from spiritlevel.analyses import costing
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.spending import Spending
from spiritlevel.measures.costs import Cost
from spiritlevel.page.facts import facts
from spiritlevel.page.sections import settings
from spiritlevel.results.cost import passes_in_words


def small_problem(seed: int, samples: int = 60) -> sl.Problem:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(0))
    return sl.Problem(model, (x, torch.arange(samples) % 3))


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the samples that go through any network in a named sweep, wherever it is made."""
    seen: Counter[str] = Counter()
    whole = OpenProblem.batches

    def counted(self: OpenProblem, what: str = "") -> Any:
        for batch in whole(self, what):
            seen["samples"] += batch.count
            yield batch

    monkeypatch.setattr(OpenProblem, "batches", counted)
    return seen


def questions(folder: Path) -> dict[str, Any]:
    one, other = small_problem(0), small_problem(1)
    found = {}
    for name, ask in {
        "audit": lambda: sl.audit(one, ["hessian_trace", "rho_sum"], strengths=["usual"], alphas=(10.0,)),
        "comparison": lambda: sl.compare({"a": one, "b": other}, ["hessian_trace", "rho_sum"], groups=3),
        "spectrum": lambda: sl.spectrum(one, probes=2, steps=5),
    }.items():
        start = time.perf_counter()
        result = ask()
        found[name] = (result, time.perf_counter() - start)
        result.save(folder / f"{name}.json")
    return found


def test_the_cost_on_a_page_is_that_of_all_that_was_done(tmp_path: Path) -> None:
    for name, (result, clock) in questions(tmp_path).items():
        for found in (result, type(result).load(tmp_path / f"{name}.json")):
            content = page.together([found])
            cost = content.cost
            assert cost.wall_time is not None
            # The call's own clock: it runs around all measurements, and inside the one started here.
            parts = [*content.reports.values(), *content.spectra.values()]
            assert sum(part.header.wall_time for part in parts) <= cost.wall_time <= clock
            said = dict(facts(content))["cost"]
            assert said == f"{sum(cost.passes.values()):,.0f} passes over the data, {cost.wall_time:,.1f} s"


@pytest.mark.parametrize(("name", "seconds"), [("audit", 852.0), ("comparison", 504.0)])
def test_the_time_of_a_question_is_taken_around_all_of_it(
    name: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock of our own, which only the question's beginning and end read: its cost is what went by between them.
    clock = iter([1000.0, 1000.0 + seconds])
    monkeypatch.setattr(costing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    one, other = small_problem(0), small_problem(1)
    ask = {
        "audit": lambda: sl.audit(one, ["hessian_trace"], strengths=["usual"], alphas=(10.0,)),
        "comparison": lambda: sl.compare({"a": one, "b": other}, ["hessian_trace"], groups=0),
    }
    found: Any = ask[name]()
    assert found.cost.wall_time == seconds
    assert found.record()["cost"]["wall_time"] == seconds
    assert dict(facts(page.together([found])))["cost"].endswith(f", {seconds:,.1f} s")
    assert not any(report.header.wall_time == seconds for report in page.together([found]).reports.values())


def test_an_audit_costs_more_than_the_measurement_it_begins_with(tmp_path: Path) -> None:
    found = questions(tmp_path)
    audit, comparison = found["audit"][0], found["comparison"][0]
    assert sum(audit.cost.passes.values()) > 2 * sum(audit.base.header.passes.values())
    alone = sum(sum(report.header.passes.values()) for report in comparison.reports.values())
    assert sum(comparison.cost.passes.values()) > alone


def test_sweeps_over_a_part_of_the_data_are_a_part_of_a_pass(swept: Counter[str]) -> None:
    problem = small_problem(0)
    with Spending() as spending:
        opened = OpenProblem(problem)
        few = opened.on_every(6)
        assert opened.survey.count == 60
        assert few.survey.count == 10
    assert spending.passes(60) == {"forward": pytest.approx(1 + 1 / 6)}
    assert swept["samples"] == 70


def test_questions_inside_a_question_are_counted_once() -> None:
    problem = small_problem(0)
    with Spending() as outer:
        with Spending() as inner:
            assert OpenProblem(problem).survey.count == 60
        assert OpenProblem(problem).survey.count == 60
    assert inner.passes(60) == {"forward": 1.0}
    assert outer.passes(60) == {"forward": 2.0}


def test_saved_reports_compared_cost_what_measuring_them_did() -> None:
    reports = {label: sl.measure(small_problem(seed), "hessian_trace") for seed, label in enumerate("ab")}
    found = sl.compare(reports)
    assert found.cost is None
    cost = page.of_comparison(found).cost
    assert cost.wall_time == pytest.approx(sum(report.header.wall_time for report in reports.values()))
    assert sum(cost.passes.values()) == sum(sum(report.header.passes.values()) for report in reports.values())


def test_the_settings_do_not_call_the_first_measurement_the_whole(tmp_path: Path) -> None:
    for name, (result, _) in questions(tmp_path).items():
        rows = settings.section(page.together([result])).parts[-1].rows
        called = [row.cells[0].text for row in rows if row.cells[0].text.startswith(("passes", "wall time"))]
        once = "" if name == "spectrum" else " of measuring it once"
        assert called == [f"passes{once}", f"wall time{once}"]


def test_passes_are_said_in_the_field_s_words() -> None:
    assert passes_in_words({"forward": 1, "column": 9.0, "gradient": 0, "hessian product": 1.0}) == (
        "1 forward pass, 9 VJPs, 1 HVP"
    )
    assert passes_in_words({"ggn product": 12_345.6}) == "12,346 GGN-vector products"
    assert str(Cost(forward=1, column="outputs - 1", product=2)) == "1 forward pass, outputs - 1 VJPs, 2 HVPs"


def test_many_networks_cost_as_many_times_what_one_does() -> None:
    passes = []
    for count in (3, 6, 12):
        networks = {str(seed): small_problem(seed) for seed in range(count)}
        found = sl.compare(networks, ["hessian_trace", "rho_sum"], groups=3, search=False)
        assert len(found.rows["rho_sum"].contrasts) == count * (count - 1) // 2
        passes.append(sum(found.cost.passes.values()))
    # Pairs are made of what was measured of each network; nothing is measured pair by pair.
    assert passes[2] - passes[1] == pytest.approx(2 * (passes[1] - passes[0]), rel=0.05)
