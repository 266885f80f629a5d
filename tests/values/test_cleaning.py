"""Text from outside at the three doors: nothing acts on a terminal, no cell is a formula, no page is turned around."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from spiritlevel.analyses.comparison import compare
from spiritlevel.cli import main
from spiritlevel.lab import nets
from spiritlevel.results import Report
from spiritlevel.results.audits import Audit
from spiritlevel.values.cleaning import for_csv, for_page, for_terminal, lines_for_terminal
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Estimate, not_applicable
from tests.page.material import made_report, made_spectrum

ESCAPES = "\x1b]0;owned\x07\x1b[31mred\x9b2J\r\x08"
BIDI = "safe\u202egnp.exe\u2066\u200b"
MARKUP = "[red]red[/red] [link=http://x]y[/link] :smile:"
HOSTILE = f"{ESCAPES}{BIDI}\u2028{MARKUP}\udcff"
# What must reach no terminal: control characters but the ends of lines, formats, halves of characters.
ACTING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def hostile_report(weights: str = HOSTILE, **header: Any) -> Report:
    """Return a report in which every text is hostile."""
    plain = made_report()
    return Report(
        estimates={**plain.estimates, f"m_{HOSTILE}": not_applicable(f"because {HOSTILE}")},
        per_layer={"hessian_trace": {f"layer{HOSTILE}": Estimate(1.0), f"=layer{HOSTILE}": not_applicable(HOSTILE)}},
        header=plain.header.with_facts(
            {
                **{name: f"{name} {HOSTILE}" for name in ("model", "data", "split", "loss_name", "mode", "dtype")},
                "weights": weights,
                "notes": [f"note {HOSTILE}"],
                **header,
            }
        ),
        settings=plain.settings,
        titles={**plain.titles, f"m_{HOSTILE}": f"title {HOSTILE}", "hessian_trace": f"trace {HOSTILE}"},
    )


def test_the_three_doors() -> None:
    assert for_terminal("a\x1b[31mb\n\u202e") == "a\\x1b[31mb\\x0a\\u202e"
    assert lines_for_terminal("two\nlines\x07") == "two\nlines\\x07"
    assert for_page("x\x00y\u2066z\U000e0041") == "x\\x00y\\u2066z\\U000e0041"
    for text in ("κτ, ρ ± 0.1 × 10³ — “é” 🙂", "naïve\u00a0layer", ""):
        assert for_terminal(text) == for_page(text) == for_csv(text) == text
    for text in ("=1+1", "+1", "-1", "@x", "\tx", "\rx", "＝1"):
        assert for_csv(text).startswith("'")
    for number in (-1.5, 3, None, True):
        assert for_csv(number) is number


# --- the terminal ----------------------------------------------------------------------------------------------------


def printed(renderable: Any) -> str:
    """Return what a console of the user's own, with markup and colours, would send to a terminal, without styles."""
    stream = io.StringIO()
    Console(file=stream, width=200, force_terminal=True, color_system=None).print(renderable)
    return stream.getvalue()


def tables() -> dict[str, Callable[[], Any]]:
    from spiritlevel.results.terminal import layer_tables, rows_table

    one, two = hostile_report(), hostile_report(f"two{HOSTILE}")
    compared = compare({f"a{HOSTILE}": one, f"b{HOSTILE}": two})
    audit = Audit(
        verdicts={},
        base=one,
        strengths={f"s{HOSTILE}": (1.0, 2.0)},
        one_neuron={"": {"factor": [1.0]}, f"l{HOSTILE}": {"frobenius": [1.0]}},
        left_alone=[HOSTILE],
        untraced=HOSTILE,
        refused={HOSTILE: HOSTILE},
        copied_from=HOSTILE,
    )
    return {
        "report": lambda: one.table(layers=True),
        "rows": lambda: rows_table({HOSTILE: one, "b": two}, {f"bad{HOSTILE}": f"reason {HOSTILE}"}),
        "layers": lambda: layer_tables(one)[0],
        "comparison": compared.table,
        "audit": audit.table,
        "report text": lambda: str(one),
        "comparison text": lambda: str(compared),
        "audit text": lambda: str(audit),
    }


@pytest.mark.parametrize("name", list(tables()))
def test_nothing_acts_on_a_terminal(name: str) -> None:
    shown = tables()[name]()
    text = shown if isinstance(shown, str) else printed(shown)
    assert not ACTING.search(text), repr(ACTING.search(text))
    assert "\\x1b[31m" in "".join(text.split())
    assert "[red]" in text or "[red" in text  # markup is shown as it is


def test_sentences_and_short_forms_are_cleaned_too() -> None:
    assert str(SpiritlevelError("no tensor a\x1b[31m\u202e")) == "no tensor a\\x1b[31m\\u202e"
    assert not ACTING.search(repr(hostile_report()))
    assert not ACTING.search(repr(compare({f"a{HOSTILE}": hostile_report(), "b": hostile_report()})))


def test_columns_stay_in_line_whatever_the_names() -> None:
    from rich.cells import cell_len

    from spiritlevel.results.terminal import as_text, rows_table

    lines = as_text(rows_table({f"a{ESCAPES}": made_report(), "b": made_report()})).splitlines()
    assert len({cell_len(line) for line in lines if line.startswith(("│", "├", "╭"))}) == 1


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_file_names_on_the_command_line(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"a{ESCAPES}.pt", "[bold]b[red].pt", os.fsdecode(b"bad\xff.pt"), "=cmd.pt"]
    for number, name in enumerate(names):
        torch.save(nets.build("digits_mlp", seed=number).state_dict(), name)
    command = ["measure", "digits_mlp", *names, "--data", "digits", "--samples", "60", "-m", "output_margin"]
    assert main([*command, "--json", "all.json", "--layers", "--html", "p.html"]) == 0
    said = capsys.readouterr()
    assert not ACTING.search(said.out + said.err)
    for shown in ("[bold]b[red].pt", "bad\\udcff.pt", "=cmd.pt"):
        assert shown in said.out
    (here / "all.json").read_bytes().decode("utf-8")
    assert main([*command, "--json", "all.json", "--quiet"]) == 0  # and is known again
    assert main(["report", "all.json", "--csv", "o.csv", "--html", "q.html"]) == 0
    assert not ACTING.search(capsys.readouterr().out)
    assert main(["measure", "digits_mlp", f"no{HOSTILE}.pt", "--data", "digits"]) == 2
    error = capsys.readouterr().err
    assert not ACTING.search(error)
    assert error.count("\n") == 1
    assert main(["report", f"no{ESCAPES}.json"]) == 2
    assert not ACTING.search(capsys.readouterr().err)
    for file in ("o.csv", "p.html", "q.html"):
        assert not re.search("[\x00-\x08\x0e-\x1f\u202a-\u202e]", Path(file).read_text(encoding="utf-8"))


def test_a_name_that_is_no_utf8_loses_no_result(here: Path) -> None:
    name = os.fsdecode(b"bad\xff")
    torch.save(nets.build("digits_mlp", seed=0).state_dict(), f"{name}.pt")
    command = ["measure", "digits_mlp", f"{name}.pt", "--data", "digits", "--samples", "60", "-m", "output_margin"]
    assert main([*command, "--json", f"{name}.json", "--per-sample", f"{name}.csv", "--html", f"{name}.html"]) == 0
    report = Report.load(f"{name}.json")
    assert report.header.weights == "bad\\udcff.pt"
    text = Path(f"{name}.html").read_bytes().decode("utf-8")
    assert "bad\\udcff.pt" in text


# --- CSV -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [False, True])
def test_no_cell_of_csv_is_a_formula_and_numbers_stay_numbers(here: Path, layers: bool) -> None:
    report = hostile_report("=HYPERLINK(1)", model="+cmd", data="@sum", split="-2+3", loss_name="\t=1")
    report.estimates["negative"] = Estimate(-1.25)
    report.per_layer["hessian_trace"]["-negative"] = Estimate(-1.25)
    report.save("=r.json")
    assert main(["report", "=r.json", "--csv", "o.csv", *(["--layers"] if layers else [])]) == 0
    rows = list(csv.DictReader(io.StringIO(Path("o.csv").read_text(encoding="utf-8"))))
    assert rows
    texts = [cell for row in rows for cell in row.values() if cell]
    assert {row["weights"] for row in rows} == {"'=HYPERLINK(1)"}
    assert {row["file"] for row in rows} == {"'=r.json"}
    assert {row["value"] for row in rows} >= {"-1.25"}
    for cell in texts:
        number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", cell)
        assert number or not cell.startswith(("=", "+", "-", "@", "\t", "\r")), cell
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e]", cell)


def test_rows_of_studies_are_cleaned_too(here: Path) -> None:
    from spiritlevel.lab.studies.exporting import write_csv
    from spiritlevel.lab.studies.study import FinishedRun, Table

    run = FinishedRun("id", {}, [{"=name": "=1+1", "value": -2.5, "list": ["=x"]}], {}, 0.0, {})
    write_csv({"-study": Table([run])}, Path("o.csv"))
    header, row = csv.reader(io.StringIO(Path("o.csv").read_text(encoding="utf-8")))
    assert header[:2] == ["study", "'=name"]
    assert row[:4] == ["'-study", "'=1+1", "-2.5", "['=x']"]


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_hides_nothing_and_turns_nothing_around(here: Path) -> None:
    from spiritlevel import page

    reports = {f"a{HOSTILE}<b>": hostile_report(), f"b{HOSTILE}": hostile_report(f"two{HOSTILE}")}
    for content in (page.of_reports(hostile_report()), page.of_reports(reports), page.of_comparison(compare(reports))):
        page.write(content, "p.html")
        text = Path("p.html").read_bytes().decode("utf-8")
        body = text[: text.index('<script type="application/json"')]
        data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
        assert data is not None
        for part in (body, data.group(1)):
            assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", part)
        assert "<b>" not in body
        assert "\\u202e" in body


def test_two_names_that_are_spelt_alike_both_stay() -> None:
    from spiritlevel import page

    content = page.of_reports({"a\x1b": made_report(), "a\\x1b": made_report(2.0)})
    found = page.builder.cleaned_for_page(content)
    assert list(found.reports) == ["a\\x1b", "a\\x1b'"]
    plain = page.of_reports({"a": made_report()})
    assert page.builder.cleaned_for_page(plain) is plain


def test_a_name_in_an_image_is_no_formula(here: Path) -> None:
    spectrum = made_spectrum().described(model="a$\\frac{$b\x1b")
    spectrum.figure("s.svg")
    assert Path("s.svg").stat().st_size > 1000


def test_the_piece_of_html_for_notebooks() -> None:
    one, two = hostile_report(), hostile_report(f"two{HOSTILE}")
    compared = compare({"<b>a</b>": one, "b": two})
    for result in (one, compared, Audit(verdicts={}, base=one, strengths={}), made_spectrum()):
        shown = result._repr_html_()
        assert "<b>" not in shown
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e\ud800-\udfff]", shown)
