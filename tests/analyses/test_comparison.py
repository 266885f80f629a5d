"""Comparisons of trained networks: who is flatter by each measure, and what reverses it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.analyses.sample_groups import on_samples
from spiritlevel.lab import datasets, nets, training
from spiritlevel.results import Report
from spiritlevel.results.compared import Comparison
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.statistics import paired_intervals
from tests.analyses.made_reports import made, pair
from tests.helpers import opened

MEASURES = ("default", "matrix_normalized_sharpness", "softmax_impurity", "weight_norm")


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    data = datasets.load("digits", "train")
    return data.x[:600], data.y[:600]


@pytest.fixture(scope="module")
def problems(digits: tuple[torch.Tensor, torch.Tensor]) -> dict[str, sl.Problem]:
    """Two networks trained alike but for their batches, as in the demonstration."""
    found = {}
    for label, batch_size in (("small", 16), ("large", 200)):
        model = nets.build("digits_mlp", seed=0, channels=1, size=8, classes=10, widths=(10, 8))
        training.train(model, digits, batch_size=batch_size, steps=500, lr=0.1)
        found[label] = opened(model, digits)
    return found


@pytest.fixture(scope="module")
def comparison(problems: dict[str, sl.Problem]) -> Comparison:
    test = datasets.load("digits", "test")
    return sl.compare(problems, MEASURES, test=(test.x, test.y), dtype="float64")


def test_every_measure_names_the_network_its_values_say(comparison: Comparison) -> None:
    small, large = comparison.reports["small"], comparison.reports["large"]
    directions = {name: row.sharper_when for name, row in comparison.rows.items()}
    assert directions["output_margin"] == "smaller"
    for name, row in comparison.rows.items():
        if name == "weight_norm":
            assert row.holding.kind == "no_direction"
            continue
        sharper = max if row.sharper_when == "larger" else min
        values = {"small": small[name].value, "large": large[name].value}
        flatter = next(label for label, value in values.items() if value != sharper(values.values()))
        assert row.flattest in (flatter, None), name
        if row.flattest is None:
            assert row.holding.kind == "undecided"
    assert comparison.flatter("hessian_trace") is not None
    assert comparison.flatter("rho_sum") is not None


def test_orderings_are_kept_by_what_the_papers_prove(comparison: Comparison) -> None:
    kinds = {name: row.holding.kind for name, row in comparison.rows.items() if row.flattest is not None}
    expected = {
        "hessian_trace": "reversible",
        "hessian_top_eigenvalue": "reversible",
        "kappa_tau_sum": "reversible",
        "matrix_normalized_sharpness": "reversible",
        "normalized_sharpness": "invariant",
        "rho_sum": "invariant",
        "output_margin": "scales_with_logits",
        "softmax_impurity": "scales_with_logits",
    }
    assert kinds == {name: kind for name, kind in expected.items() if name in kinds}
    assert len(kinds) >= 4
    for name in ("kappa_tau_sum", "matrix_normalized_sharpness"):
        if name in kinds:
            row = comparison.rows[name]
            assert row.holding.changed_by == ("neuron_rescaling",)
            assert row.holding.words.startswith("holds under rescaling of layers; rescaling neurons by at most ×")


def rescaled(model: nn.Module, x: torch.Tensor, factors: dict[str, list[float]]) -> nn.Module:
    return sl.symmetries.rescale_layers(model, x, {name: values[0] for name, values in factors.items()})


def test_the_rescaling_found_reverses_the_trace_and_nothing_that_is_invariant(
    comparison: Comparison, problems: dict[str, sl.Problem], digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    reversal = comparison.rows["hessian_trace"].holding.reversal
    assert reversal is not None
    assert reversal.kind == "layers"
    x, y = digits[0].double(), digits[1]
    models = {label: opened(p.model, digits, dtype="float64").model for label, p in problems.items()}
    names = ["hessian_trace", "rho_sum", "rho_max", "normalized_sharpness"]
    before = {label: sl.measure(model, (x, y), measures=names) for label, model in models.items()}
    changed_model = rescaled(models[reversal.network], x, reversal.factors)
    changed = sl.measure(changed_model, (x, y), measures=names)
    other = next(label for label in models if label != reversal.network)
    was_flatter = before[reversal.network]["hessian_trace"].value < before[other]["hessian_trace"].value
    is_flatter = changed["hessian_trace"].value < before[other]["hessian_trace"].value
    assert was_flatter != is_flatter
    assert changed["hessian_trace"].value == pytest.approx(reversal.after, rel=1e-9)
    for name in names[1:]:
        assert changed[name].value == pytest.approx(before[reversal.network][name].value, rel=1e-6), name
    torch.testing.assert_close(changed_model(x), models[reversal.network](x), rtol=1e-10, atol=1e-10)


def test_no_smaller_rescaling_of_a_layer_reverses_the_trace(
    comparison: Comparison, problems: dict[str, sl.Problem], digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    reversal = comparison.rows["hessian_trace"].holding.reversal
    assert reversal is not None
    x, y = digits[0].double(), digits[1]
    models = {label: opened(p.model, digits, dtype="float64").model for label, p in problems.items()}
    value = {
        label: float(sl.measure(m, (x, y), measures="hessian_trace")["hessian_trace"]) for label, m in models.items()
    }
    order = value["small"] < value["large"]
    a_little_less = reversal.factor * 0.99
    for label, model in models.items():
        for layer in ("1", "3"):
            for factor in (a_little_less, 1 / a_little_less):
                changed = rescaled(model, x, {layer: [factor]})
                trace = float(sl.measure(changed, (x, y), measures="hessian_trace")["hessian_trace"])
                now = {**value, label: trace}
                assert (now["small"] < now["large"]) == order, (label, layer, factor)


def test_every_reversal_is_confirmed_by_its_own_numbers(comparison: Comparison) -> None:
    found = [row.holding.reversal for row in comparison.rows.values() if row.holding.reversal is not None]
    assert len(found) >= 2
    for reversal in found:
        assert (reversal.before < reversal.other) != (reversal.after < reversal.other)
        assert 1 < reversal.factor < 1000
        largest = max(max(f, 1 / f) for values in reversal.factors.values() for f in values)
        assert largest == pytest.approx(reversal.factor)


def test_ratios_are_paired_over_samples_where_both_sides_have_them(comparison: Comparison) -> None:
    small, large = comparison.reports["small"], comparison.reports["large"]
    contrast = comparison.rows["hessian_trace"].contrasts[0]
    assert contrast.over_samples == "paired"
    assert contrast.ratio is not None
    expected = paired_intervals(small.per_sample["hessian_trace"], large.per_sample["hessian_trace"]).log_ratio
    assert expected is not None
    assert contrast.ratio.value == pytest.approx(large["hessian_trace"].value / small["hessian_trace"].value, rel=1e-6)
    assert math.log(contrast.ratio.high) == pytest.approx(expected.high, abs=0.01)
    assert math.log(contrast.ratio.low) == pytest.approx(expected.low, abs=0.01)
    assert comparison.rows["output_margin"].contrasts[0].over_samples == "paired"
    assert comparison.rows["kappa_tau_sum"].contrasts[0].over_samples == "grouped"
    assert "Without an error over samples" not in str(sl.compare(pair_of_means(comparison)))


def pair_of_means(comparison: Comparison) -> dict[str, Report]:
    """Return the reports with nothing but what has a value of its own for each sample."""
    return {
        label: Report({name: report[name] for name in report.per_sample}, {}, {}, report.per_sample, report.header)
        for label, report in comparison.reports.items()
    }


def test_groups_of_samples_give_errors_to_measures_that_are_no_means(problems: dict[str, sl.Problem]) -> None:
    names = ["hessian_trace", "softmax_impurity", "rho_sum", "hessian_top_eigenvalue"]
    grouped = sl.compare(problems, names, search=False)
    alone = sl.compare(problems, names, search=False, groups=0)
    for name in names[2:]:
        with_error, without = grouped.rows[name].contrasts[0], alone.rows[name].contrasts[0]
        assert (with_error.over_samples, without.over_samples) == ("grouped", "none")
        assert with_error.interval.value == without.interval.value
        widths = [c.interval.high - c.interval.low for c in (with_error, without)]
        assert widths[0] > 2 * widths[1]
    assert "Without an error over samples" in str(alone)
    assert grouped.rows["hessian_trace"] == alone.rows["hessian_trace"]


def test_groups_are_disjoint_parts_of_the_data(problems: dict[str, sl.Problem]) -> None:
    whole = problems["small"]
    member = torch.arange(600) % 3
    parts = [on_samples(whole, member == group) for group in range(3)]
    assert [part.survey.count for part in parts] == [200, 200, 200]
    torch.testing.assert_close(parts[1].survey.losses, whole.survey.losses[1::3], rtol=1e-5, atol=1e-7)
    assert len({part.survey.fingerprint for part in parts}) == 3


def test_margins_come_as_distributions_on_common_bins(comparison: Comparison) -> None:
    assert len(comparison.margin_bins) == 31
    for label, margins in comparison.margins.items():
        assert sum(margins.counts) == 600
        values = comparison.reports[label].per_sample["output_margin"]
        assert margins.summary["median"] == pytest.approx(float(values.median()), rel=0.05)
        assert margins.summary["min"] == pytest.approx(float(values.min()))
        assert margins.summary["skewness"] is not None
        assert margins.summary["share_negative"] == pytest.approx(float((values < 0).double().mean()), abs=1e-9)


def test_agreement_counts_pairs_of_decided_measures(comparison: Comparison) -> None:
    decided = [row.flattest for row in comparison.rows.values() if row.flattest is not None]
    agreement = comparison.agreement
    assert agreement["decided"] == len(decided)
    assert agreement["pairs"] == len(decided) * (len(decided) - 1) // 2
    assert agreement["agree"] + len(agreement["disagreeing"]) == agreement["pairs"]
    same = sum(a == b for i, a in enumerate(decided) for b in decided[i + 1 :])
    assert agreement["agree"] == same


def test_comparisons_are_saved_and_read_again(comparison: Comparison, tmp_path: Path) -> None:
    comparison.save(tmp_path / "c.json")
    again = Comparison.load(tmp_path / "c.json")
    assert str(again) == str(comparison)
    assert again.rows["hessian_trace"] == comparison.rows["hessian_trace"]
    assert again.test["small"]["samples"] == 360


def test_saved_reports_compare_with_what_is_declared(comparison: Comparison, tmp_path: Path) -> None:
    for label, report in comparison.reports.items():
        report.save(tmp_path / f"{label}.json")
    found = sl.compare([tmp_path / "small.json", tmp_path / "large.json"])
    assert found.labels == ["small.json", "large.json"]
    row = found.rows["hessian_trace"]
    assert row.contrasts[0].ratio == comparison.rows["hessian_trace"].contrasts[0].ratio
    assert (row.holding.kind, row.holding.checked) == ("changes", False)
    assert found.rows["rho_sum"].holding.words == "invariant to every rescaling, as declared"
    assert "reverses" not in " ".join(found.reading)
    assert "as declared, not checked here" in found.reading[0]


def test_problems_on_other_data_or_with_another_loss_are_refused_before_measuring(
    problems: dict[str, sl.Problem], digits: tuple[torch.Tensor, torch.Tensor]
) -> None:
    x, y = digits
    with pytest.raises(sl.UsageError, match="different data"):
        sl.compare({"a": problems["small"], "b": opened(problems["large"].model, (x[:100], y[:100]))})
    other = opened(problems["large"].model, digits, "normalized_cross_entropy")
    with pytest.raises(sl.UsageError, match="cannot be compared; measure both with the same loss"):
        sl.compare({"a": problems["small"], "b": other})
    with pytest.raises(sl.UsageError, match="at least two"):
        sl.compare({"a": problems["small"]})
    with pytest.raises(sl.UsageError, match="not both"):
        sl.compare({"a": problems["small"], "b": made("B", {"rho_sum": Estimate(1.0)})})
    with pytest.raises(sl.UsageError, match="leave test out"):
        sl.compare(pair(), test=digits)


@pytest.mark.parametrize("word", ["flat ", "sharp ", "a flat", "is flat.", "is sharp"])
def test_no_network_is_called_flat_by_itself(comparison: Comparison, word: str) -> None:
    assert word not in " ".join(comparison.reading)


def test_networks_without_symmetries_are_compared_without_promises() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(50, 3), torch.arange(50) % 2
    problems = {}
    for label in ("a", "b"):
        model = nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))
        problems[label] = opened(model, (x, y))
    with torch.no_grad():  # the second is clearly different
        for parameter in problems["b"].model.parameters():
            parameter.mul_(3.0)
    found = sl.compare(problems, ["ggn_trace", "softmax_impurity"])
    assert found.flatter("ggn_trace") is not None
    assert found.rows["ggn_trace"].holding.kind == "not_tried"
    assert found.rows["softmax_impurity"].holding.kind == "scales_with_logits"


@pytest.mark.slow
def test_a_sampled_trace_is_reversed_by_measuring_too() -> None:
    """BatchNorm in training mode couples samples, so the trace is sampled and no closed form proposes the factor."""
    torch.manual_seed(0)
    x, y = torch.randn(40, 8), torch.arange(40) % 2
    problems = {}
    for label, width in (("a", 16), ("b", 64)):
        model = nn.Sequential(nn.Linear(8, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
        with torch.no_grad():  # the outputs stay, and most of the trace is the last layer's, known well from few probes
            model[0].weight.mul_(10)
        problems[label] = opened(model, (x, y), mode="train")
    with torch.no_grad():  # which keeps the outputs, and makes the second clearly sharper, whatever the draws say
        problems["b"].model[0].weight.mul_(0.1)
    row = sl.compare(problems, ["hessian_trace"]).rows["hessian_trace"]
    assert row.flattest is not None
    assert row.contrasts[0].over_samples == "none"
    assert row.holding.reversal is not None
    assert row.holding.reversal.measurements > 1


def test_the_users_networks_stay_as_they_were(problems: dict[str, sl.Problem]) -> None:
    before = {label: [t.detach().clone() for t in p.model.parameters()] for label, p in problems.items()}
    sl.compare(problems, ["rho_sum", "hessian_trace"])
    for label, problem in problems.items():
        assert problem.dtype == torch.float32
        assert all(torch.equal(a, b) for a, b in zip(before[label], problem.model.parameters()))
