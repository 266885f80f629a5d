"""Set-ups and rules of the studies that were brought to the papers' sizes, and the statistics their rules use."""

from __future__ import annotations

import logging
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from spiritlevel.cli.study_command import study
from spiritlevel.lab.datasets import load, standardised, to_grey
from spiritlevel.lab.studies import (
    Place,
    RunStore,
    Table,
    Within,
    judge_claim,
    load_record,
    make_record,
    run_study,
    save_record,
    study_named,
)
from spiritlevel.lab.studies.margins.appendix_cifar import look_steps
from spiritlevel.lab.studies.material import network, sample_indices, trained_alone, training_data
from spiritlevel.lab.studies.petzka.mnist import layer_correlations
from spiritlevel.lab.studies.study import FinishedRun
from spiritlevel.lab.studies.telling import EpochLines
from spiritlevel.lab.studies.transformed import (
    correlation_by_z,
    leaving_one_out,
    r_over_seeds,
    share_over_seeds,
    within_cells,
)
from spiritlevel.lab.training import EpochRecord, evaluate
from spiritlevel.values.errors import UsageError

CIFAR = ("margins-appendix-lenet5-cifar10", "margins-appendix-fcnbn-cifar10")


def test_fishers_interval_is_scipys_and_stays_inside():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = x + 0.2 * rng.normal(size=40)
    found, expected = correlation_by_z(x, y), stats.pearsonr(x, y).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert correlation_by_z(x, 2 * x).high <= 1.0
    seeds = r_over_seeds([0.99, 0.9, 0.97])
    assert -1 < seeds.low < 0.9 < seeds.value < seeds.high < 1  # Student's interval of the values would reach 1.07
    assert math.isnan(correlation_by_z([1, 1, 1, 1], [1, 2, 3, 4]).value)


def test_a_correlation_between_cells_alone_is_not_one_within_them():
    rng = np.random.default_rng(1)
    cells = np.repeat([1000, 2000, 4000, 8000], 18)
    level = np.log(cells)
    x, y = level + 0.1 * rng.normal(size=72), level + 0.1 * rng.normal(size=72)
    assert correlation_by_z(x, y).low > 0.9
    within = within_cells(x, y, list(cells))
    assert within.low < 0 < within.high
    assert within_cells(x, x + 0.01 * level, list(cells)).value == pytest.approx(1.0)


def test_leaving_one_out_shows_a_network_that_decides():
    x, y = np.arange(12.0), np.tile([0.0, 1.0], 6)
    x[0], y[0] = 200.0, 30.0
    found = leaving_one_out(x, y)
    assert found.value > 0.95
    assert found.low < 0.5


def test_shares_have_intervals_between_zero_and_one():
    for values in ([1.0, 1.0, 0.95], [0.0, 0.1, 0.0], [1.0] * 5):
        found = share_over_seeds(values, 10)
        assert 0 <= found.low <= found.value <= found.high <= 1
    assert share_over_seeds([1.0] * 5, 10).low > 0.9


@pytest.mark.parametrize(("r", "least_share", "largest_share"), [
    ([0.73, 0.70, 0.72, 0.71], 0.85, 1.0), ([0.5] * 4, 0.0, 0.15), ([0.4] * 4, 0.0, 0.03), ([0.0] * 4, 0.0, 0.0),
])  # fmt: skip
def test_the_rule_for_petzkas_correlation_has_power_and_size(r, least_share, largest_share):
    """The share of tables of 72 networks in which ρ ≥ 0.7 is said to hold; the rule before it held in 0.7% of them."""
    claim = next(claim for claim in study_named("petzka-mnist").claims if claim.name == "per-layer")
    covariance = np.full((5, 5), 0.9)
    np.fill_diagonal(covariance, 1.0)
    covariance[4, :4] = covariance[:4, 4] = r
    draws = np.random.default_rng(0).multivariate_normal(np.zeros(5), covariance, size=(300, 72), method="eigh")
    analyses = (layer_correlations("kappa_tau", list(draw[:, :4].T), draw[:, 4]) for draw in draws)
    verdicts = Counter(judge_claim(claim, analysis).verdict for analysis in analyses)
    assert least_share <= verdicts["holds"] / 300 <= largest_share


def test_paper_sizes_have_the_papers_data_and_five_seeds_an_arm():
    softmax = study_named("false-friend-l2-softmax")
    assert Counter(run["weight_decay"] for run in softmax.settings("paper")) == {0.0: 5, 1e-4: 5, 5e-4: 5}
    assert len(softmax.groups("paper")) == 1  # one stack, whatever the weight decay
    first = softmax.settings("paper")[0]
    assert (first["images"], first["points"], first["epochs"], first["lr"]) == (45000, 45000, 1000, 0.01)
    petzka = study_named("petzka-mnist").settings("paper")
    assert len(petzka) == 72
    assert all("images" not in run for run in petzka)
    assert {run["lr"] / run["batch_size"] for run in petzka} == {2e-5}
    for name in CIFAR:
        runs = study_named(name).settings("paper")
        assert [run["seed"] for run in runs] == list(range(5))
        assert all("images" not in run for run in runs)
        assert all(rule.minimum == 5 for claim in study_named(name).claims for rule in claim.rules)


def test_softmax_regression_sees_standardised_inputs_and_its_own_decay():
    own = study_named("false-friend-l2-softmax")
    group = own.groups("smoke")[0]
    assert {run["weight_decay"] for run in group} == {0.0, 1e-4, 5e-4}
    data = training_data(group[0], Place())
    assert float(data.x.min()) == -1.0
    assert float(data.x.max()) == 1.0
    stronger = [{**run, "weight_decay": 1000 * run["weight_decay"], "epochs": 20} for run in group]
    together = own.train(stronger, Place())
    for settings, model in zip(stronger, together, strict=True):
        alone, _ = trained_alone(settings, data, Place())
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    norms = [float(model[-1].weight.detach().norm()) for model in together]
    assert norms[-1] < 0.5 * norms[0]


def test_inputs_are_standardised_and_a_bad_deviation_is_named():
    data = load("digits")
    found = standardised(data, 0.5, 0.25)
    torch.testing.assert_close(found.x, (data.x - 0.5) / 0.25)
    assert "standardised" in found.notes[-1]
    with pytest.raises(UsageError, match="must be positive"):
        standardised(data, 0.5, 0.0)


def test_grey_images_kept_as_bytes_are_the_grey_images_of_the_colour_ones(tmp_path):
    """So that a set of grey images can stand in for one of colour images three times its size."""
    colour = np.random.default_rng(0).integers(256, size=(50, 3, 32, 32), dtype=np.uint8)
    settings = {"data": "cifar10", "net": "lenet5", "grey": True}
    sets = {}
    for kind in ("colour", "grey"):
        folder = tmp_path / kind
        folder.mkdir()
        pixels = colour if kind == "colour" else (sets["colour"].x * 255).round().to(torch.uint8).numpy()
        np.savez(folder / "cifar10-train.npz", x=pixels, y=np.arange(50) % 10)
        sets[kind] = training_data(settings, Place(data_root=str(folder)))
    assert torch.equal(sets["colour"].x, sets["grey"].x)
    r, g, b = colour.astype(np.int64).transpose(1, 0, 2, 3)
    levels = torch.from_numpy((299 * r + 587 * g + 114 * b + 500) // 1000).float()[:, None] / 255
    assert torch.equal(to_grey(load_like(colour)).x, levels)


def load_like(pixels):
    from spiritlevel.lab.datasets import LabelledData

    count = len(pixels)
    return LabelledData(torch.from_numpy(pixels).float().div(255), torch.zeros(count).long(), "random", "train", 10)


def test_margins_on_cifar_look_before_the_first_step(tmp_path):
    assert look_steps(40000)[:4] == [0, 50, 100, 200]
    assert look_steps(40000)[-5:] == [10000, 15000, 20000, 30000, 40000]
    own, store = study_named(CIFAR[1]), RunStore(tmp_path)
    run_study(own, "smoke", store)
    table = store.table(own, "smoke").where(seed=0)
    assert table.column("step").tolist() == look_steps(200)
    settings = own.settings("smoke")[0]
    data = training_data(settings, Place())
    points = data.subset(sample_indices(len(data), settings["points"], 0))
    untrained = evaluate(network(settings, data, Place()), points)
    assert table.rows[0]["accuracy"] == pytest.approx(untrained.accuracy)
    assert table.rows[0]["loss"] == pytest.approx(untrained.loss, rel=1e-5)
    assert table.rows[-1]["accuracy"] > table.rows[0]["accuracy"]


def test_margins_on_cifar_are_judged_over_a_quarter_of_training_and_over_all_of_it():
    """Correlated points in the first quarter alone: the claim holds there and not to the end."""
    runs = []
    for seed in range(5):
        rows = [
            {"step": step, "accuracy": 0.1 + step / 50000, "slack_against_confidence": -0.5,
             **{f"r_{name}_{kind}": (0.9 if step <= 10000 else 0.2) + 0.002 * seed + 1e-7 * step
                for name in ("aceht", "margin_bound") for kind in ("correct", "correct_all", "wrong", "wrong_all")}}
            for step in look_steps(40000)
        ]  # fmt: skip
        runs.append(FinishedRun(str(seed), {"seed": seed}, rows, {}))
    own = study_named(CIFAR[0])
    analysis = own.analyse(Table(runs))
    verdicts = {claim.name: judge_claim(claim, analysis).verdict for claim in own.claims}
    assert analysis["share_high_aceht"].value == pytest.approx(1.0)
    assert analysis["share_high_aceht_to_the_end"].value == pytest.approx(0.25)
    assert verdicts["aceht-correlates"] == "holds"
    assert verdicts["aceht-correlates-to-the-end"] == "does not hold"
    assert verdicts["wrong-points"] == "does not hold"
    assert analysis["accuracy"].value == pytest.approx(0.3)
    assert not [name for name, found in analysis.items() if not -1 <= found.low <= found.high <= 1 and name != "runs"]


def test_a_long_training_tells_how_far_it_is(caplog):
    caplog.set_level(logging.INFO, logger="spiritlevel.studies")
    hook = EpochLines("net on data", 100, 3, every=0.0)
    for epoch in range(3):
        hook({place: EpochRecord(epoch, epoch, 0.1, 1.0, 0.5) for place in range(2)})
    assert len(caplog.messages) == 3
    assert "epoch 3 of 3, 2 networks" in caplog.messages[-1]
    assert "images/s" in caplog.messages[-1]
    caplog.clear()
    hook = EpochLines("net on data", 100, 3, every=1e9)
    for epoch in range(3):
        hook({0: EpochRecord(epoch, epoch, 0.1, 1.0, 0.5)})
    assert len(caplog.messages) == 1  # the last one


def test_a_piped_run_prints_lines(tmp_path):
    done = CliRunner().invoke(study, ["run", "margins-fig1", "--out", str(tmp_path), "--size", "smoke"])
    assert done.exit_code == 0, done.output
    assert "margins-fig1: 0 of 1 runs" in done.stderr
    assert "margins-fig1: 1 of 1 runs" in done.stderr
    assert "trained in" in done.stderr
    assert not logging.getLogger("spiritlevel.studies").handlers


def test_worker_processes_print_their_lines_too(tmp_path, capfd):
    arguments = ["run", "margins-fig1", "--out", str(tmp_path), "--engine", "processes", "--workers", "1"]
    study(arguments, standalone_mode=False)
    assert "margins-fig1: 1 trained in" in capfd.readouterr().err


def test_a_run_keeps_the_rules_it_was_made_under(tmp_path):
    """Rules that change after the runs are seen to have changed, at once and in every later record."""
    own, store = study_named("margins-fig1"), RunStore(tmp_path / "runs")
    run_study(own, "smoke", store)
    first, *others = own.claims
    later = replace(own, claims=(replace(first, rules=(Within(first.rules[0].quantity, -5.0),)), *others))
    assert later.rules_hash() != own.rules_hash()
    path = tmp_path / "record.json"
    for study_now, expected in ((own, own.rules_hash()), (later, later.rules_hash())):
        record = make_record(study_now, "smoke", store.table(study_now, "smoke"))
        save_record(record, path)
        again = load_record(study_now, path)
        assert again.rules == expected
        assert again.judged_by == record.judged_by == own.rules_hash()
