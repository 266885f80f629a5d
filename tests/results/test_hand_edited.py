"""Saved results that somebody edited: shown where they still mean something, else refused in one sentence."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spiritlevel.analyses.comparison import compare
from spiritlevel.cli import main
from spiritlevel.results import Report, load_reports
from spiritlevel.results.audits import Audit
from spiritlevel.results.base import ResultBase
from spiritlevel.results.collecting import save_reports
from spiritlevel.results.compared import Comparison
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.page.material import made_audit, made_report, made_spectrum

MAKERS: dict[str, Callable[[], Any]] = {
    "report": made_report,
    "comparison": lambda: compare({"a": made_report(error=0.1), "b": made_report(2.0, error=0.1)}),
    "audit": lambda: made_audit({"hessian_trace": "changes", "rho_sum": "invariant"}),
    "spectrum": made_spectrum,
}
JUNK = (None, "text", "", -1, 0, 1.5, 10**400, True, [], {}, [None], ["a"], {"a": 1}, [[1.0], [1.0, 2.0]])


@pytest.fixture
def saved(tmp_path: Path) -> Callable[[Any], Path]:
    def write(record: Any) -> Path:
        file = tmp_path / "r.json"
        file.write_text(record if isinstance(record, str) else json.dumps(record), encoding="utf-8")
        return file

    return write


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of a record; of long lists the first and the last entry."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif isinstance(value, list):
        for position in {0, len(value) - 1} if value else ():
            yield from places(value[position], (*path, position))


def edited(record: Any, path: tuple[Any, ...], draw: random.Random) -> Any:
    """Return a copy in which one part is junk or missing."""
    found = copy.deepcopy(record)
    parent = found
    for step in path[:-1]:
        parent = parent[step]
    if draw.random() < 0.25:
        del parent[path[-1]]
    else:
        parent[path[-1]] = draw.choice(JUNK)
    return found


def check_edits(kind: str, count: int, saved: Callable[[Any], Path], capsys: pytest.CaptureFixture[str]) -> int:
    """Show edited files; return how many were refused."""
    result = MAKERS[kind]()
    record = json.loads(json.dumps(result.record()))
    draw, refused = random.Random(5), 0
    everywhere = list(places(record))
    for number in range(count):
        path = draw.choice(everywhere)
        file = saved(edited(record, path, draw))
        page = ["--html", str(file.with_name("p.html"))] if number % 10 == 0 else []
        code = main(["report", str(file), "--layers", *page])
        said = capsys.readouterr().err
        assert "unexpected failure" not in said, (path, said)
        assert code in (0, 1, 2), (path, said)
        if code:
            refused += 1
            assert said.splitlines()[-1].startswith("spiritlevel: "), (path, said)
            assert len(said) < 600
    return refused


@pytest.mark.parametrize("kind", list(MAKERS))
def test_edited_files_are_shown_or_refused_in_a_sentence(
    kind: str, saved: Callable[[Any], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_edits(kind, 40, saved, capsys) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", list(MAKERS))
def test_very_many_edited_files(kind: str, saved: Callable[[Any], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert check_edits(kind, 1000, saved, capsys) >= 250


def without(record: dict[str, Any], *path: str) -> dict[str, Any]:
    found = copy.deepcopy(record)
    part = found
    for step in path[:-1]:
        part = part[step]
    del part[path[-1]]
    return found


def with_value(record: dict[str, Any], value: Any, *path: Any) -> dict[str, Any]:
    found = copy.deepcopy(record)
    part: Any = found
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    return found


def test_the_sentence_names_the_place() -> None:
    record = made_report().record()
    for wrong, words in (
        (without(record, "measures", "hessian_trace", "how"), "measures.hessian_trace.how is missing"),
        (with_value(record, "ten", "measures", "hessian_trace", "value"), 'must be a finite number or null, not "ten"'),
        (with_value(record, 10**400, "measures", "hessian_trace", "value"), "measures.hessian_trace.value must be"),
        (with_value(record, [1.0], "measures", "hessian_trace", "interval"), "has 1 entries, and 2 belong there"),
        (with_value(record, "good", "measures", "hessian_trace", "status"), "must be one of ok, budget_spent"),
        (with_value(record, "400", "header", "samples"), 'header.samples must be a whole number or null, not "400"'),
        (with_value(record, [1], "header", "notes"), "header.notes[0] must be text, not 1"),
        (with_value(record, 1, "titles", "hessian_trace"), "titles.hessian_trace must be text, not 1"),
        (with_value(record, {"settings": {"a": 1}}, "header", "request"), "request.settings.a must be an object"),
        (with_value(record, {"l": [1, "b"]}, "neurons", "rho"), "neurons.rho.l[1] must be a finite number"),
    ):  # fmt: skip
        with pytest.raises(SpiritlevelError) as caught:
            Report.from_record(wrong, "r.json")
        assert str(caught.value).startswith("r.json is a damaged report (")
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "named"), [(Audit, "an audit"), (Comparison, "a comparison"), (Spectrum, "a spectrum")]
)
def test_what_holds_no_such_result_is_refused(
    saved: Callable[[Any], Path], tmp_path: Path, kind: type[ResultBase], named: str
) -> None:
    for record, words in (
        ("{", "strict JSON"),
        ({}, f"is not {named}"),
        ({"schema_version": 1}, f"is not {named}"),
        ({"kind": "report"}, f"is not {named}"),
        ({"kind": kind.kind, "schema_version": 2}, "schema version 2"),
        ({"kind": kind.kind, "schema_version": 1}, f"is a damaged {kind.kind} "),
    ):
        with pytest.raises(SpiritlevelError, match=words):
            kind.load(saved(record))
    with pytest.raises(UsageError, match="there is no file"):
        kind.load(tmp_path / "nothing.json")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(saved: Callable[[Any], Path], text: str) -> None:
    record = json.dumps(with_value(made_report().record(), "HERE", "measures", "hessian_trace", "value"))
    with pytest.raises(SpiritlevelError, match=r"strict JSON|must be a finite number"):
        Report.load(saved(record.replace('"HERE"', text)))


def test_files_of_several_reports_and_what_they_are_used_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_reports([made_report(), made_report(2.0)], "r.json")
    record = json.loads(Path("r.json").read_text(encoding="utf-8"))
    for wrong in (
        {**record, "reports": {"a": 1}},
        {**record, "reports": [1]},
        {**record, "failures": [{"weights": 1}]},
        with_value(record, None, "reports", 1, "measures"),
    ):
        Path("w.json").write_text(json.dumps(wrong), encoding="utf-8")
        with pytest.raises(SpiritlevelError, match="damaged"):
            load_reports("w.json")
        for words in (
            ["measure", "digits_mlp", "--data", "digits", "--like", "w.json"],
            ["compare", "w.json", "r.json"],
            ["report", "w.json", "--csv", "o.csv"],
        ):
            assert main(words) == 1
            assert "damaged" in capsys.readouterr().err


def test_intervals_without_an_end_are_read_back() -> None:
    record = MAKERS["comparison"]().record()
    name = next(iter(record["rows"]))
    record = with_value(record, None, "rows", name, "contrasts", 0, "ratio", "high")
    assert name in str(Comparison.from_record(record))
