"""Pieces of work by processes: each comes back as it ends, and what ends a process takes down its piece alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import spiritlevel
from spiritlevel.inputs.process.workers import Ended, WorkerLost, Workers, ended, threads_each
from spiritlevel.values.errors import UsageError
from tests.inputs.process.pieces import done

ROOT = Path(spiritlevel.__file__).resolve().parents[2]


def by_processes(pieces: list[str], count: int) -> dict[str, Ended]:
    with closing(ended(done, pieces, Workers(engine="processes", count=count))) as each_ended:
        return {each.piece: each for each in each_ended}


def gone(process: int) -> bool:
    """Whether a process is no more, or only waits to be looked at."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_what_goes_wrong_is_one_pieces_own() -> None:
    pieces = ["a", "die", "b", "exit 3", "fail it", "peculiar", "sys.exit 0", "interrupt", "c", "d"]
    found = by_processes(pieces, 2)
    assert list(found) != []
    assert set(found) == set(pieces)
    for piece in ("a", "b", "interrupt", "c", "d"):  # a worker does not answer the terminal: its parent does
        assert found[piece].result[0] == piece
    assert isinstance(found["die"].error, WorkerLost)
    assert "ended by SIGKILL, as the system does where memory runs out" in str(found["die"].error)
    assert "exit code 3" in str(found["exit 3"].error)
    with pytest.raises(ValueError, match="it"):
        assert found["fail it"].result
    assert "Peculiar: nothing" in str(found["peculiar"].error)
    assert isinstance(found["sys.exit 0"].error, SystemExit)
    # Every process did several pieces, those that died were replaced, and none was this one.
    workers = {each.found[1] for each in found.values() if each.error is None}
    assert os.getpid() not in workers
    assert 2 <= len(workers) <= 4
    assert all(map(gone, workers))


def test_pieces_are_taken_when_a_worker_is_free() -> None:
    taken: list[str] = []

    def pieces() -> object:
        for word in "abcdef":
            taken.append(word)
            yield word

    with closing(ended(done, pieces(), Workers(engine="processes", count=1))) as each_ended:
        assert next(each_ended).piece == "a"
        assert taken == ["a", "b"]
    assert taken == ["a", "b"]


def test_closing_ends_a_worker_at_work(tmp_path: Path) -> None:
    note = tmp_path / "process"
    with closing(ended(done, ["a", f"wait {note}"], Workers(engine="processes", count=2))) as each_ended:
        assert next(each_ended).piece == "a"
        assert until(note.exists)
        process = int(note.read_text(encoding="utf-8") or 0)
    assert gone(process)


def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    note = tmp_path / "process"
    script = (
        "from spiritlevel.inputs.process.workers import Workers, ended\n"
        "from tests.inputs.process.pieces import done\n"
        f"list(ended(done, ['wait {note}'], Workers(engine='processes', count=1)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    assert until(lambda: note.exists() and note.read_text(encoding="utf-8") != "")
    process = int(note.read_text(encoding="utf-8"))
    assert not gone(process)
    parent.kill()
    parent.wait()
    assert until(lambda: gone(process), 10.0)


def test_here_pieces_are_done_in_order_and_failures_come_back() -> None:
    found = list(ended(done, ["a", "fail it", "b"], Workers()))
    assert [each.piece for each in found] == ["a", "fail it", "b"]
    assert isinstance(found[1].error, ValueError)
    assert found[2].result == ("b", os.getpid())


def test_threads_are_divided_unless_somebody_chose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.get_num_threads", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert [threads_each(count) for count in (1, 3, 8, 20)] == [8, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert threads_each(4) == 8


@pytest.mark.parametrize("settings", [{"engine": "cloud"}, {"engine": "processes", "count": 0}])
def test_who_cannot_work_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        Workers(**settings)
