"""Comparisons of reports made by hand: agreement, refusals, intervals, ranks, and the sentences they become."""

from __future__ import annotations

import math

import pytest

import spiritlevel as sl
from spiritlevel.analyses.reading import Finding, reading_of
from spiritlevel.results import Report
from spiritlevel.results.contrasts import Contrast
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.statistics import Interval
from tests.analyses.made_reports import made, pair


def test_all_measures_agree() -> None:
    found = sl.compare(pair())
    assert found.reading[0] == (
        "A is flatter than B by all 3 measures; 2 of the 3 are invariant to every rescaling (as declared, not checked "
        "here)."
    )
    assert found.agreement == {"decided": 3, "pairs": 3, "agree": 3, "disagreeing": []}
    assert found.headings == []


def test_none_is_decided() -> None:
    found = sl.compare(pair(b=1.05, stderr=0.1))
    assert found.reading[0] == "No measure tells A and B apart: all 3 differences are within their errors."
    assert found.reading[1].startswith("The largest difference is in ")
    assert "B ÷ A = 1.05 (95% interval 0.799 to 1.39), within its error." in found.reading[1]
    assert all(row.holding.words == "difference within its error" for row in found.rows.values())


def six_networks(trace_of_f: Estimate) -> dict[str, Report]:
    """Return networks that differ less than their errors, but for the trace of the last one."""
    close = {label: 1 + 0.01 * place for place, label in enumerate("ABCDEF")}
    return {
        label: made(
            label,
            {
                "hessian_trace": trace_of_f if label == "F" else Estimate(value, stderr=0.3, how="estimated"),
                "rho_sum": Estimate(value, stderr=0.1, how="estimated"),
            },
        )
        for label, value in close.items()
    }


def test_one_decided_pair_of_six_networks_is_not_taken_for_no_difference() -> None:
    # F is told apart from E alone, whose value is the furthest from its own.
    reports = six_networks(Estimate(0.55, stderr=0.1, how="estimated"))
    reports["E"].estimates["hessian_trace"] = Estimate(1.2, stderr=0.05, how="estimated")
    found = sl.compare(reports)
    decided = [each for row in found.rows.values() for each in row.contrasts if each.decided]
    assert [(each.first, each.second) for each in decided] == [("E", "F")]
    assert found.reading[0] == (
        "No measure names one network flatter than all 5 others, but 1 of 2 measures tells some of them apart: "
        "1 of 30 differences is larger than their errors."
    )
    assert found.reading[-1].startswith("The largest difference is in Hessian trace: F ÷ E = 0.458 (95% interval ")
    assert not found.reading[-1].endswith("within its error.")
    assert found.rows["hessian_trace"].holding.words == "no single flattest: 1 of 15 pairs are told apart"


def test_the_largest_difference_is_of_any_pair() -> None:
    reports = six_networks(Estimate(1.0, stderr=0.2, how="estimated"))
    assert sl.compare(reports).reading[0] == (
        "No measure tells any two of the 6 networks apart: all 30 differences are within their errors."
    )
    reports["D"].estimates["rho_sum"], reports["E"].estimates["rho_sum"] = Estimate(0.5), Estimate(4.0)
    found = sl.compare(reports)
    assert found.flatter("rho_sum") == "D"
    assert found.reading[0].startswith("D is the flattest of 6 by 1 of 2 measures (1 names no single one);")
    assert found.reading[-1] == "The largest difference is in ρ, summed over layers: E ÷ D = 8.00."


def test_a_network_without_a_value_leaves_the_others_compared() -> None:
    reports = six_networks(Estimate(0.1))
    reports["B"].estimates["hessian_trace"] = Estimate(math.nan, status="not_applicable", reason="no")
    row = sl.compare(reports).rows["hessian_trace"]
    assert (len(row.contrasts), row.flattest) == (10, "F")


def test_an_untrained_network_is_headed_as_such() -> None:
    found = sl.compare(pair(trained=False, at_minimum=False))
    line = "B is a network as initialised, so these numbers do not compare trained minima."
    assert found.headings == [line]
    assert found.reading[1] == line


def test_a_network_not_at_a_minimum_is_headed_as_such() -> None:
    found = sl.compare(pair(at_minimum=False, gradient_norm=0.5, gradient_noise=0.1))
    assert found.headings == ["B is not at a minimum (gradient norm 0.50, its noise 0.10) but on the way to one."]
    assert found.reading[0].endswith("not checked here), though B is not at a minimum.")
    assert found.reading[1].startswith("Hessian trace changes when weights are rescaled")
    both = reading_of(["A", "B"], [Finding("ρ", None)], not_at_minimum=["A", "B"])
    assert both[0].endswith("the difference is within its error, though neither is at a minimum.")


def test_many_networks_that_are_not_at_a_minimum_are_counted() -> None:
    reports = {
        label: made(label, {"rho_sum": Estimate(1.0)}, at_minimum=label == "F", gradient_norm=0.5, gradient_noise=0.1)
        for label in "ABCDEF"
    }
    found = sl.compare(reports)
    assert found.headings == ["5 of the 6 networks are not at a minimum but on the way to one."]
    assert found.reading[0].endswith(", though 5 of them are not at a minimum.")


def test_a_gradient_lost_in_its_noise_is_no_minimum() -> None:
    few = {"samples": 100, "samples_total": 1437, "gradient_norm": 0.5, "gradient_noise": 0.4}
    found = sl.compare(pair(at_minimum=None, **few))
    assert found.headings == []
    assert found.notes == [
        "Whether B is at a minimum cannot be told: the gradient (gradient norm 0.50, its noise 0.40) is not "
        "distinguishable from noise at 100 samples."
    ]


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
        "A": made("A", {"hessian_top_eigenvalue": Estimate(1.0, interval=(0.9, 1.1))}),
        "B": made("B", {"hessian_top_eigenvalue": Estimate(1.15, interval=(1.05, 1.25))}),
    }
    row = sl.compare(both).rows["hessian_top_eigenvalue"]
    assert row.flattest is None
    assert row.contrasts[0].ratio is not None
    assert row.contrasts[0].ratio.low == pytest.approx(1.05 / 1.1, rel=1e-5)
    assert row.contrasts[0].ratio.high == pytest.approx(1.25 / 0.9, rel=1e-5)


def test_values_of_either_sign_have_a_difference_and_no_ratio() -> None:
    both = {"A": made("A", {"output_margin": Estimate(-0.5)}), "B": made("B", {"output_margin": Estimate(2.0)})}
    found = sl.compare(both)
    contrast = found.rows["output_margin"].contrasts[0]
    assert contrast.ratio is None
    assert contrast.difference is not None
    assert contrast.difference.value == 2.5
    assert found.flatter("output_margin") == "B"
    assert "Δ 2.50" in str(found)


def test_more_networks_are_ranked_and_their_orders_correlated() -> None:
    values = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0}
    reports = {
        label: made(
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


def between(ratio: float, low: float | None = None, high: float | None = None) -> Contrast:
    ends = (low or ratio, high or ratio)
    return Contrast("A", "B", Interval(ratio, *ends), "ratio", "paired", "larger")


def test_the_reading_of_the_mock() -> None:
    findings = [
        Finding("Hessian trace", "A", between(6.55), holds="reversible", factor=2.6, kind="layers"),
        Finding("top eigenvalue", "A", between(3.7), holds="reversible", factor=1.9, kind="layers"),
        Finding("normalised sharpness", "A", between(1.4), holds="invariant"),
        Finding("κτ, summed over layers", "A", between(1.3), holds="reversible", factor=3.0, kind="neurons"),
        Finding("ρ, summed over layers", None, between(1.01)),
        Finding("output margin", "A", between(0.94), holds="scales_with_logits"),
    ]
    assert reading_of(["A", "B"], findings) == [
        "A is flatter than B by 5 of 6 measures (1 undecided); 1 of the 5 is invariant to every rescaling found "
        "in these networks.",
        "Hessian trace and top eigenvalue favour A, but rescaling one pair of layers by at most 2.6 reverses each "
        "without changing a single prediction.",
    ]


def test_more_than_two_layers_are_no_pair() -> None:
    three = Finding("Hessian trace", "A", between(2.0), holds="reversible", factor=1.5, kind="layers", layers=3)
    assert "but rescaling layers by 1.5 reverses it" in reading_of(["A", "B"], [three])[1]


def test_readings_say_no_more_than_is_known() -> None:
    surviving = [Finding("ρ, summed over layers", "B", between(0.5, 0.4, 0.6), holds="invariant")]
    assert reading_of(["A", "B"], surviving) == [
        "B is flatter than A by the only measure; it is invariant to every rescaling found in these networks.",
        "The largest difference is in ρ, summed over layers: B ÷ A = 0.500 (95% interval 0.400 to 0.600).",
    ]
    unreversed = [Finding("κ, last layer", "A", between(2.0), holds="changes")]
    assert reading_of(["A", "B"], unreversed)[1] == (
        "κ, last layer changes when weights are rescaled, though no reversal was found here."
    )
    nothing_to_try = [Finding("Hessian trace", "A", between(2.0), holds="not_tried")]
    assert "no rescaling was found in these networks to try" in reading_of(["A", "B"], nothing_to_try)[0]
    margins = [Finding("output margin", "A", between(2.0), holds="scales_with_logits")]
    assert "it scales with the logits" in reading_of(["A", "B"], margins)[0]
    split = [
        Finding("Hessian trace", "A", between(2.0), holds="invariant"),
        Finding("ρ", "B", between(0.5), holds="invariant"),
    ]
    assert reading_of(["A", "B"], split)[0].startswith("A is flatter than B by 1 of 2 measures, B by 1;")
