"""Pages of many networks: the answer first, ties marked alike wherever they appear, seeds as bands, nothing cut."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pytest

from spiritlevel import page
from spiritlevel.page import builder, embedding
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.curves import MOST_NAMED, CurvePoint, curve
from spiritlevel.page.figures.matrix import FAINT_TO_STRONG
from spiritlevel.page.figures.ranks import MOST_ROWS
from spiritlevel.page.palette import LIGHT
from spiritlevel.page.parts import PageTable, Words
from spiritlevel.results.numerals import value_text
from spiritlevel.values.estimate import Estimate
from tests.analyses.made_reports import made, made_runs

altair = pytest.importorskip("altair")


def tables_of(content: PageContent) -> dict[str, PageTable]:
    shown = builder.page_of(content)
    return {part.name: part for section in shown.sections for part in section.parts if isinstance(part, PageTable)}


def test_sixty_checkpoints_of_five_runs_are_answered_on_the_first_screen() -> None:
    content = page.of_reports(made_runs(samples=500))
    first = builder.page_of(content).first
    assert content.ranked is not None
    assert first.answer[0] == content.ranked.answer[0]
    assert first.answer[0].startswith("kind-1/seed-1 at epoch 12 (loss 0.0333) is the flattest by ")
    assert first.title == [("5 runs", "(60 networks, epoch 1 to 12)")]
    facts = dict(first.facts)
    assert facts["loss"] == "0.0333 to 2.00"
    assert facts["at a minimum"] == "60 yes"
    assert first.table is not None
    for row in first.table.rows:
        name = row.cells[0].small
        best = content.ranked.rankings[name].best_of(content.reports)
        assert row.cells[1].text == content.runs.where(best[0])
        assert row.cells[1].small == value_text(content.reports[best[0]][name])
        assert (row.cells[2].text == "none") == (len(best) == 1)
    assert "with 95% for all 1,770 pairs of a measure at once" in first.table.note
    assert len(page.html(content).encode()) < 2_000_000


def test_the_table_of_all_networks_has_each_with_its_letters() -> None:
    content = page.of_reports(made_runs())
    table = tables_of(content)["networks"]
    assert content.ranked is not None
    letters = content.ranked.rankings["hessian_trace"].letters
    column = list(table.columns).index("Hessian trace")
    assert len(table.rows) == 60
    for row, (label, report) in zip(table.rows, content.reports.items()):
        assert (row.cells[0].text, row.cells[1].text) == (content.runs.runs[label], f"{content.runs.places[label]:g}")
        assert row.cells[column].value == report["hessian_trace"].value
        assert row.cells[column].small == letters[label]


@pytest.mark.parametrize(("runs", "epochs", "size"), [(1, 12, 12), (5, 12, 5), (20, 10, 16)])
def test_pairs_are_drawn_with_the_verdicts_of_their_intervals(runs: int, epochs: int, size: int) -> None:
    content = page.of_reports(made_runs(runs, epochs))
    assert content.ranked is not None
    drawn = builder.figures(content)["pairs_hessian_trace"].data[0].values
    assert len(drawn) == size * (size - 1) // 2
    told = {each.words: each.decided for each in content.ranked.rows["hessian_trace"].contrasts}
    told |= {each.seen_from(each.second).words: each.decided for each in content.ranked.rows["hessian_trace"].contrasts}
    for cell in drawn:
        assert (cell["told"] == "told apart") == told[cell["words"]]
        assert (cell["text"] == "≈") == (cell["told"] == "not told apart")
    assert {cell["told"] for cell in drawn} == {"told apart", "not told apart"} or size == 5


def test_text_in_a_matrix_stands_against_its_squares() -> None:
    """By at least 4.5 to 1, on the strongest square of either colour, light and dark."""

    def lightness(colour: list[float]) -> float:
        parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    schemes = re.findall(r":root \{(.*?)\}", embedding.asset("page.css"), re.DOTALL)
    assert len(schemes) == 2
    for scheme in schemes:
        named = dict(re.findall(r"--(\w+): #([0-9a-f]{6})", scheme))
        colours = {name: [int(code[i : i + 2], 16) / 255 for i in (0, 2, 4)] for name, code in named.items()}
        for square in ("orange", "grey"):
            share = FAINT_TO_STRONG[1]
            drawn = [share * c + (1 - share) * p for c, p in zip(colours[square], colours["paper"])]
            low, high = sorted((lightness(drawn), lightness(colours["ink"])))
            assert (high + 0.05) / (low + 0.05) >= 4.5, (square, scheme)


def points(series: Sequence[tuple[str, str]], places: int = 3) -> list[CurvePoint]:
    return [
        CurvePoint(float(place), f"{run}-{place}", 1.0 + index + place, 0.0, run, group)
        for index, (run, group) in enumerate(series)
        for place in range(1, places + 1)
    ]


def test_seeds_are_a_band_with_mean_and_range_and_each_run_stays_a_line() -> None:
    drawn = curve(points([("a-0", "a"), ("a-1", "a"), ("a-2", "a"), ("b", "")]), "loss", "loss", "epoch")
    bands = drawn.data[2].values
    assert [(row["series"], row["low"], row["value"], row["high"]) for row in bands] == [
        ("a", 1.0 + place, 2.0 + place, 3.0 + place) for place in (1, 2, 3)
    ]
    assert "from the least to the greatest of the runs that differ in their seed alone" in drawn.caption
    spec = drawn.draw(LIGHT).to_dict()
    assert any(layer["encoding"].get("detail", {}).get("field") == "run" for layer in spec["layer"])
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["a", "b"]
    assert "differ" not in curve(points([("a", ""), ("b", "")]), "loss", "loss", "epoch").caption


@pytest.mark.parametrize("lines", [2, 6, 20])
def test_a_legend_has_place_for_every_line_and_tells_them_apart(lines: int) -> None:
    drawn = curve(points([(f"run-{place:02d}", "") for place in range(lines)]), "loss", "loss", "epoch")
    layer = next(layer for layer in drawn.draw(LIGHT).to_dict()["layer"] if layer["encoding"].get("detail") is not None)
    colours = layer["encoding"]["color"]["scale"]["range"]
    dashes = layer["encoding"].get("strokeDash", {}).get("scale", {}).get("range", [None] * lines)
    assert len({(colour, str(dash)) for colour, dash in zip(colours, dashes)}) == lines
    columns = layer["encoding"]["color"]["legend"]["columns"]
    assert drawn.height - 200 >= 17 * math.ceil(lines / columns)


def test_more_lines_than_colours_tell_are_named_by_pointing() -> None:
    drawn = curve(points([(f"run-{place}", "") for place in range(MOST_NAMED + 1)]), "loss", "loss", "epoch")
    assert drawn.draw(LIGHT).to_dict()["layer"][0]["encoding"]["color"]["legend"] is None
    assert drawn.caption.startswith(f"{MOST_NAMED + 1} lines; pointing at one")


def test_networks_of_no_training_are_neither_joined_nor_led_from_one_to_another() -> None:
    reports = {
        f"seed-{place}/final.pt": made(
            "w", {"hessian_trace": Estimate(1.0 + place)}, gradient_noise=0.1, gradient_norm=0.1
        )
        for place in range(30)
    }
    content = page.of_reports(reports)
    shown = builder.page_of(content)
    figure = shown.first.figure
    assert figure is not None
    assert figure.name == "ranks"
    assert len(figure.data[0].values) == MOST_ROWS
    assert (figure.data[0].values[0]["label"], figure.data[0].values[-1]["label"]) == (
        "seed-0/final.pt", "seed-29/final.pt",
    )  # fmt: skip
    for drawn in shown.figures.values():
        if drawn.name.startswith("curve_of"):
            marks = [layer["mark"]["type"] for layer in drawn.draw(LIGHT).to_dict()["layer"]]
            assert "line" not in marks
    said = [shown.first.answer[0], shown.first.answer[1], *(value for _, value in shown.first.facts)]
    said += [section.summary for section in shown.sections]
    assert not any("→" in text for text in said)


def test_the_page_says_what_makes_runs_and_seeds() -> None:
    shown = builder.page_of(page.of_reports(made_runs()))
    said = " ".join(part.text for section in shown.sections for part in section.parts if isinstance(part, Words))
    assert "5 runs, one folder each." in said
    assert "kind-0/seed-0, kind-0/seed-1 and kind-0/seed-2 are taken to differ in their seed alone: kind-0." in said
    assert "Letters and intervals hold with 95% for all 1,770 pairs of a measure at once (Bonferroni)." in said


def test_reports_measured_differently_are_not_ranked() -> None:
    reports = made_runs(2, 3)
    label = next(iter(reports))
    reports[label] = made("w", dict(reports[label].estimates), fingerprint="other")
    assert page.of_reports(reports).ranked is None
