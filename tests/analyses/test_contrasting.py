"""The one interval of a contrast: that it covers, and that its verdict is the same wherever it is drawn or quoted."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import spiritlevel as sl
from spiritlevel import page
from spiritlevel.analyses.contrasting import contrasts_of
from spiritlevel.analyses.measure_settings import chosen_settings
from spiritlevel.analyses.measuring import measured
from spiritlevel.analyses.sample_groups import measured_by_group, on_samples
from spiritlevel.measures.registry import select
from spiritlevel.page import builder
from spiritlevel.results import Report
from spiritlevel.results.compared import Comparison
from spiritlevel.results.contrasts import Contrast
from spiritlevel.results.terminal import as_text
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.statistics import NORMAL_95, Interval, normal_reach
from tests.analyses.made_reports import made
from tests.helpers import opened

NAME = "hessian_trace"


def estimate(value: float, stderr: float = 0.0, **more: object) -> Estimate:
    return Estimate(value, stderr=stderr, how="estimated" if stderr else "exact", **more)  # type: ignore[arg-type]


def contrast_of(a: Estimate, b: Estimate, groups: Mapping[str, list[float]] | None = None) -> Contrast:
    by_group = {
        label: [made(label, {NAME: Estimate(value)}) for value in values] for label, values in (groups or {}).items()
    }
    reports = {"A": made("A", {NAME: a}), "B": made("B", {NAME: b})}
    (found,) = contrasts_of(NAME, reports, "larger", groups=by_group)
    return found


# Seven groups of samples: their log ratios agree and their differences do not, and the other way round.
SKEW = {"A": [1.0, 1.1, 0.9, 1.0, 1.2, 1.0, 30.0], "B": [0.2, 0.2, 0.19, 0.21, 0.2, 0.22, 6.0]}
MIXED = {"A": [4.0, 4.2, 4.1, 3.9, 0.1, 4.0, 4.1], "B": [2.0, 2.1, 2.0, 1.9, 0.9, 2.0, 2.0]}
CASES: dict[str, tuple[Estimate, Estimate, Mapping[str, list[float]] | None]] = {
    "exact": (estimate(1.0), estimate(1.5), None),
    "exact and equal": (estimate(1.5), estimate(1.5), None),
    "a hair apart": (estimate(1.0), estimate(1.00004), None),
    "estimated and decided": (estimate(1.0, 0.1), estimate(2.0, 0.2), None),
    "estimated and open": (estimate(1.0, 0.3), estimate(1.6, 0.3), None),
    "at the edge": (estimate(1.0, 0.05), estimate(1.1422, 0.05), None),
    "as large as its error": (estimate(0.3, 0.3), estimate(2.0, 0.2), None),
    "both lost in their errors": (estimate(0.3, 0.3), estimate(0.2, 0.4), None),
    "zero": (estimate(0.0), estimate(2.0), None),
    "both zero": (estimate(0.0), estimate(0.0), None),
    "negative": (estimate(-2.0), estimate(-1.0), None),
    "of two signs": (estimate(-2.0, 0.1), estimate(3.0, 0.1), None),
    "a bound": (Estimate(1.0, how="lower_bound"), Estimate(1.15, how="lower_bound"), None),
    "certified": (estimate(1.0, interval=(0.9, 1.1)), estimate(1.3, interval=(1.2, 1.4)), None),
    "certified and open": (estimate(1.0, interval=(0.9, 1.1)), estimate(1.2, interval=(1.05, 1.4)), None),
    "without a certificate": (estimate(1.0, interval=(-math.inf, math.inf)), estimate(9.0), None),
    "errors over samples": (estimate(1.0, stderr_data=0.2), estimate(2.0, stderr_data=0.2), None),
    "groups with a long tail": (estimate(1.0), estimate(0.2), SKEW),
    "groups that disagree": (estimate(4.0), estimate(2.0), MIXED),
}


@pytest.mark.parametrize("case", CASES)
def test_interval_and_verdict_are_one_wherever_they_appear(case: str, tmp_path: Path) -> None:
    a, b, groups = CASES[case]
    contrast = contrast_of(a, b, groups)
    comparison = compared_with(contrast, a, b)
    decided = contrast.interval.excludes(contrast.equality)
    assert (contrast.flatter is not None, contrast.ratio is None) == (decided, contrast.difference is not None)
    # JSON holds that interval and no other, and read again gives the same verdict.
    comparison.save(tmp_path / "c.json")
    entry = json.loads((tmp_path / "c.json").read_text())["rows"][NAME]["contrasts"][0]
    saved = entry["ratio"] or entry["difference"]
    assert (entry["ratio"] is None) != (entry["difference"] is None)
    ends = (-math.inf if saved["low"] is None else saved["low"], math.inf if saved["high"] is None else saved["high"])
    assert entry["decided"] == decided == (not ends[0] <= contrast.equality <= ends[1])
    assert Comparison.load(tmp_path / "c.json").rows[NAME].contrasts[0].flatter == contrast.flatter
    # The terminal and the page quote it, in digits that show the verdict.
    assert contrast.words in as_text(comparison.table(), 400)
    shown = [float(each.replace(",", "")) for each in re.findall(r"-?[\d.,]+(?:e[+-]\d+)?", contrast.words)]
    if len(shown) == 3:
        assert (not shown[1] <= contrast.equality <= shown[2]) == decided
    elif len(shown) == 1 and math.isfinite(contrast.interval.high):
        assert (shown[0] != contrast.equality) == decided
    content = page.of_comparison(comparison)
    parts = builder.page_of(content)
    table = next(part for part in parts.sections[0].parts if getattr(part, "name", "") == "all-measures")
    assert contrast.words in [cell.text for cell in table.rows[0].cells]
    # What is drawn excludes 1 where it is decided, and is marked as undecided where not.
    for row in parts.figures["ratios"].data[0].values if "ratios" in parts.figures else ():
        assert (row["kind"] != "undecided") == decided == (not row["low"] <= 1 <= row["high"])
    # The sentence says so.
    assert ("No measure tells" in comparison.reading[0]) == (not decided)
    assert comparison.reading[-1].endswith("within its error.") == (not decided and contrast.ratio is not None)


def compared_with(contrast: Contrast, a: Estimate, b: Estimate) -> Comparison:
    """Return the comparison of two networks by one invariant measure, with this contrast in it."""
    from spiritlevel.analyses import comparison

    before = comparison.contrasts_of
    comparison.contrasts_of = lambda *_, **__: [contrast]  # type: ignore[assignment]
    try:
        return sl.compare({"A": made("A", {NAME: a}), "B": made("B", {NAME: b})})
    finally:
        comparison.contrasts_of = before


def test_the_scale_on_which_a_ratio_is_judged_decides() -> None:
    long_tail = contrast_of(*CASES["groups with a long tail"])
    assert long_tail.over_samples == "grouped"
    assert long_tail.flatter == "B"  # the differences' own interval would hold 0
    differences = np.subtract(SKEW["B"], SKEW["A"])
    assert abs(differences.mean()) < 2.4 * differences.std(ddof=1) / math.sqrt(7)
    disagreeing = contrast_of(*CASES["groups that disagree"])
    assert disagreeing.flatter is None
    differences = np.subtract(MIXED["B"], MIXED["A"])
    assert abs(differences.mean()) > 2.4 * differences.std(ddof=1) / math.sqrt(7)


def test_values_that_may_not_be_positive_are_judged_by_their_difference() -> None:
    for case in ("as large as its error", "zero", "negative", "of two signs", "both lost in their errors"):
        assert contrast_of(*CASES[case]).scale == "difference", case
    # A ratio of two negative values would be read the wrong way round: the larger one is the smaller ratio.
    assert contrast_of(*CASES["negative"]).flatter == "A"


def test_certificates_enter_as_ends_of_the_ratio() -> None:
    found = contrast_of(estimate(1.0, interval=(0.6, 1.1)), estimate(3.0, interval=(2.0, 3.3))).ratio
    assert found is not None
    assert (found.low, found.high) == (pytest.approx(2.0 / 1.1, rel=1e-6), pytest.approx(3.3 / 0.6, rel=1e-6))


def test_a_contrast_seen_from_the_other_side_says_the_same() -> None:
    for a, b, groups in CASES.values():
        contrast = contrast_of(a, b, groups)
        other = contrast.seen_from("B")
        assert (other.first, other.flatter, other.decided) == ("B", contrast.flatter, contrast.decided)
        assert other.seen_from("A").interval.value == pytest.approx(contrast.interval.value)


def test_pairs_of_many_networks_are_those_of_two_stretched_to_hold_together() -> None:
    rng = np.random.default_rng(3)
    hard = rng.exponential(size=300)
    reports: dict[str, Report] = {}
    for label in "ABCD":
        samples = torch.from_numpy(hard * rng.uniform(0.5, 2) + rng.exponential(size=300))
        reports[label] = made(label, {NAME: Estimate(float(samples.mean()))})
        reports[label].per_sample[NAME] = samples
    every = contrasts_of(NAME, reports, "larger")
    assert len(every) == 6
    for contrast in every:
        pair = {label: reports[label] for label in (contrast.first, contrast.second)}
        (alone,) = contrasts_of(NAME, pair, "larger")
        assert alone.over_samples == contrast.over_samples == "paired"
        own, stretched = (
            [math.log(end / each.interval.value) for end in (each.interval.low, each.interval.high)]
            for each in (alone, contrast)
        )
        assert stretched == pytest.approx([end * normal_reach(6) / NORMAL_95 for end in own], rel=1e-6)


@pytest.mark.parametrize("groups", [0, 10])
def test_of_equal_networks_no_pair_is_told_apart_as_often_as_is_said(groups: int) -> None:
    rng = np.random.default_rng(5)
    trials, networks, wrong, wrong_alone = 400, 8, 0, 0
    for _ in range(trials):
        reports, by_group = {}, {}
        for place in range(networks):
            values = 1 + 0.1 * rng.standard_normal(max(groups, 1))
            stderr = 0.0 if groups else 0.1
            reports[str(place)] = made("", {NAME: estimate(float(values.mean()), stderr)})
            by_group[str(place)] = [made("", {NAME: Estimate(float(each))}) for each in values]
        every = contrasts_of(NAME, reports, "larger", groups=by_group if groups else None)
        assert all(each.over_samples == ("grouped" if groups else "none") for each in every)
        wrong += any(each.decided for each in every)
        for each in every:
            both = (each.first, each.second)
            pair = ({label: reports[label] for label in both}, {label: by_group[label] for label in both})
            if contrasts_of(NAME, pair[0], "larger", groups=pair[1] if groups else None)[0].decided:
                wrong_alone += 1
                break
    assert wrong / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)
    assert wrong_alone / trials > 0.25, "pairs that take 5% each are wrong together far more often"


def test_of_networks_equal_but_for_their_samples_as_few_are_told_apart() -> None:
    rng = np.random.default_rng(7)
    trials, wrong = 150, 0
    for _ in range(trials):
        hard = rng.lognormal(0, 1, 200)
        reports = {}
        for label in "ABCDEFGH":
            samples = torch.from_numpy(hard * rng.lognormal(0, 0.5, 200))
            reports[label] = made(label, {NAME: Estimate(float(samples.mean()))})
            reports[label].per_sample[NAME] = samples
        every = contrasts_of(NAME, reports, "larger", seed=int(rng.integers(1 << 30)))
        assert all(each.over_samples == "paired" for each in every)
        wrong += any(each.decided for each in every)
    assert wrong / trials <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / trials)


@pytest.mark.parametrize("errors", [(0.05, 0.05), (0.2, 0.2), (0.1, 0.45), (0.45, 0.1), (0.35, 0.35), (0.6, 0.6)])
def test_intervals_cover_and_verdicts_err_as_often_as_they_say(errors: tuple[float, float]) -> None:
    # Whatever the errors are of the values, where there is a ratio and where there is none.
    rng = np.random.default_rng(11)
    trials, covered, decided = 3000, 0, 0
    for _ in range(trials):
        a, b, same = (
            estimate(value * (1 + error * rng.standard_normal()), value * error)
            for value, error in ((1.0, errors[0]), (2.0, errors[1]), (1.0, errors[1]))
        )
        found = contrast_of(a, b)
        truth = 2.0 if found.scale == "ratio" else 1.0
        covered += found.interval.low <= truth <= found.interval.high
        decided += contrast_of(a, same).decided
    assert 0.935 <= covered / trials <= 0.965
    assert decided / trials <= 0.065


def test_words_show_as_many_digits_as_the_verdict_takes() -> None:
    def words(value: float, low: float, high: float) -> str:
        return Contrast("A", "B", Interval(value, low, high), "ratio", "none", "larger").words

    assert words(0.191, 0.092, 0.399) == "0.191 (0.0920 to 0.399)"
    assert words(1.02, 1.0004, 1.04) == "1.0200 (1.0004 to 1.0400)"
    assert words(1.00004, 1.00004, 1.00004) == "1.00004"
    assert words(1.0, 1.0, 1.0) == "1.00"


def test_an_eigenvalue_s_error_over_samples_is_that_of_its_first_order() -> None:
    """Of other draws of the data λ₁ lies about so far away; groups' own largest eigenvalues would say much less."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 10), torch.nn.ReLU(), torch.nn.Linear(10, 3)).double()
    size, draws = 200, 24
    scale = torch.exp(torch.randn(size * draws, 1))  # some samples count for much more than others
    x, y = torch.randn(size * draws, 12).double() * scale, torch.randint(0, 3, (size * draws,))
    chosen = select("hessian_top_eigenvalue")
    values, errors, naive = [], [], []
    for first in range(0, size * draws, size):
        problem = opened(model, (x[first : first + size], y[first : first + size]))
        report, bench = measured(problem, chosen, settings={}, seed=0, tolerance=None)
        values.append(report["hessian_top_eigenvalue"].value)
        settings = chosen_settings(chosen, {})
        by_group = measured_by_group({"a": problem}, chosen, 10, settings=settings, known={"a": bench}, seed=first)
        tops = np.array([each["hessian_top_eigenvalue"].value for each in by_group["a"]])
        assert tops.mean() == pytest.approx(values[-1], rel=1e-6)  # vᵀHv, group by group
        errors.append(tops.std(ddof=1) / 10**0.5 / values[-1])
        if first < 6 * size:
            mask = torch.arange(size) % 10
            own = np.log([float(sl.eigenvalues(on_samples(problem, mask == g), 1).values[0]) for g in range(10)])
            naive.append(own.std(ddof=1) / 10**0.5)
    spread = np.log(values).std(ddof=1)
    assert 0.6 * spread < np.mean(errors) < 1.5 * spread
    assert np.mean(naive) < 0.8 * np.mean(errors)
