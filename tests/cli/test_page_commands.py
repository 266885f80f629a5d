"""The command that stands on a page measures the same again."""

from __future__ import annotations

import html
import re
import shlex
from pathlib import Path

import pytest
import torch

from spiritlevel.cli import main

COMMANDS = {
    "one network": "measure NET a.pt DATA:pair --measures normalized_sharpness --set normalized_sharpness.lam=2",
    "several": "measure NET a.pt b.pt DATA:part --data-args count=30 --measures weight_norm --dtype float64",
    "many": "measure NET a.pt b.pt c.pt DATA:pair --measures hessian_trace,weight_norm",
    "a comparison of many": "compare NET a.pt b.pt c.pt d.pt e.pt DATA:pair -m hessian_trace --no-search --runs r.csv",
    "a comparison": "compare NET a.pt b.pt DATA:pair --measures hessian_trace --groups 4 --no-search",
    "an audit": "audit NET a.pt DATA:pair --measures weight_norm --strengths mild --alphas 2,4 --seed 3",
    "a spectrum": "spectrum NET a.pt DATA:pair --probes 3 --steps 6 --operator ggn --samples 30",
}


def _shown(page: str) -> list[str]:
    """Return what the cells of the first screen's table say."""
    (table,) = re.findall(r'<table id="table-first-table".*?</table>', page, re.DOTALL)
    cells = re.findall(r"<t[dh].*?</t[dh]>", table, re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", cell)).split()) for cell in cells]


@pytest.mark.parametrize("kind", COMMANDS)
def test_the_command_on_a_page_makes_the_page_again(kind: str, here: Path) -> None:
    Path("r.csv").write_text("path,run,epoch\n" + "".join(f"{name}.pt,{name < 'c'},1\n" for name in "abcde"))
    for seed, name in enumerate(["a.pt", "b.pt", "c.pt", "d.pt", "e.pt"]):
        torch.manual_seed(seed)
        shapes = {"hidden.weight": (6, 4), "hidden.bias": (6,), "head.weight": (3, 6), "head.bias": (3,)}
        torch.save({key: torch.randn(shape) for key, shape in shapes.items()}, name)
    asked = shlex.split(COMMANDS[kind].replace("NET", "mine.py:Net").replace("DATA", "--data mine.py"))
    assert main([*asked, "--quiet", "--html", "asked.html"]) == 0
    page = Path("asked.html").read_text(encoding="utf-8")
    (command,) = re.findall(r"<pre><code>(.*?)</code></pre>", page, re.DOTALL)
    program, *words = shlex.split(html.unescape(command))
    assert program == "spiritlevel"
    assert main([*words, "--quiet", "--html", "again.html"]) == 0
    first = _shown(page)
    assert any(re.search(r"\d", cell) for cell in first)
    assert _shown(Path("again.html").read_text(encoding="utf-8")) == first
    asked = ["--measures" if word == "-m" else word for word in asked]
    assert {word for word in asked if word.startswith("--")} <= set(words), "what decides the numbers is on the page"


def test_the_command_on_a_study_s_page_runs_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {}
    command = ["study", "run", "margins-fig1"]
    for name in ("asked", "again"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)  # with nothing computed yet
        assert main([*command, "--quiet"]) == 0
        assert main(["study", "show", "margins-fig1", "--html", "page.html"]) == 0
        pages[name] = Path("page.html").read_text(encoding="utf-8")
        (line,) = re.findall(r"<pre><code>(.*?)</code></pre>", pages[name], re.DOTALL)
        command = shlex.split(html.unescape(line))[1:]
    claims = re.findall(r'<table id="table-[\w-]*claims[\w-]*".*?</table>', pages["asked"], re.DOTALL)
    assert claims
    assert "holds" in claims[0]
    assert re.findall(r'<table id="table-[\w-]*claims[\w-]*".*?</table>', pages["again"], re.DOTALL) == claims
