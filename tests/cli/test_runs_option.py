"""``report`` and ``compare`` of many reports on the command line: runs by folder and by a table, at two widths."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from spiritlevel.cli import main
from spiritlevel.results.compared import Comparison
from tests.analyses.made_reports import made_runs


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reports of four runs by three epochs, a folder each."""
    monkeypatch.chdir(tmp_path)
    files = []
    for label, report in made_runs(4, 3).items():
        file = Path("saved", label).with_suffix(".json")
        file.parent.mkdir(parents=True, exist_ok=True)
        report.save(file)
        files.append(str(file))
    return files


def said(text: str) -> str:
    return " ".join(text.split())


def test_reports_in_folders_are_runs(saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", *saved, "--html", "page.html"]) == 0
    out = capsys.readouterr().out
    assert said(out).startswith("kind-1/seed-0 at epoch 3 (loss 0.167) is the flattest by 1 of 2 measures")
    assert len(re.findall(r"│ kind-\d/seed-\d epoch \d ", out)) % 12 == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "kind-1/seed-0 at epoch 3 (loss 0.167) is the flattest by 1 of 2 measures" in page
    assert '<body data-kind="reports">' in page


@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_table_says_which_run_each_is_of(command: str, saved: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{file},{'ab'[place % 2]},{place // 2},{place / 20}\n" for place, file in enumerate(saved)]
    Path("runs.csv").write_text("path,run,step,test_accuracy\n" + "".join(rows))
    json_too = ["--json", "c.json"] if command == "compare" else []
    assert main([command, *saved, "--runs", "runs.csv", "--html", "page.html", *json_too]) == 0
    out = said(capsys.readouterr().out)
    assert out.startswith("b at step 5 (loss 0.167) is the flattest by 1 of 2 measures")
    assert "Test accuracy is highest (55.00%) for b at step 5; it is in place 1 of 12 by" in out
    if command == "compare":
        found = Comparison.load("c.json")
        assert found.runs.names == ["a", "b"]
        assert found.answer == json.loads(Path("c.json").read_text())["answer"]


def test_a_table_that_does_not_fit_or_would_be_replaced_is_refused(
    saved: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("runs.csv").write_text(f"path,run\n{saved[0]},a\n")
    assert main(["report", *saved, "--runs", "runs.csv"]) == 2
    assert f"runs.csv has no row for {saved[1]}" in capsys.readouterr().err
    for command in ("report", "compare"):
        assert main([command, *saved, "--runs", "runs.csv", "--html", "runs.csv"]) == 2
        assert "the table of runs" in capsys.readouterr().err
        assert Path("runs.csv").read_text().startswith("path,run")
    assert main(["report", *saved, "--runs", "none.csv"]) == 2
    assert "none.csv cannot be read as a table of runs" in capsys.readouterr().err
