"""``--forward``: the user's own way from model and batch to outputs, on every command that measures."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

import spiritlevel as sl
from tests.cli.material import Run, strict

FORWARD = """
def half(model, batch):
    return 0.5 * model(batch[0])

def twice(model, batch):
    return 2.0 * model(batch[0])

def alone(model):
    return model

number = 3
"""
OPTIONS = ("--data", "mine:pair", "--forward", "ways.py:half")


@pytest.fixture
def ways(here: Path, weights: Path) -> Path:
    (here / "ways.py").write_text(FORWARD, encoding="utf-8")
    sys.path.append(str(here))  # put back by the folder's fixture
    (here / "other.pt").write_bytes(weights.read_bytes())
    return here


def problem(forward: float) -> sl.Problem:
    mine = importlib.import_module("mine")
    model = mine.Net()
    sl.load_weights(model, "net.pt")
    return sl.Problem(model, mine.pair, forward=lambda model, batch: forward * model(batch[0]))


def test_measured_as_in_python(run: Run, ways: Path) -> None:
    found = strict(run("measure", "mine:Net", "net.pt", *OPTIONS, "-m", "hessian_trace", "--json", "-").out)
    expected = float(sl.measure(problem(0.5), ["hessian_trace"])["hessian_trace"])
    assert found["measures"]["hessian_trace"]["value"] == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(float(sl.measure(problem(1.0), ["hessian_trace"])["hessian_trace"]), rel=0.1)
    assert found["header"]["request"]["forward"] == "ways.py:half"


def test_on_every_command(run: Run, ways: Path) -> None:
    few = (*OPTIONS, "--quiet", "--json", "-")
    loss = float(sl.measure(problem(0.5), ["output_margin"]).loss)
    compared = strict(run("compare", "mine:Net", "net.pt", "other.pt", *few, "-m", "output_margin", "--no-search").out)
    assert compared["reports"]["net.pt"]["header"]["loss"] == pytest.approx(loss, rel=1e-5)
    audited = run("audit", "mine:Net", "net.pt", *few, "-m", "output_margin", "--strengths", "mild", "--alphas", "none")
    assert strict(audited.out)["base"]["header"]["loss"] == pytest.approx(loss, rel=1e-5)
    spectrum = strict(run("spectrum", "mine:Net", "net.pt", *few, "--steps", "30").out)
    top = float(torch.linalg.eigvalsh(sl.reference.Dense(problem(0.5)).hessian)[-1])
    assert spectrum["estimates"]["eigenvalue_max"]["value"] == pytest.approx(top, rel=1e-3)


def test_another_forward_is_another_result(run: Run, ways: Path) -> None:
    words = ("measure", "mine:Net", "net.pt", "other.pt", *OPTIONS, "-m", "output_margin", "--json", "r.json")
    assert run(*words).code == 0
    assert "2 of 2 kept" in run(*words).err
    words = tuple("ways.py:twice" if word == "ways.py:half" else word for word in words)
    assert "kept" not in run(*words).err


@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        ("ways.py:halff", "ways.py has no 'halff'; did you mean half"),
        ("ways.py:number", "is of type int; name a function"),
        ("ways.py:alone", "must take two arguments, the model and a batch"),
        ("half", "must name a function, as package.module:name"),
    ],
)
def test_refused_in_one_sentence(run: Run, ways: Path, named: str, sentence: str) -> None:
    ran = run("measure", "mine:Net", "net.pt", "--data", "mine:pair", "--forward", named)
    assert ran.code == 2
    assert sentence in ran.sentence
    assert len(ran.err.strip().splitlines()) == 1


def test_its_file_is_never_written_to(run: Run, ways: Path) -> None:
    ran = run("measure", "mine:Net", "net.pt", *OPTIONS, "-m", "output_margin", "--json", "ways.py")
    assert ran.code == 2
    assert (ways / "ways.py").read_text(encoding="utf-8") == FORWARD
    needs = run("compare", "a.json", "b.json", "--forward", "ways.py:half")
    assert needs.sentence.startswith("spiritlevel: --forward needs the networks")
