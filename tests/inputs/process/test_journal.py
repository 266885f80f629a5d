"""A run that was interrupted goes on from its journal and ends as it would have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import spiritlevel as sl
from spiritlevel.inputs.process.ranks import kept_in
from spiritlevel.values.errors import SpiritlevelError
from tests.networks import SMOOTH
from tests.rank_processes import on_ranks

Question = Callable[[sl.Problem], Any]


class Counting:
    """Runs the network, counts how often, and stops at some call."""

    def __init__(self, last: float = float("inf")) -> None:
        self.calls, self.last = 0, last

    def __call__(self, model: Any, batch: Any) -> Any:
        self.calls += 1
        if self.calls > self.last:
            raise KeyboardInterrupt
        return model(batch[0])


def spectrum(problem: sl.Problem) -> Any:
    return without_times(sl.spectrum(problem, probes=3, steps=8, keep_graphs=False).record())


def sampled(problem: sl.Problem) -> Any:
    return without_times(sl.measure(problem, ["hessian_trace", "rho_sum"], tolerance=1e-3).record())


def without_times(record: dict[str, Any]) -> dict[str, Any]:
    record["header"]["wall_time"] = None
    record.get("plan", {}).pop("free_bytes", None)
    return record


def problem_with(forward: Counting) -> sl.Problem:
    return SMOOTH["gelu"].problem(count=23, forward=forward)


@pytest.mark.parametrize("question", [spectrum, sampled])
@pytest.mark.parametrize("share", [0.3, 0.8])
def test_resumed_runs_equal_uninterrupted_ones(question: Question, share: float, tmp_path: Path) -> None:
    whole = Counting()
    expected = question(problem_with(whole))
    file = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt), kept_in(file, "same"):
        question(problem_with(Counting(share * whole.calls)))
    assert file.exists()
    rest = Counting()
    with kept_in(file, "same"):
        found = question(problem_with(rest))
    assert found == expected
    assert rest.calls < whole.calls
    assert not file.exists()


def test_what_was_cut_off_in_writing_is_swept_again(tmp_path: Path) -> None:
    whole = Counting()
    expected = spectrum(problem_with(whole))
    file = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt), kept_in(file, "same"):
        spectrum(problem_with(Counting(0.8 * whole.calls)))
    file.write_bytes(file.read_bytes()[:-100])
    with kept_in(file, "same"):
        assert spectrum(problem_with(Counting())) == expected


def test_the_state_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "state"
    with pytest.raises(KeyboardInterrupt), kept_in(file, "one"):
        spectrum(problem_with(Counting(60)))
    with pytest.raises(SpiritlevelError, match="another network, data, settings or versions"), kept_in(file, "other"):
        pass
    file.write_bytes(b"something else altogether")
    with pytest.raises(SpiritlevelError, match="not the state of a run"), kept_in(file, "one"):
        pass


def resumed(file: Path, question: Question) -> Any:
    with kept_in(file, "same"):
        return question(problem_with(Counting()))


@pytest.mark.slow
@pytest.mark.parametrize("question", [spectrum, sampled])
def test_ranks_go_on_where_one_process_stopped(question: Question, tmp_path: Path) -> None:
    whole, file = Counting(), tmp_path / "state"
    expected = question(problem_with(whole))
    with pytest.raises(KeyboardInterrupt), kept_in(file, "same"):
        question(problem_with(Counting(0.7 * whole.calls)))
    for found in on_ranks(2, resumed, tmp_path, file, question):
        assert found["header"]["loss"] == expected["header"]["loss"]
        assert found.keys() == expected.keys(), found
