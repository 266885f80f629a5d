"""``--seconds`` and Ctrl-C on the command line: the best there is by then, with what it is worth."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from spiritlevel.analyses.running import MeasureRun
from spiritlevel.cli.beginning import BEGINNING
from tests.cli.material import Run

NET = """
import torch
from torch import nn

def Net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.Linear(6, 6), nn.GELU(), nn.Linear(6, 3))

torch.manual_seed(1)
data = torch.randn(40, 4), torch.randint(0, 3, (40,))
"""
COMMAND = ("measure", "mine.py:Net", "--data", "mine.py:data")


@pytest.fixture
def here(own_folder: Path) -> Path:
    (own_folder / "mine.py").write_text(NET)
    return own_folder


@pytest.mark.parametrize(
    "command",
    [
        ("measure", "-m", "hessian_trace"),
        ("audit", "-m", "hessian_trace", "--strengths", "usual", "--alphas", "none"),
        ("spectrum", "--probes", "2", "--steps", "6"),
    ],
)
def test_plenty_of_time_gives_the_whole_answer(run: Run, command: tuple[str, ...]) -> None:
    name, *options = command
    code, out, err = run(name, *COMMAND[1:], *options, "--seconds", "10000", "--quiet", "--json", "r.json")
    assert code == 0, err
    assert "seconds were spent" not in out + err


def test_the_seconds_are_part_of_the_request_that_is_kept(run: Run) -> None:
    run(*COMMAND, "-m", "hessian_trace", "--seconds", "10000", "--json", "r.json")
    (report,) = [json.loads(Path("r.json").read_text())]
    assert report["header"]["request"]["seconds"] == 10000


def test_they_may_stand_in_a_configuration_file(run: Run) -> None:
    Path("c.toml").write_text("seconds = -1\n")
    code, _, err = run(*COMMAND, "--config", "c.toml")
    assert (code, err.splitlines()[-1]) == (2, "spiritlevel: seconds must be a positive number, not -1")


def test_they_count_from_the_beginning_of_the_command(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BEGINNING, "again", lambda: setattr(BEGINNING, "_at", time.monotonic() - 60))
    code, out, err = run(*COMMAND, "--seconds", "50")
    assert (code, out) == (1, "")
    assert len(err.splitlines()) <= 2  # beside that the weights are as initialised
    assert err.splitlines()[-1].startswith(
        'spiritlevel: the 50 seconds were spent before the sweep "first sweep"; give'
    )


def test_a_plan_ends_with_them(run: Run) -> None:
    code, out, _ = run(*COMMAND, "--seconds", "0.000001", "--dry-run")
    assert code == 0
    assert "under a second" in out
    assert "not enough for a first look" in out


def test_an_interruption_shows_what_is_known(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    look, stopped = MeasureRun.look, []

    def interrupted(self: MeasureRun) -> None:
        if self.measure.name == "kappa_tau_sum" and not stopped:
            stopped.append(True)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        look(self)

    monkeypatch.setattr(MeasureRun, "look", interrupted)
    chosen = ("-m", "hessian_trace,kappa_tau_sum,hessian_spectral_norm", "--tolerance", "0.1")
    code, out, err = run(*COMMAND, *chosen, "--json", "r.json")
    assert code == 130
    assert err.splitlines()[-1] == "spiritlevel: interrupted"
    assert "Interrupted after 1 of 3 measures." in err
    assert "hessian_trace" in out
    found = json.loads(Path("r.json").read_text())["measures"]
    assert found["hessian_trace"]["status"] == "ok"
    assert found["kappa_tau_sum"]["value"] is not None  # its draws were the trace's
    assert found["hessian_spectral_norm"]["status"] == "not_applicable"
    assert "interrupted" in found["hessian_spectral_norm"]["reason"]
