"""Comparisons of reports made by hand: agreement, refusals, intervals, ranks, and the sentences they become."""

from __future__ import annotations

import math

import pytest

import spiritlevel as sl
from spiritlevel.analyses.reading import Finding, reading_of
from spiritlevel.values.estimate import Estimate
from tests.analyses.made_reports import made, pair


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
    assert row.contrasts[0].difference.low == pytest.approx(-0.05, abs=1e-6)


def test_values_of_either_sign_have_a_difference_and_no_ratio() -> None:
    both = {"A": made("A", {"output_margin": Estimate(-0.5)}), "B": made("B", {"output_margin": Estimate(2.0)})}
    found = sl.compare(both)
    contrast = found.rows["output_margin"].contrasts[0]
    assert contrast.ratio is None
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
