"""The page: what is drawn of many samples, which sections appear, and how it is asked for."""

from __future__ import annotations

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
from spiritlevel.page import builder, loading, points, sentences
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.shares import shortened
from spiritlevel.page.parts import PageTable
from spiritlevel.page.sections import settings
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import Estimate
from tests.page.contents import compared, data_of
from tests.page.material import made_audit, made_report, made_spectrum, sampled_report

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
    found = PageContent({label: made_report() for label in labels}).runs
    assert (found.unit, list(found.places.values())) == (unit, places)


def test_the_command_line_measures_the_same_again() -> None:
    request = {
        "model": "my file.py:Net", "data": "digits", "model_args": {"width": 3}, "key": None,
        "loss": "cross_entropy", "samples": 100, "seed": 2, "parameters": [], "measures": ["default", "aceht"],
        "settings": {"aceht": {"bias": False}}, "search": False, "probes": 4,
    }  # fmt: skip
    line = settings.command_of(page.of_reports(made_report(request=request)))
    assert shlex.split(line) == [
        "spiritlevel", "measure", "my file.py:Net", "runs/a.pt", "--data", "digits", "--model-args", "width=3",
        "--loss", "cross_entropy", "--samples", "100", "--seed", "2", "--measures", "default,aceht",
        "--set", "aceht.bias=False", "--no-search", "--probes", "4",
    ]  # fmt: skip


def test_ratios_are_marked_by_what_survives() -> None:
    content = compared(made_report(error=0.01), made_report(2.0, error=0.01))
    figure = builder.figures(content)["ratios"]
    rows = {row["measure"].replace("\n", " "): row for row in figure.data[0].values}
    assert rows["Hessian trace"]["kind"] == "changes under rescaling"
    assert rows["Normalised sharpness"]["kind"] == "survives rescaling"
    assert rows["Output margin"]["kind"] == "scales with the logits"
    # Half the margin is twice as sharp: the ratio is inverted.
    assert rows["Output margin"]["ratio"] == pytest.approx(2.0)
    assert "Inverted, because smaller is sharper: Output margin." in figure.caption
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
    # Of different samples, so that they are not ranked.
    content = page.of_reports([made_report(weights=f"epoch-{e}.pt", fingerprint=str(e)) for e in range(1, 91)])
    table = builder.page_of(content).first.table
    assert table is not None
    labels = [row.cells[0].text for row in table.rows]
    assert len(labels) == len(set(labels)) == 10
    assert (labels[0], labels[-1]) == ("epoch-1.pt", "epoch-90.pt")
    assert table.note.startswith("10 of 90 networks")
