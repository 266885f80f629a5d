"""``--measures FILE.py:name``: a measure of the user's own, on every command that measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.material import Run, strict

MEASURES = """
import spiritlevel as sl


@sl.declare(title="Length of the weights", formula="", citation="", sharper_when="")
def weight_length(problem, *, power: float = 1.0):
    return sum(float(each.detach().square().sum()) for each in problem.tensors) ** (0.5 * power)


@sl.declare(title="Taken", formula="", citation="")
def weight_norm(problem):
    return 1.0


number = 3
"""
OWN = "my_measures.py:weight_length"
FEW = ("--data", "mine:pair", "--quiet", "--json", "-", "-m", f"weight_norm,{OWN}")


@pytest.fixture
def measures(here: Path, weights: Path) -> Path:
    (here / "my_measures.py").write_text(MEASURES, encoding="utf-8")
    (here / "other.pt").write_bytes(weights.read_bytes())
    return here


def test_measured_beside_the_package_s_own(run: Run, measures: Path) -> None:
    ran = run("measure", "mine:Net", "net.pt", *FEW)
    assert ran.code == 0, ran
    found = strict(ran.out)["measures"]
    assert list(found) == ["weight_norm", "weight_length"]
    assert found["weight_length"]["value"] == pytest.approx(found["weight_norm"]["value"], rel=1e-6)


def test_a_setting_of_it_is_given_by_its_name(run: Run, measures: Path) -> None:
    found = strict(run("measure", "mine:Net", "net.pt", *FEW, "--set", "weight_length.power=2").out)["measures"]
    assert found["weight_length"]["value"] == pytest.approx(found["weight_norm"]["value"] ** 2, rel=1e-6)
    assert "weight_length" in run("measure", "mine:Net", "net.pt", *FEW, "--set", "weight_length.powre=2").err


def test_on_every_command(run: Run, measures: Path) -> None:
    compared = strict(run("compare", "mine:Net", "net.pt", "other.pt", *FEW, "--no-search").out)
    assert "weight_length" in compared["reports"]["net.pt"]["measures"]
    audited = run("audit", "mine:Net", "net.pt", *FEW, "--strengths", "mild", "--alphas", "none")
    assert "weight_length" in strict(audited.out)["base"]["measures"]
    planned = run("measure", "mine:Net", "net.pt", "--data", "mine:pair", "-m", OWN, "--dry-run")
    assert "weight_length" in planned.out


def test_like_an_earlier_report_asks_for_it_again(run: Run, measures: Path) -> None:
    run("measure", "mine:Net", "net.pt", *FEW[:-3], "r.json", "-m", OWN)
    again = strict(
        run("measure", "mine:Net", "net.pt", "--data", "mine:pair", "--quiet", "--like", "r.json", "--json", "-").out
    )
    assert list(again["measures"]) == ["weight_length"]


def test_its_file_is_never_written_to(run: Run, measures: Path) -> None:
    found = run("measure", "mine:Net", "net.pt", "--data", "mine:pair", "-m", OWN, "--json", "my_measures.py")
    assert found.code == 2
    assert "the source of --measures" in found.err
    assert (measures / "my_measures.py").read_text(encoding="utf-8") == MEASURES


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("my_measures.py:number", "is of type int; name a function declared with"),
        ("my_measures.py:weight_norm", "is called weight_norm, as a measure of the package is"),
        ("my_measures.py:weight_lenght", "has no 'weight_lenght'; did you mean weight_length"),
    ],
)
def test_what_is_no_measure_is_refused(run: Run, measures: Path, named: str, said: str) -> None:
    found = run("measure", "mine:Net", "net.pt", "--data", "mine:pair", "-m", named)
    assert (found.code, said in found.err) == (2, True), found.err


def test_finished_results_are_measured_anew_when_the_measure_changed(run: Run, measures: Path) -> None:
    words = ("measure", "mine:Net", "net.pt", "other.pt", "--data", "mine:pair", "-m", OWN, "--json", "all.json")
    run(*words)
    assert "2 of 2 kept" in run(*words).err
    (measures / "my_measures.py").write_text(MEASURES.replace("0.5 * power", "power"), encoding="utf-8")
    assert "kept" not in run(*words).err
