"""The framework of the studies: rules on synthetic tables, runs that survive, documents that are generated."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from spiritlevel.cli.study_command import list_studies, study
from spiritlevel.lab.studies import (
    Place,
    Quantity,
    RunStore,
    Within,
    judge_claim,
    make_record,
    run_study,
    studies,
    study_named,
)
from spiritlevel.lab.studies.documents import claims_page, read_records, write_documents
from spiritlevel.lab.studies.quantities import (
    bootstrapped,
    correlation_gain,
    kendall,
    over_seeds,
    partial,
    pearson,
    ratio_over_seeds,
    spearman,
    without_outliers,
)
from spiritlevel.values.errors import SpiritlevelError, UsageError

CLAIMS = [(each, claim) for each in studies().values() for claim in each.claims]
IDS = [f"{each.name}:{claim.name}" for each, claim in CLAIMS]


def _inside(rule: Within) -> Quantity:
    """A quantity well within a rule's bounds."""
    low, high = rule.at_least, rule.at_most
    if math.isinf(low) and math.isinf(high):
        raise AssertionError("a rule without bounds decides nothing")
    if math.isinf(high):
        return Quantity(low + 2, low + 1, low + 3, rule.minimum)
    if math.isinf(low):
        return Quantity(high - 2, high - 3, high - 1, rule.minimum)
    middle, quarter = (low + high) / 2, (high - low) / 4
    return Quantity(middle, middle - quarter, middle + quarter, rule.minimum)


def _outside(rule: Within) -> Quantity:
    if math.isinf(rule.at_most):
        return Quantity(rule.at_least - 2, rule.at_least - 3, rule.at_least - 1, rule.minimum)
    return Quantity(rule.at_most + 2, rule.at_most + 1, rule.at_most + 3, rule.minimum)


def _across(rule: Within) -> Quantity:
    bound = rule.at_most if math.isinf(rule.at_least) else rule.at_least
    return Quantity(bound, bound - 1, bound + 1, rule.minimum)


@pytest.mark.parametrize(("owner", "claim"), CLAIMS, ids=IDS)
def test_every_rule_decides_three_synthetic_tables(owner, claim):
    names = [rule.quantity for rule in claim.rules]
    assert len(set(names)) == len(names) > 0
    holds = {rule.quantity: _inside(rule) for rule in claim.rules}
    assert judge_claim(claim, holds).verdict == "holds"
    for rule in claim.rules:
        assert judge_claim(claim, {**holds, rule.quantity: _outside(rule)}).verdict == "does not hold"
        assert (
            judge_claim(claim, holds, {rule.quantity: _outside(rule)}).verdict == "holds"
        )  # explaining decides nothing
        assert judge_claim(claim, {**holds, rule.quantity: _across(rule)}).verdict == "undecided"
        fewer = Quantity(holds[rule.quantity].value, -math.inf, math.inf, rule.minimum - 1)
        assert judge_claim(claim, {**holds, rule.quantity: fewer}).verdict == "undecided"
    assert judge_claim(claim, {}).verdict == "undecided"


def test_one_failed_condition_decides_whatever_the_others_say():
    claim = next(claim for _, claim in CLAIMS if len(claim.rules) > 1)
    first, second = claim.rules[:2]
    mixed = {rule.quantity: _inside(rule) for rule in claim.rules}
    mixed[first.quantity], mixed[second.quantity] = _outside(first), _across(second)
    assert judge_claim(claim, mixed).verdict == "does not hold"


def test_claims_have_names_of_their_own_and_every_quantity_they_print_is_analysed(tmp_path):
    for each in studies().values():
        names = [claim.name for claim in each.claims]
        assert len(set(names)) == len(names) > 0
        assert each.paper
        for size in ("smoke", "small", "medium", "paper"):
            assert each.departures(size)
            settings = each.settings(size)
            assert json.loads(json.dumps(settings)) == [dict(one) for one in settings]


def test_statistics_match_their_definitions():
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=200), rng.normal(size=200)
    y = x + 0.5 * noise
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert spearman(x, np.exp(x)) == pytest.approx(1.0)
    assert kendall([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(4 / 6)
    assert math.isnan(pearson([1, 1, 1], [1, 2, 3]))
    # y depends on x only through z: nothing is left of their correlation given z.
    z = rng.normal(size=2000)
    a, b = z + rng.normal(size=2000), z + rng.normal(size=2000)
    assert pearson(a, b) > 0.4
    assert abs(partial(a, b, z)) < 0.06
    found = bootstrapped(pearson, x, y)
    assert found.low < pearson(x, y) < found.high
    assert correlation_gain(x, noise, y).low > 0
    mean = over_seeds([1.0, 2.0, 3.0])
    assert (mean.value, mean.count) == (2.0, 3)
    assert mean.high - mean.value == pytest.approx(4.302652729911275 / math.sqrt(3))
    assert over_seeds([1.0]).high == math.inf
    assert ratio_over_seeds([2.0, 8.0], [1.0, 1.0]).value == pytest.approx(4.0)


def test_outliers_are_found_and_few_points_are_all_kept():
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    y = x + 0.1 * rng.normal(size=200)
    x[0], y[0] = 0.0, 30.0
    kept = without_outliers(x, y)
    assert not kept[0]
    assert kept.sum() > 150
    assert without_outliers(x[:10], y[:10]).all()


def test_a_run_is_named_by_what_affects_it_and_stored_whole(tmp_path):
    own = study_named("margins-fig1")
    settings = own.settings("smoke")[0]
    assert own.identity(settings) != own.identity({**settings, "steps": 31})
    store = RunStore(tmp_path)
    assert run_study(own, "smoke", store) == 1
    assert run_study(own, "smoke", store) == 0
    files = list(tmp_path.rglob("*"))
    assert sum(path.is_file() for path in files) == 1
    path = store.path(own, settings)
    path.write_text(path.read_text()[:40])
    with pytest.raises(SpiritlevelError, match="remove it and run again"):
        store.table(own, "smoke")


def test_a_failed_group_leaves_what_is_finished_and_the_next_call_goes_on(tmp_path, monkeypatch):
    own = study_named("margins-fig2")
    store = RunStore(tmp_path)
    import spiritlevel.lab.studies.running as running

    compute, calls = running.compute, []

    def failing(work):
        calls.append(work)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return compute(work)

    monkeypatch.setattr(running, "compute", failing)
    with pytest.raises(KeyboardInterrupt):
        run_study(own, "smoke", store)
    monkeypatch.setattr(running, "compute", compute)
    assert len(store.table(own, "smoke").runs) == 2
    assert run_study(own, "smoke", store) == len(own.settings("smoke")) - 2


def test_figure_two_is_an_identity_and_its_printed_r_an_artefact(tmp_path):
    own = study_named("margins-fig2")
    store = RunStore(tmp_path)
    run_study(own, "smoke", store)
    record = make_record(own, "smoke", store.table(own, "smoke"))
    assert record.analysis["r_exact"].low == pytest.approx(1.0, abs=1e-12)
    assert record.analysis["relative_error"].high < 1e-12
    assert 0.5 < record.analysis["r_stopped"].value < 0.99
    verdicts = {each.claim.name: each.verdict for each in record.judgements}
    assert verdicts["exact-identity"] == "holds"
    assert verdicts["printed-bound-holds"] == "does not hold"
    assert "factor must be" in next(each.remark for each in record.judgements if each.claim.name.startswith("printed"))


def test_documents_come_from_records_alone(tmp_path):
    own = study_named("margins-fig1")
    store = RunStore(tmp_path / "runs")
    run_study(own, "smoke", store)
    record = make_record(own, "smoke", store.table(own, "smoke"))
    write_documents(tmp_path / "docs", [own], [record])
    page = (tmp_path / "docs" / "claims.md").read_text()
    assert "2 claims: 2 holds" in page
    assert (tmp_path / "docs" / "figures" / "margins-fig1-simplex.png").stat().st_size > 1000
    again = read_records(tmp_path / "docs", [own])
    assert claims_page([own], again) == page
    assert again["margins-fig1"].judged_by == record.rules == own.rules_hash()
    assert "not run" in claims_page([own, study_named("margins-fig2")], again)


def test_command_line_runs_shows_and_exports(tmp_path):
    runner = CliRunner()
    out = ["--out", str(tmp_path / "runs"), "--size", "smoke"]
    done = runner.invoke(study, ["run", "margins-fig1", "--quiet", *out])
    assert done.exit_code == 0, done.output
    assert "holds" in done.output
    assert "2/3" in runner.invoke(study, ["show", "margins-fig1", *out]).output
    table = tmp_path / "rows.csv"
    assert runner.invoke(study, ["export", "margins-fig1", "--csv", str(table), *out]).exit_code == 0
    assert table.read_text().startswith("study,")
    assert isinstance(runner.invoke(study, ["run", *out]).exception, UsageError)
    assert isinstance(runner.invoke(study, ["export", "margins-fig1", *out]).exception, UsageError)
    with pytest.raises(UsageError, match="did you mean margins-fig"):
        study_named("margins-fig3")
    assert {name for name, _, _ in list_studies()} == set(studies())


def test_processes_give_the_rows_of_one_process(tmp_path):
    own = study_named("margins-fig1")
    here, there = RunStore(tmp_path / "here"), RunStore(tmp_path / "there")
    run_study(own, "smoke", here)
    run_study(own, "smoke", there, engine="processes", workers=1)
    assert here.table(own, "smoke").rows == there.table(own, "smoke").rows
    with pytest.raises(UsageError, match="engines are"):
        run_study(own, "smoke", here, engine="cloud")


@pytest.mark.slow
def test_killed_ten_times_a_study_ends_with_the_same_table(tmp_path):
    own = study_named("margins-fig2")
    whole = RunStore(tmp_path / "whole")
    run_study(own, "smoke", whole)
    # At half a second a run, a kill after a random time finds the study anywhere: importing, computing or writing.
    script = (
        "import torch; torch.set_num_threads(1)\n"
        "from spiritlevel.lab.studies import *\n"
        f"run_study(study_named('margins-fig2'), 'smoke', RunStore({str(tmp_path / 'killed')!r}))\n"
    )
    wait = random.Random(0)
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", script])
        time.sleep(wait.uniform(1.0, 5.0))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run([sys.executable, "-c", script], check=True)
    killed = RunStore(tmp_path / "killed")
    assert killed.table(own, "smoke").rows == whole.table(own, "smoke").rows
    assert json.dumps([run.columns for run in killed.table(own, "smoke").runs]) == json.dumps(
        [run.columns for run in whole.table(own, "smoke").runs]
    )


if importlib.util.find_spec("ray"):  # an optional engine, tested where it is installed

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_ray_gives_the_rows_of_one_process(tmp_path):
        own = study_named("margins-fig2")
        here, there = RunStore(tmp_path / "here"), RunStore(tmp_path / "there")
        run_study(own, "smoke", here, place=Place())
        run_study(own, "smoke", there, place=Place(), engine="ray")
        assert here.table(own, "smoke").rows == there.table(own, "smoke").rows


@pytest.mark.slow
def test_the_claims_table_in_the_documents_is_what_its_records_give():
    folder = Path(__file__).parents[3] / "docs" / "results"
    records = read_records(folder, studies().values())
    assert claims_page(studies().values(), records) == (folder / "claims.md").read_text(encoding="utf-8")
    assert all(record.judged_by == record.rules for record in records.values())
    rows = sum(len(each.claims) for each in studies().values())
    judged = sum(len(record.judgements) for record in records.values())
    assert judged >= 0.75 * rows
