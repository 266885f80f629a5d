"""Comparisons: who is flatter by each measure, what reverses it, and sentences that never go beyond the numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.analyses.reading import Finding, reading_of
from spiritlevel.analyses.sample_groups import on_samples
from spiritlevel.lab import datasets, nets, training
from spiritlevel.results import Report
from spiritlevel.results.compared import Comparison
from spiritlevel.results.header import Header
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.statistics import paired_intervals
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
    return sl.compare(problems, MEASURES, test=(test.x, test.y))


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
        assert with_error.difference.value == without.difference.value
        widths = [c.difference.high - c.difference.low for c in (with_error, without)]
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
    (tmp_path / "c.json").write_text('{"kind": "comparison", "schema_version": 1}')
    with pytest.raises(sl.SpiritlevelError, match="damaged comparison"):
        Comparison.load(tmp_path / "c.json")
    (tmp_path / "c.json").write_text('{"kind": "report"}')
    with pytest.raises(sl.SpiritlevelError, match="not a comparison"):
        Comparison.load(tmp_path / "c.json")


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


# --- constructed cases ---------------------------------------------------------------------------------------------


def report(label: str, values: dict[str, Estimate], **header: object) -> Report:
    head = {
        "model": "net", "weights": label, "fingerprint": "abc", "loss_name": "cross_entropy", "mode": "eval",
        "dtype": "float64", "samples": 100, "loss": 0.1, "at_minimum": True, "trained": True, **header,
    }  # fmt: skip
    return Report(estimates=values, header=Header.of(head))


def pair(b: float = 2.0, stderr: float = 0.0, **header: object) -> dict[str, Report]:
    names = ("hessian_trace", "rho_sum", "normalized_sharpness")
    return {
        "A": report("A", {name: Estimate(1.0, stderr=stderr) for name in names}),
        "B": report("B", {name: Estimate(b, stderr=stderr) for name in names}, **header),
    }


def test_all_measures_agree() -> None:
    found = sl.compare(pair())
    assert found.reading[0] == (
        "A is flatter than B by all 3 measures; for 2 of the 3 no rescaling (as declared, not checked here) could say "
        "otherwise."
    )
    assert found.agreement == {"decided": 3, "pairs": 3, "agree": 3, "disagreeing": []}
    assert found.headings == []


def test_none_is_decided() -> None:
    found = sl.compare(pair(b=1.05, stderr=0.1))
    assert found.reading[0] == "No measure tells A and B apart: all 3 differences are within their errors."
    assert found.reading[1].startswith("The largest difference is in ")
    assert "B ÷ A = 1.05 (95% interval 0.801 to 1.38)." in found.reading[1]
    assert all(row.holding.words == "difference within its error" for row in found.rows.values())


def test_an_untrained_network_is_headed_as_such() -> None:
    found = sl.compare(pair(trained=False, at_minimum=False))
    line = "B is a network as initialised, so these numbers do not compare trained minima."
    assert found.headings == [line]
    assert found.reading[1] == line


def test_a_network_not_at_a_minimum_is_headed_as_such() -> None:
    found = sl.compare(pair(at_minimum=False, gradient_norm=0.5, gradient_noise=0.1))
    assert found.headings == [
        "B is not at a minimum (gradient norm 0.50, its noise 0.10), so its numbers are the curvature of a slope."
    ]
    assert found.reading[0].endswith("could say otherwise, though B is not at a minimum.")
    assert found.reading[1].startswith("Hessian trace changes when weights are rescaled")
    both = reading_of(["A", "B"], [Finding("ρ", None)], not_at_minimum=["A", "B"])
    assert both[0].endswith("the difference is within its error, though neither is at a minimum.")


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"fingerprint": "other"}, "A and B were measured on different data"),
        ({"fingerprint": None}, "different data"),
        ({"loss_name": "mean_squared_error"}, "the loss cross_entropy and B with mean_squared_error"),
        ({"mode": "train"}, "eval mode and B in train mode"),
    ],
)
def test_what_was_measured_differently_is_refused(header: dict[str, object], words: str) -> None:
    with pytest.raises(sl.UsageError, match=words):
        sl.compare(pair(**header))  # type: ignore[arg-type]


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
        sl.compare({"a": problems["small"], "b": report("B", {"rho_sum": Estimate(1.0)})})
    with pytest.raises(sl.UsageError, match="leave test out"):
        sl.compare(pair(), test=digits)


def test_measures_with_other_settings_or_without_a_value_are_not_compared() -> None:
    both = pair()
    both["A"].settings["rho_sum"] = {"neuron": "in"}
    both["B"].settings["rho_sum"] = {"neuron": "out"}
    both["B"].estimates["hessian_trace"] = Estimate(math.nan, status="not_applicable", reason="no")
    del both["B"].estimates["normalized_sharpness"]
    found = sl.compare(both)
    assert found.rows["rho_sum"].holding.words == "measured with different settings"
    assert found.rows["hessian_trace"].holding.words == "not measured for every network"
    assert found.notes == ["Not in every report, so not compared: normalized_sharpness."]
    assert found.reading[0] == "None of these measures says which network is flatter."


def test_certificates_widen_the_interval_and_can_undecide_it() -> None:
    both = {
        "A": report("A", {"hessian_top_eigenvalue": Estimate(1.0, interval=(0.9, 1.1))}),
        "B": report("B", {"hessian_top_eigenvalue": Estimate(1.15, interval=(1.05, 1.25))}),
    }
    row = sl.compare(both).rows["hessian_top_eigenvalue"]
    assert row.flattest is None
    assert row.contrasts[0].difference.low == pytest.approx(-0.05, abs=1e-6)


def test_values_of_either_sign_have_a_difference_and_no_ratio() -> None:
    both = {"A": report("A", {"output_margin": Estimate(-0.5)}), "B": report("B", {"output_margin": Estimate(2.0)})}
    found = sl.compare(both)
    contrast = found.rows["output_margin"].contrasts[0]
    assert contrast.ratio is None
    assert contrast.difference.value == 2.5
    assert found.flatter("output_margin") == "B"
    assert "Δ 2.50" in str(found)


def test_more_networks_are_ranked_and_their_orders_correlated() -> None:
    values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    reports = {
        label: report(
            label,
            {"hessian_trace": Estimate(v), "rho_sum": Estimate((v - 1.2) ** 2 + 1), "output_margin": Estimate(v)},
        )
        for label, v in values.items()
    }
    found = sl.compare(reports)
    assert {name: row.flattest for name, row in found.rows.items()} == {
        "hessian_trace": "a", "rho_sum": "a", "output_margin": "e",
    }  # fmt: skip
    assert found.reading[0].startswith("a is the flattest of 5 by 2 of 3 measures, e by 1;")
    spearman = {(e["first"], e["second"]): e["value"] for e in found.agreement["spearman"]}
    assert spearman["hessian_trace", "rho_sum"] == pytest.approx(1.0)
    assert spearman["hessian_trace", "output_margin"] == pytest.approx(-1.0)
    assert len(found.rows["hessian_trace"].contrasts) == 10


# --- sentences -----------------------------------------------------------------------------------------------------


def test_the_reading_of_the_mock() -> None:
    findings = [
        Finding("Hessian trace", "A", 6.55, holds="reversible", factor=2.6, kind="layers"),
        Finding("top eigenvalue", "A", 3.7, holds="reversible", factor=1.9, kind="layers"),
        Finding("normalised sharpness", "A", 1.4, holds="invariant"),
        Finding("κτ, summed over layers", "A", 1.3, holds="reversible", factor=3.0, kind="neurons"),
        Finding("ρ, summed over layers", None, 1.01),
        Finding("output margin", "A", 0.94, holds="scales_with_logits"),
    ]
    assert reading_of(["A", "B"], findings) == [
        "A is flatter than B by 5 of 6 measures (1 undecided); for 1 of the 5 no rescaling found in these networks "
        "could say otherwise.",
        "Hessian trace and top eigenvalue favour A, but rescaling one pair of layers by at most 2.6 reverses each "
        "without changing a single prediction.",
    ]


def test_readings_say_no_more_than_is_known() -> None:
    surviving = [Finding("ρ, summed over layers", "B", 0.5, (0.4, 0.6), holds="invariant")]
    assert reading_of(["A", "B"], surviving) == [
        "B is flatter than A by the only measure; for it no rescaling found in these networks could say otherwise.",
        "The largest difference is in ρ, summed over layers: B ÷ A = 0.500 (95% interval 0.400 to 0.600).",
    ]
    unreversed = [Finding("κ, last layer", "A", 2.0, holds="changes")]
    assert reading_of(["A", "B"], unreversed)[1] == (
        "κ, last layer changes when weights are rescaled, though no reversal was found here."
    )
    nothing_to_try = [Finding("Hessian trace", "A", 2.0, holds="not_tried")]
    assert "no rescaling was found in these networks to try" in reading_of(["A", "B"], nothing_to_try)[0]
    margins = [Finding("output margin", "A", 2.0, holds="scales_with_logits")]
    assert "it scales with the logits" in reading_of(["A", "B"], margins)[0]
    split = [Finding("Hessian trace", "A", 2.0, holds="invariant"), Finding("ρ", "B", 0.5, holds="invariant")]
    assert reading_of(["A", "B"], split)[0].startswith("A is flatter than B by 1 of 2 measures, B by 1;")


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
    x, y = torch.randn(40, 4), torch.arange(40) % 2
    problems = {}
    for label, width in (("a", 3), ("b", 8)):
        model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))
        problems[label] = opened(model, (x, y), mode="train")
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
