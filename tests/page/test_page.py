"""The page: its sentences, what is drawn of many samples, what is embedded, and how it is asked for."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spiritlevel import page
from spiritlevel.analyses.comparison import compare
from spiritlevel.cli import main
from spiritlevel.measures.registry import MEASURES
from spiritlevel.page import builder, embedding, formulas, loading, points, sentences
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.shares import shortened
from spiritlevel.page.parts import PageTable
from spiritlevel.page.sections import epochs, settings
from spiritlevel.results import Report
from spiritlevel.results.wording import UNTRAINED
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import Estimate, not_applicable
from tests.page.material import HOSTILE, made_audit, made_report, made_spectrum, sampled_report

# --- the answer in two sentences --------------------------------------------------------------------------------------


def answer(content: PageContent) -> tuple[str, str]:
    return builder.page_of(content).first.answer


def test_one_checkpoint_is_neither_flat_nor_sharp() -> None:
    strong, rest = answer(page.of_reports(made_report()))
    assert strong == (
        "3 of 6 measures cannot be changed by rescaling layers or neurons and 3 can; one network alone is neither flat "
        "nor sharp."
    )
    assert rest == (
        "Layer fc1 holds 70% of the Hessian trace, which rescaling could move to another, and 33% of normalised "
        "sharpness, which it could not."
    )


def test_an_untrained_network_is_called_that_before_anything_else() -> None:
    strong, _ = answer(page.of_reports(made_report(trained=False, at_minimum=False)))
    assert strong == UNTRAINED


def test_a_network_on_a_slope_is_not_at_a_minimum() -> None:
    strong, _ = answer(page.of_reports(made_report(at_minimum=False, gradient_norm=0.5, gradient_noise=0.01)))
    assert strong.startswith("Not at a minimum: the gradient norm 0.50 is not small against its noise 0.010")


def test_without_layers_the_values_are_said() -> None:
    _, rest = answer(page.of_reports(made_report(layers=False)))
    assert rest == "Here Hessian trace is 10.000 and top eigenvalue of the Hessian is 2.0000."


def test_nothing_measured_is_said() -> None:
    report = made_report(layers=False)
    for name in report:
        report.estimates[name] = not_applicable("no classes")
    strong, rest = answer(page.of_reports(report))
    assert strong == "None of the measures asked for could be computed; the reasons are below."
    assert rest == ""


def test_reports_of_different_data_conclude_nothing() -> None:
    reports = [made_report(weights="a.pt"), made_report(2.0, weights="b.pt", fingerprint="cd34")]
    strong, rest = answer(page.of_reports(reports))
    assert strong.startswith("These 2 reports were not measured on the same samples")
    assert rest == "They are shown side by side and nothing is concluded."


def test_epochs_go_from_the_first_to_the_last() -> None:
    reports = [made_report(1 / e, weights=f"epoch-{e}.pt", loss=1 / e, at_minimum=e > 5) for e in (10, 1, 5)]
    strong, rest = answer(page.of_reports(reports))
    assert strong == (
        "From epoch 1 to 10, Hessian trace went from 10.000 to 1.0000 and top eigenvalue of the Hessian went from "
        "2.0000 to 0.20000."
    )
    assert rest == "The loss went from 1.00 to 0.100; 2 of the 3 networks are not at a minimum."


def test_reports_side_by_side_are_not_ranked() -> None:
    strong, rest = answer(page.of_reports([made_report(weights="a.pt"), made_report(2.0, weights="b.pt", loss=0.02)]))
    assert strong == (
        "In a.pt and b.pt: Hessian trace 10.000 / 20.000, top eigenvalue of the Hessian 2.0000 / 4.0000; which is "
        "flatter is for a comparison to say."
    )
    assert rest == "Their losses are 0.0100 and 0.0200."


def compared(a: Report, b: Report) -> PageContent:
    return page.of_comparison(compare({"a.pt": a, "b.pt": b}))


def test_all_measures_agree() -> None:
    strong, _ = answer(compared(made_report(), made_report(2.0)))
    assert strong.startswith("a.pt is flatter than b.pt by all 6 measures; for 2 of the 6 no rescaling")
    assert "as declared" in strong


def test_no_measure_decides() -> None:
    strong, _ = answer(compared(made_report(error=9.0), made_report(1.01, error=9.0)))
    assert strong == "No measure tells a.pt and b.pt apart: all 6 differences are within their errors."


def test_a_comparison_with_an_untrained_network_says_so() -> None:
    _, rest = answer(compared(made_report(), made_report(2.0, trained=False)))
    assert rest.startswith("b.pt is a network as initialised")


def test_a_comparison_off_a_minimum_says_so() -> None:
    first = builder.page_of(compared(made_report(at_minimum=False, gradient_norm=0.5), made_report(2.0))).first
    assert any("a.pt is not at a minimum (gradient norm 0.50" in line for line in [*first.answer, *first.notes])
    assert any("not at a minimum" in value for _, value in first.facts)


def test_different_data_is_never_compared() -> None:
    with pytest.raises(UsageError, match="different data"):
        compared(made_report(), made_report(2.0, fingerprint="cd34"))


def test_an_audit_counts_what_was_measured() -> None:
    found = made_audit({"hessian_trace": "changes", "rho_sum": "invariant", "kappa_tau_sum": "undecided"})
    strong, rest = answer(page.of_audit(found))
    assert strong == (
        "1 of 3 measures kept its value under every rescaling found in this network, 1 changed and 1 is undecided, "
        "while every prediction stayed the same."
    )
    assert rest == "The largest change shown is that of Hessian trace, multiplied by 12 when neurons were rescaled."


def test_an_audit_puts_a_contradiction_first() -> None:
    content = page.of_audit(made_audit({"rho_sum": "changes"}, declared=True))
    assert "contradicted: rho_sum is declared invariant" in answer(content)[1]
    assert builder.page_of(content).first.notes[0].startswith("Contradiction: rho_sum")


def test_an_audit_that_found_nothing_to_try_says_so() -> None:
    strong, _ = answer(page.of_audit(made_audit({"rho_sum": "not found"})))
    assert strong.startswith("No rescaling of layers or neurons was found")


@pytest.mark.parametrize(
    ("rate", "words"),
    [(0.1, "below the line 2/lr = 20.0"), (2.0, "above the line 2/lr = 1.00"), (1.0, "within its error of the line")],
)
def test_a_spectrum_is_held_against_the_stability_line(rate: float, words: str) -> None:
    strong, rest = answer(page.of_spectrum(made_spectrum(), rate))
    assert strong == "The eigenvalues of the Hessian lie between -0.100 and 2.00."
    assert words in rest


def test_a_learning_rate_must_be_positive() -> None:
    with pytest.raises(UsageError, match="learning rate must be a positive number"):
        page.of_spectrum(made_spectrum(), -1.0)


# --- many samples -----------------------------------------------------------------------------------------------------


def test_bins_count_every_sample() -> None:
    rng = np.random.default_rng(0)
    x, y = np.exp(rng.normal(size=5000) * 3), rng.normal(size=5000)
    a, b = points.axis_of(x), points.axis_of(y)
    assert (a.log, b.log) == (True, False)
    bins = points.binned(x, y, a, b)
    assert sum(row["count"] for row in bins) == 5000
    fullest = max(bins, key=lambda row: row["count"])
    inside = (x >= fullest["x"]) & (x < fullest["x2"]) & (y >= fullest["y"]) & (y < fullest["y2"])
    assert abs(int(inside.sum()) - fullest["count"]) <= 2  # edges are rounded to six digits


def test_misclassified_samples_come_first_then_extremes() -> None:
    rng = np.random.default_rng(1)
    values = {"a": rng.normal(size=30_000), "b": rng.normal(size=30_000)}
    right = rng.random(30_000) > 0.01
    choice = points.choose_points(values, right)
    assert len(choice.index) == points.SHOWN == len(set(choice.index.tolist()))
    assert set(np.flatnonzero(~right)) <= set(choice.index)
    assert {int(values["a"].argmax()), int(values["b"].argmin())} <= set(choice.index)
    assert choice.wrong + choice.extremes + choice.random == points.SHOWN
    assert "all " in choice.words()
    assert f"{choice.wrong:,} misclassified" in choice.words()


def test_many_misclassified_samples_leave_room_for_others() -> None:
    values = {"a": np.random.default_rng(2).normal(size=30_000)}
    choice = points.choose_points(values, np.zeros(30_000, dtype=bool))
    assert choice.wrong == points.SHOWN // 2
    assert f"{choice.wrong:,} of 30,000 misclassified" in choice.words()


def test_lines_are_those_of_least_squares_on_the_axes() -> None:
    x = np.logspace(-4, 4, 200)
    y = 3 * x**2
    found = points.fit(x, y, points.axis_of(x), points.axis_of(y))
    assert found is not None
    assert found.slope == pytest.approx(2)
    assert found.intercept == pytest.approx(np.log10(3))
    assert found.correlation == pytest.approx(1)
    (x0, y0), (x1, y1) = found.line
    assert y0 == pytest.approx(3 * x0**2)
    assert y1 == pytest.approx(3 * x1**2)
    # What lies below the end of a logarithmic axis is drawn on it, counted, and does not bend the line.
    assert points.axis_of(y).below(y) == int((y < y.max() * points.TINIEST).sum()) > 0


def test_constant_values_have_no_line() -> None:
    x = np.arange(5.0)
    assert points.fit(x, np.ones(5), points.axis_of(x), points.axis_of(np.ones(5))) is None


# --- what is embedded -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large_page() -> str:
    return page.html(page.of_reports(sampled_report(60_000)))


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found.group(1))


def test_sixty_thousand_samples_stay_under_two_megabytes(large_page: str) -> None:
    assert len(large_page.encode()) < 2_000_000


def test_samples_are_embedded_once_and_few_of_them(large_page: str) -> None:
    data = data_of(large_page)
    assert len(data["datasets"]["samples"]["sample"]) == points.SHOWN
    users = [name for name, figure in data["figures"].items() if any(d["name"] == "samples" for d in figure["data"])]
    assert len(users) == 4
    assert large_page.count('"samples":{"sample"') == 1
    counted = sum(data["datasets"]["trace_against_aceht_bins"]["count"])
    assert counted == 60_000


def test_the_page_asks_for_nothing_from_elsewhere(large_page: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", large_page, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)", markup)
    assert "@import" not in markup
    assert "url(" not in markup
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', large_page)
    assert policy is not None
    assert policy.group(1).startswith("default-src &#39;none&#39;") or policy.group(1).startswith("default-src 'none'")


def test_only_the_page_s_own_scripts_may_run(large_page: str) -> None:
    scripts = re.findall(r"<script>(.*?)</script>", large_page, re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert embedding.hash_of(script) in large_page


def test_values_stand_in_the_table_before_any_script_runs(large_page: str) -> None:
    markup = re.sub(r"<script.*?</script>", "", large_page, flags=re.DOTALL)
    for value in ("10.000", "2.0000", "30.000", "100.00", "5.0000", "4.0000"):
        assert f">{value}<" in markup


def test_every_figure_has_its_numbers_in_words() -> None:
    found = builder.figures(page.of_reports(sampled_report(500)))
    assert set(found) >= {
        "layer_shares",
        "output_margin_distribution",
        "trace_against_aceht",
        "trace_against_output_margin",
    }
    for figure in found.values():
        assert re.search(r"\d", figure.alt), figure.name
    assert "fc1 70%" in found["layer_shares"].alt


def test_names_never_become_markup() -> None:
    report = made_report(weights=HOSTILE[1], notes=[f"a note about {HOSTILE[2]}"])
    report.per_layer["hessian_trace"] = {name: Estimate(1.0 + i) for i, name in enumerate(HOSTILE)}
    report.estimates["mine"] = Estimate(1.0, status="budget_spent", reason=HOSTILE[1])
    report.titles["mine"] = HOSTILE[0]
    text = page.html(page.of_reports(report))
    for name in HOSTILE[:2]:
        assert name not in text
    assert text.count("</script>") == 3  # the data and two scripts
    assert text.count("&lt;b&gt;x&lt;/b&gt;") > 0
    assert "\\u003c/script\\u003e" in text


def test_json_inside_the_page_cannot_close_its_element() -> None:
    value = {"name": "</script><!-- & \u2028"}
    text = embedding.as_safe_json(value)
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == value


# --- formulas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MEASURES)
def test_every_declared_formula_is_drawn(name: str) -> None:
    drawn = formulas.as_mathml(MEASURES[name].formula)
    assert drawn is not None
    assert drawn.startswith("<math")


@pytest.mark.parametrize(
    "source", [r"\text{<b>x</b>}", r"\text{<img src=x onerror=alert(1)>}", r"\undefinedcommand x", "{"]
)
def test_a_formula_that_is_more_than_a_formula_stays_text(source: str) -> None:
    assert formulas.as_mathml(source) is None


# --- sections appear when their data does -----------------------------------------------------------------------------


def sections(content: PageContent) -> list[str]:
    return [section.name for section in builder.page_of(content).sections]


def test_sections_appear_when_their_data_does() -> None:
    assert sections(page.of_reports(made_report(layers=False))) == ["measures", "settings"]
    assert sections(page.of_reports(sampled_report(50))) == ["measures", "margins", "samples", "layers", "settings"]
    audited = page.of_audit(made_audit({"hessian_trace": "changes"}))
    assert sections(audited) == ["measures", "layers", "audit", "sweep", "settings"]
    assert sections(page.of_spectrum(made_spectrum())) == ["spectrum", "settings"]
    three = page.of_reports([made_report(weights=f"{i}.pt") for i in range(3)])
    assert "curves" in sections(three)


def test_notes_say_what_fell_short() -> None:
    report = made_report()
    report.estimates["keskar_sharpness"] = Estimate(
        0.5, how="lower_bound", status="budget_spent", reason="40 steps were spent"
    )
    notes = builder.page_of(page.of_reports(report)).first.notes
    assert notes == ["keskar_sharpness stopped at its budget; its value is a lower bound: 40 steps were spent"]


@pytest.mark.parametrize(
    ("labels", "unit", "places"),
    [
        (["e/epoch-10.pt", "e/epoch-2.pt"], "epoch", [10, 2]),
        (["run_step100.ckpt", "run_step50.ckpt"], "step", [100, 50]),
        (["net3-007.pt", "net3-021.pt"], "number", [7, 21]),
        (["best.pt", "last.pt"], "report", [1, 2]),
    ],
)
def test_places_in_training_are_read_from_names(labels: list[str], unit: str, places: list[float]) -> None:
    found, word = epochs.places_of(PageContent({label: made_report() for label in labels}))
    assert (word, list(found.values())) == (unit, places)


def test_the_command_line_measures_the_same_again() -> None:
    request = {
        "model": "my file.py:Net", "data": "digits", "model_args": {"width": 3}, "samples": 100, "seed": 2,
        "measures": ["default", "aceht"], "settings": {"aceht": {"bias": False}}, "loss": "cross_entropy",
    }  # fmt: skip
    line = settings.command_of(page.of_reports(made_report(request=request)))
    assert shlex.split(line) == [
        "spiritlevel", "measure", "my file.py:Net", "runs/a.pt", "--data", "digits", "--model-args", "width=3",
        "--loss", "cross_entropy", "--samples", "100", "--seed", "2", "--measures", "default,aceht",
        "--set", "aceht.bias=False",
    ]  # fmt: skip


def test_ratios_are_marked_by_what_survives() -> None:
    content = compared(made_report(error=0.01), made_report(2.0, error=0.01))
    figure = builder.figures(content)["ratios"]
    rows = {row["measure"].replace("\n", " "): row for row in figure.data[0].values}
    assert rows["Hessian trace"]["kind"] == "changes under rescaling"
    assert rows["Normalised sharpness"]["kind"] == "survives rescaling"
    assert rows["Output margin"]["kind"] == "scales with the logits"
    # Half the margin is twice as sharp: the ratio is turned over.
    assert rows["Output margin"]["ratio"] == pytest.approx(2.0)
    assert "Turned over, because smaller is sharper: Output margin." in figure.caption
    assert rows["Hessian trace"]["low"] < 2 < rows["Hessian trace"]["high"]


# --- how it is asked for ----------------------------------------------------------------------------------------------


def test_a_wrong_figure_name_lists_the_others() -> None:
    with pytest.raises(UsageError, match=r"there is no figure 'layer_share'.*layer_shares"):
        made_report().figure("layer_share")


def test_a_figure_is_an_altair_chart() -> None:
    specification = made_report().figure("layer_shares").to_dict()
    rows = specification["datasets"]["layer_shares"]
    assert {row["layer"] for row in rows} == {"fc1", "fc2"}
    assert sum(row["share"] for row in rows) == pytest.approx(2.0)


def test_figures_are_written_without_a_browser(tmp_path: Path) -> None:
    files = page.save_figures(page.of_reports(made_report()), tmp_path / "figures")
    begins = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    assert {Path(file).suffix for file in files} == set(begins)
    for file in files:
        assert Path(file).read_bytes().startswith(begins[Path(file).suffix])


@pytest.mark.parametrize("module", ["altair", "jinja2", "vl_convert", "latex2mathml.converter"])
def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(SpiritlevelError, match=r"pip install 'spiritlevel\[page\]'"):
        made_report().html(tmp_path / "r.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (made_report, "report"),
        (lambda: compare({"a": made_report(), "b": made_report(2.0)}), "comparison"),
        (lambda: made_audit({"hessian_trace": "changes"}), "audit"),
        (made_spectrum, "spectrum"),
    ],
)
def test_report_writes_pages_of_all_saved_results(
    make: Callable[[], Any], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make().save(tmp_path / "r.json")
    assert main(["report", str(tmp_path / "r.json"), "--html", str(tmp_path / "r.html"), "--lr", "0.1"]) == 0
    assert f'<body data-kind="{kind}">' in (tmp_path / "r.html").read_text()
    assert capsys.readouterr().out


def test_several_reports_become_curves(tmp_path: Path) -> None:
    files = []
    for epoch in (1, 2, 3):
        made_report(1 / epoch, weights=f"epoch{epoch}.pt").save(tmp_path / f"{epoch}.json")
        files.append(str(tmp_path / f"{epoch}.json"))
    assert main(["report", *files, "--html", str(tmp_path / "c.html"), "--learning-rate", "0.5"]) == 0
    data = data_of((tmp_path / "c.html").read_text())
    assert data["datasets"]["curve_of_measure_hessian_trace"]["value"] == pytest.approx([10, 5, 10 / 3], rel=1e-5)
    assert data["datasets"]["curve_of_measure_hessian_top_eigenvalue_line"]["value"] == [4.0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--html", "nowhere/r.html"], "there is no folder nowhere"),
        (["--html", "-"], "name a file"),
        (["--lr", "-1"], "--learning-rate must be a positive number"),
    ],
)
def test_an_impossible_page_is_refused_before_the_first_pass(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["measure", "digits_mlp", "--data", "digits", *options]) == 2
    assert words in capsys.readouterr().err


def test_the_same_results_make_the_same_page() -> None:
    content = page.of_reports(sampled_report(3000))
    assert page.html(content) == page.html(content)


def test_studies_are_answered_by_their_claims() -> None:
    from spiritlevel.lab.studies import RunStore, make_record, study_named

    record = make_record(
        study_named("margins-fig1"), "smoke", RunStore("nowhere").table(study_named("margins-fig1"), "smoke")
    )
    strong, rest = sentences.answer_of_studies(page.of_studies([record]))
    assert strong == "Of 2 claims, 0 hold, 0 do not hold, 0 are undecided, 2 were not run."
    assert rest.startswith("This is size smoke, with 0 of 1 runs finished")


def test_long_layer_names_stay_apart() -> None:
    names = [f"stage{i}.block{j}.very_long_module_name.conv{k}" for i in range(3) for j in range(3) for k in range(3)]
    found = shortened(names)
    assert len(set(found)) == len(names)
    assert max(map(len, found)) <= 25
    alike = [f"{'x' * 40}{i}{'y' * 40}" for i in range(3)]
    assert shortened(alike) == alike


def test_a_pair_that_differs_is_not_called_undecided() -> None:
    scales = {"a": 1.0, "b": 1.01, "c": 3.0}
    found = compare({label: made_report(scale, error=0.4) for label, scale in scales.items()})
    rows = builder.figures(page.of_comparison(found))["ratios"].data[0].values
    kinds = {(row["measure"], row["letter"]): row["kind"] for row in rows}
    assert found.rows["hessian_trace"].flattest is None
    assert kinds["Hessian trace", "B"] == "undecided"
    assert kinds["Hessian trace", "C"] == "no rescaling was tried"


def test_samples_without_a_margin_are_neither_right_nor_wrong() -> None:
    report = sampled_report(40)
    report.per_sample["output_margin"][3] = float("nan")
    report.per_sample["output_margin"][5] = -1.0
    report.per_sample["output_margin"][6:] = 2.0
    figure = builder.figures(page.of_reports(report))["trace_against_aceht"]
    drawn = {row["sample"]: row["group"] for row in next(rows for rows in figure.data if rows.name == "samples").values}
    assert set(range(40)) - set(drawn) == {3}
    assert drawn[5] == "misclassified"
    assert drawn[6] == "classified right"


def test_an_audit_beside_a_report_says_what_was_measured() -> None:
    report, found = made_report(), made_audit({"hessian_trace": "changes", "rho_sum": "invariant"})
    content = loading.together([report, found, made_spectrum()], 0.1)
    shown = builder.page_of(content)
    assert shown.first.kind == "report"
    assert {"audit", "sweep", "spectrum", "measures"} <= {section.name for section in shown.sections}
    assert shown.first.table is not None
    words = {row.cells[0].small: row.cells[-1].text for row in shown.first.table.rows}
    assert (words["hessian_trace"], words["rho_sum"]) == ("yes, measured", "no, measured")


def test_two_comparisons_do_not_fit_one_page() -> None:
    found = compare({"a": made_report(), "b": made_report(2.0)})
    with pytest.raises(UsageError, match="one comparison"):
        loading.together([found, found])


def test_commands_write_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = ["--data", "digits", "--samples", "40", "-q", "--html"]
    assert main(["measure", "digits_mlp", *common, "m.html", "-m", "output_margin,aceht", "--json", "m.json"]) == 0
    assert main(["spectrum", "digits_mlp", *common, "s.html", "--probes", "2", "--steps", "4", "--lr", "0.1"]) == 0
    made_report().save("a.json")
    made_report(2.0).save("b.json")
    assert main(["compare", "a.json", "b.json", "--html", "c.html"]) == 0
    assert main(["study", "show", "margins-fig1", "--html", "t.html"]) == 0
    kinds = {"m.html": "report", "s.html": "spectrum", "c.html": "comparison", "t.html": "study"}
    for file, kind in kinds.items():
        assert f'<body data-kind="{kind}">' in Path(file).read_text(), file
    assert "--samples 40" in Path("m.html").read_text()  # the command line to copy
    assert "the network as initialised" in Path("m.html").read_text()


def test_ninety_reports_make_one_readable_page() -> None:
    reports = [made_report(1 / e, weights=f"epoch-{e}.pt", request={"model": "mlp", "data": "d"}) for e in range(1, 91)]
    content = page.of_reports(reports)
    shown = builder.page_of(content)
    tables = {part.name: part for section in shown.sections for part in section.parts if isinstance(part, PageTable)}
    assert list(tables["all-measures"].columns) == ["measure", "epoch-1.pt", "epoch-90.pt", "how"]
    assert len(tables["networks"].rows) == 90
    assert len(tables["settings-table"].columns) == 3
    assert "epoch-45.pt" in settings.command_of(content)
    assert len(page.html(content).encode()) < 2_000_000


def test_the_first_table_of_many_networks_is_short_and_has_both_ends() -> None:
    content = page.of_reports([made_report(weights=f"epoch-{e}.pt") for e in range(1, 91)])
    table = builder.page_of(content).first.table
    assert table is not None
    labels = [row.cells[0].text for row in table.rows]
    assert len(labels) == len(set(labels)) == 10
    assert (labels[0], labels[-1]) == ("epoch-1.pt", "epoch-90.pt")
    assert table.note.startswith("10 of 90 networks")
