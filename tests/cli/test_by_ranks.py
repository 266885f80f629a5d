"""A command that is started on several ranks: what it prints and writes, and how it ends where one of them fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import spiritlevel as sl
from spiritlevel.cli import by_ranks

CODE = '''
import os, signal, torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()

class Rows(torch.utils.data.Dataset):
    """Rows of which the second rank finds one that it cannot read."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(23, 4, dtype=torch.float64, generator=generator)
        self.y, self.read = torch.randint(0, 3, (23,), generator=generator), 0

    def __len__(self):
        return 23

    def __getitem__(self, place):
        self.read += 1
        if self.read == int(os.environ["AT"]) and os.environ["RANK"] == "1" and os.environ["HOW"]:
            if os.environ["HOW"] == "raise":
                raise ValueError("a broken file")
            os.kill(os.getpid(), getattr(signal, os.environ["HOW"]))
        return self.x[place], self.y[place]
'''
TIMEOUT = 6.0  # seconds
ROUNDED = 1e-10


def start(folder: Path, *words: str, size: int = 2, how: str = "", at: int = 0) -> list[subprocess.Popen[str]]:
    (folder / "mine.py").write_text(CODE)
    command = [sys.executable, "-m", "spiritlevel", *words, "--timeout", str(TIMEOUT)]
    common = {**os.environ, "WORLD_SIZE": str(size), "SPIRITLEVEL_RENDEZVOUS": f"file://{folder}/store"}
    return [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank), "HOW": how, "AT": str(at)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


MEASURE = ("measure", "mine.py:net", "--data", "mine.py:Rows", "--batch-size", "4")


def test_the_first_rank_alone_prints_and_writes(tmp_path: Path) -> None:
    first, second = start(tmp_path, *MEASURE, "--json", "found.json", "--per-sample", "each.csv")
    (out, notes), (silent, nothing) = first.communicate(timeout=200), second.communicate(timeout=200)
    assert (first.returncode, second.returncode) == (0, 0), notes + nothing
    assert "Hessian trace" in out
    assert (notes, silent, nothing) == ("", "", "")
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["measures"]["hessian_trace"]["value"] > 0
    assert len((tmp_path / "each.csv").read_text().splitlines()) == 24
    assert not list(tmp_path.glob(".spiritlevel-*"))


@pytest.mark.slow
@pytest.mark.parametrize(("how", "at"), [("raise", 20), ("SIGKILL", 60), ("SIGSTOP", 60)])
def test_one_rank_that_fails_ends_all(how: str, at: int, tmp_path: Path) -> None:
    processes = start(tmp_path, *MEASURE, "--json", "found.json", size=3, how=how, at=at)
    try:
        others = [process.communicate(timeout=200) for rank, process in enumerate(processes) if rank != 1]
        assert all(processes[rank].returncode == 1 for rank in (0, 2))
    finally:
        processes[1].send_signal(signal.SIGKILL)
        _, words = processes[1].communicate()
    said = "".join([*(own for _, own in others), words])
    sentences = [line for line in said.splitlines() if line.startswith("spiritlevel: ")]
    assert len(sentences) == 1, said
    assert ("a broken file" if how == "raise" else "rank 1 of 3 gave no sign of life for 6 s") in sentences[0]
    assert "".join(out for out, _ in others) == ""
    assert not (tmp_path / "found.json").exists()
    assert not list(tmp_path.glob(".spiritlevel-*"))


@pytest.mark.slow
@pytest.mark.parametrize("command", ["audit", "spectrum"])
def test_other_commands_write_what_one_process_does(command: str, tmp_path: Path) -> None:
    words = (command, *MEASURE[1:], *(("--steps", "6") if command == "spectrum" else ()))
    for name, size in (("alone", 1), ("together", 3)):
        (tmp_path / "store").unlink(missing_ok=True)
        processes = start(tmp_path, *words, "--json", f"{name}.json", size=size)
        for process in processes:
            _, said = process.communicate(timeout=300)
            assert process.returncode == 0, said
    found, known = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("together", "alone"))
    value = {
        "audit": lambda one: one["base"]["measures"]["hessian_trace"],
        "spectrum": lambda one: one["estimates"]["frobenius_squared"],
    }[command]
    assert value(found)["value"] == pytest.approx(value(known)["value"], rel=ROUNDED)


@pytest.mark.slow
def test_a_killed_spectrum_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    words = ("spectrum", *MEASURE[1:], "--steps", "6", "--no-keep-graphs")
    for name, how, codes in (("whole", "", [0, 0]), ("resumed", "SIGKILL", [1, -9]), ("resumed", "", [0, 0])):
        (tmp_path / "store").unlink(missing_ok=True)
        own = (*words, "--json", f"{name}.json", "--state", f"{name}.state")
        processes = start(tmp_path, *own, how=how, at=200)
        ends = [(process.communicate(timeout=300), process.returncode) for process in processes]
        assert [code for _, code in ends] == codes, ends
        assert (tmp_path / f"{name}.state").exists() == (how != "")
    whole, resumed = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("whole", "resumed"))
    for one in (whole, resumed):
        one["header"]["wall_time"] = one["plan"]["free_bytes"] = None
    assert resumed == whole


def test_a_state_is_refused_where_time_would_decide(tmp_path: Path) -> None:
    (process,) = start(tmp_path, *MEASURE, "--state", "kept", "--seconds", "5", size=1)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "--state and --seconds do not go together" in said


def test_ranks_that_never_come_are_said_to_be_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_ranks, "STARTING", 0.5)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("SPIRITLEVEL_RENDEZVOUS", f"file://{tmp_path}/store")
    with pytest.raises(sl.SpiritlevelError, match="the 2 ranks that WORLD_SIZE speaks of did not come together"):
        by_ranks.by_ranks(lambda **options: 0)(timeout=0.5)
