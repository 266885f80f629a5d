"""Many weights files by several workers: the numbers of one, in the command's order, whatever becomes of any."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import spiritlevel
from spiritlevel.cli import main

SOURCE = str(Path(spiritlevel.__file__).resolve().parents[1])
# One weight decides what becomes of the process: 13 ends it as the system does where memory runs out.
NET = """
import os, signal, time
import numpy as np
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.fate = nn.Parameter(torch.zeros(1))
    def forward(self, x):
        if float(self.fate) == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.head(torch.relu(self.hidden(x)))

def data():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator)

def other_data():
    x, y = data()
    return x + float(np.random.default_rng().normal()), y
"""
MEASURED = ("-m", "hessian_trace,hessian_top_eigenvalue,output_margin")
Run = Callable[..., tuple[int, str, str]]


def save(name: str, seed: int, **changes: torch.Tensor) -> None:
    torch.manual_seed(seed)
    hidden, head = torch.nn.Linear(4, 6), torch.nn.Linear(6, 3)
    state = {f"hidden.{key}": value for key, value in hidden.state_dict().items()}
    state |= {f"head.{key}": value for key, value in head.state_dict().items()}
    torch.save({**state, "fate": torch.zeros(1), **changes}, name)


@pytest.fixture
def here(own_folder: Path) -> Path:
    """A folder with a network, checkpoints of it, and files that are none."""
    Path("mine.py").write_text(NET, encoding="utf-8")
    for seed in range(4):
        save(f"e{seed}.pt", seed)
    Path("broken.pt").write_bytes(Path("e0.pt").read_bytes()[:700])
    torch.save({"a.weight": torch.zeros(2, 2)}, "misfit.pt")
    save("nan.pt", 0, **{"head.bias": torch.full((3,), float("nan"))})
    save("killing.pt", 0, fate=torch.full((1,), 13.0))
    return own_folder


@pytest.fixture
def run(here: Path, capfd: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = main(["measure", "mine.py:Net", *words])
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def record(file: str) -> Any:
    found = json.loads(Path(file).read_text(encoding="utf-8"))
    for report in found.get("reports", ()):
        del report["header"]["wall_time"]
    return found


def test_workers_give_what_one_process_gives(run: Run) -> None:
    files = ["e0.pt", "broken.pt", "e1.pt", "misfit.pt", "nan.pt", "e2.pt", "e3.pt"]
    common = (*files, "--data", "mine.py:data", *MEASURED)
    code, alone, _ = run(*common, "--json", "one.json", "--per-sample", "one-{name}.csv")
    again, shown, said = run(*common, "--json", "two.json", "--per-sample", "two-{name}.csv", "--workers", "2")
    assert code == again == 1
    assert record("one.json") == record("two.json")  # to the last digit, notes and identities included
    assert len(record("two.json")["failures"]) == 3
    assert shown == alone  # in the order of the command
    for name in ("e0", "e3"):
        assert Path(f"one-{name}.csv").read_bytes() == Path(f"two-{name}.csv").read_bytes()
    for count, file in enumerate(files):
        assert f"{count + 1} of 7 networks" in said
        assert any(line.startswith(file) for line in said.splitlines())
    assert "spiritlevel: 3 of 7 weights files could not be measured, the first: broken.pt" in said.splitlines()[-1]
    # What is finished is kept, by however many it was measured; the rest is tried again.
    code, shown, said = run(*common, "--json", "two.json", "--workers", "2", "--quiet")
    assert (code, shown, record("two.json")) == (1, alone, record("one.json"))
    assert "4 of 7 kept from two.json" in run(*common, "--json", "two.json")[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("e0.pt", "e1.pt", "--workers", "0"), "--workers 0 must be at least 1"),
        (("e0.pt", "e1.pt", "--workers", "2", "--dtype", "float3"), "float3"),
    ],
)
def test_a_wrong_request_is_refused_once(run: Run, words: tuple[str, ...], said: str) -> None:
    code, out, err = run("--data", "mine.py:data", *MEASURED, *words)
    assert code == 2
    assert out == ""
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_worker_that_is_killed_is_a_row_and_the_others_are_measured(run: Run) -> None:
    files = ["killing.pt", "e0.pt", "e1.pt", "e2.pt"]
    common = ("--data", "mine.py:data", *MEASURED)
    code, shown, _ = run(*files, *common, "--workers", "2", "--json", "all.json", "--html", "p.html")
    assert code == 1
    found = record("all.json")
    assert [report["header"]["weights"] for report in found["reports"]] == files[1:]
    (failure,) = found["failures"]
    assert failure["weights"] == "killing.pt"
    assert "ended by SIGKILL, as the system does where memory runs out" in failure["reason"]
    assert "ended by SIGKILL" in " ".join(shown.split())
    assert "killing.pt was not measured" in Path("p.html").read_text(encoding="utf-8")
    run(*files[1:], *common, "--json", "one.json")
    assert record("one.json")["reports"] == found["reports"]


@pytest.mark.slow
def test_data_that_every_worker_draws_anew_is_found_out(run: Run) -> None:
    code, _, said = run("e0.pt", "e1.pt", "--data", "mine.py:other_data", *MEASURED, "--workers", "2")
    assert code == 1
    assert "1 of 2 weights files could not be measured" in said
    assert "found other data than the others" in said


@pytest.mark.slow
def test_workers_share_the_time(run: Run) -> None:
    code, _, said = run("e0.pt", "e1.pt", "e2.pt", "--data", "mine.py:data", "--seconds", "60", "--workers", "2")
    assert code == 0, said


# --- killed and resumed ----------------------------------------------------------------------------------------------

MANY = [f"run-{number // 8}-epoch-{number % 8}.pt" for number in range(24)]
COMMAND = [
    "measure", "mine.py:Net", *MANY, "--data", "mine.py:data", *MEASURED, "--json", "all.json", "--workers", "2",
]  # fmt: skip


def begun() -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "spiritlevel", *COMMAND]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="utf-8")
    return [int(word) for word in found.split() if b"spawn_main" in Path(f"/proc/{word}/cmdline").read_bytes()]


def finished() -> list[str]:
    return [each["header"]["weights"] for each in record("all.json")["reports"]] if os.path.exists("all.json") else []


def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
def test_killed_half_way_it_is_resumed_to_the_same_table(here: Path, run: Run) -> None:
    for seed, name in enumerate(MANY):
        save(name, seed)
    code, table, _ = run(*MANY, "--data", "mine.py:data", *MEASURED, "--json", "one.json")
    assert code == 0
    # The parent is killed: its workers end with it, and what was finished is on disk.
    parent = begun()
    until(lambda: len(finished()) >= 4)
    workers = children(parent.pid)
    assert len(workers) == 2
    parent.kill()
    parent.communicate()
    until(lambda: not any(os.path.exists(f"/proc/{worker}") for worker in workers), 20.0)
    kept = finished()
    assert 4 <= len(kept) < 24
    assert kept == [name for name in MANY if name in kept]
    # Ctrl-C in a terminal reaches all processes: one sentence, and no worker is left.
    parent = begun()
    until(lambda: len(finished()) >= len(kept) + 4)
    workers = children(parent.pid)
    os.killpg(parent.pid, signal.SIGINT)
    _, said = parent.communicate()
    assert parent.returncode == 130
    assert f"interrupted; {len(finished())} of 24 networks are finished in all.json" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)
    assert f"{len(kept)} of 24 kept from all.json" in said
    kept = finished()
    assert len(kept) < 24
    # A worker is killed: what it had in hand is a row with the reason, all else is measured.
    parent = begun()
    until(lambda: len(finished()) >= len(kept) + 2)
    os.kill(children(parent.pid)[0], signal.SIGKILL)
    _, said = parent.communicate()
    assert parent.returncode == 1
    assert len(finished()) == 23
    assert "ended by SIGKILL" in record("all.json")["failures"][0]["reason"]
    # And at last nothing happens.
    parent = begun()
    shown, said = parent.communicate()
    assert parent.returncode == 0, said
    assert "23 of 24 kept from all.json" in said
    assert shown == table
    found, whole = record("all.json"), record("one.json")
    for report in (*found["reports"], *whole["reports"]):
        del report["header"]["identity"]  # of which the code that tests have loaded is a part
    assert found == whole


if importlib.util.find_spec("ray"):

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore")
    def test_a_cluster_gives_what_one_process_gives(run: Run) -> None:
        files = ["e0.pt", "broken.pt", "e1.pt"]
        common = (*files, "--data", "mine.py:data", *MEASURED)
        assert run(*common, "--json", "one.json")[0] == 1
        code, _, said = run(*common, "--json", "two.json", "--ray", "local")
        assert code == 1, said
        assert record("one.json") == record("two.json")
        assert "3 of 3 networks" in said
