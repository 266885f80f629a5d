"""Several ranks give the numbers of one process, whatever they are asked and however the data falls to them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spiritlevel as sl
from tests.networks import PIECEWISE_LINEAR, SMOOTH
from tests.rank_processes import on_ranks

NEAR = 1e-10  # of float64 numbers, which are added in another order
# What is not of the problem but of the run: how long it took, how much memory was free, and how many steps a search
# along a line took, where rounding decides the last one.
OF_THE_RUN = re.compile(r"/(wall_time|free_bytes|seconds|measurements|cost/passes/\w+)$")

NETWORKS = {**PIECEWISE_LINEAR, **SMOOTH}
Record = dict[str, Any]


def leaves(record: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every number and word of a record with where it stands."""
    if isinstance(record, dict):
        for key, value in record.items():
            yield from leaves(value, f"{path}/{key}")
    elif isinstance(record, (list, tuple)):
        for place, value in enumerate(record):
            yield from leaves(value, f"{path}/{place}")
    else:
        yield path, record


def differences(found: Record, expected: Record) -> list[str]:
    """Name what differs between two records by more than the order of a sum."""
    ours, theirs = dict(leaves(found)), dict(leaves(expected))
    return [
        f"{path}: {ours.get(path)!r} for {theirs.get(path)!r}"
        for path in dict.fromkeys([*ours, *theirs])
        if not OF_THE_RUN.search(path) and not _same(ours.get(path), theirs.get(path))
    ]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=NEAR, abs_tol=1e-12)
    return bool(one == other)


def made(case: str, count: int, batch_size: int) -> sl.Problem:
    return NETWORKS[case].problem(count=count, batch_size=batch_size)


def report_of(case: str, count: int, batch_size: int, names: str = "default") -> Record:
    problem = made(case, count, batch_size)
    samples = sl.per_sample(problem, ["loss", "hessian_trace", "output_margin", "index"])
    return {**sl.measure(problem, names).record(), "samples": {name: own.tolist() for name, own in samples.items()}}


def spectrum_of(case: str, count: int, batch_size: int, operator: str = "hessian") -> Record:
    return sl.spectrum(made(case, count, batch_size), probes=3, steps=6, operator=operator).record()


def audit_of(case: str, count: int, batch_size: int) -> Record:
    return sl.audit(made(case, count, batch_size)).record()


def comparison_of(case: str, count: int, batch_size: int) -> Record:
    problem = made(case, count, batch_size)
    return sl.compare({"a": problem, "b": problem.on_network(NETWORKS[case].model(1))}).record()


def several(questions: list[tuple[Any, ...]]) -> list[Record]:
    """Answer several questions in one set of processes."""
    return [function(*arguments) for function, *arguments in questions]


def check(size: int, questions: list[tuple[Any, ...]], folder: Path) -> None:
    expected = several(questions)
    for rank, answers in enumerate(on_ranks(size, several, folder, questions)):
        assert isinstance(answers, list), answers
        for question, found, known in zip(questions, answers, expected):
            assert not differences(found, known), (rank, question)


def test_two_ranks_give_what_one_process_does(tmp_path: Path) -> None:
    questions = [
        (report_of, "mlp", 11, 4),  # three batches, the last one short
        (report_of, "gelu", 11, 4),  # below its GELU traces are sampled
        (spectrum_of, "mlp", 9, 4),
    ]
    check(2, questions, tmp_path)


def test_ranks_without_a_batch_learn_from_the_others(tmp_path: Path) -> None:
    check(3, [(report_of, "gelu", 7, 4), (report_of, "mlp", 3, 4), (spectrum_of, "gelu", 3, 4)], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [3, 11, 25])
def test_all_questions(size: int, count: int, tmp_path: Path) -> None:
    questions: list[tuple[Any, ...]] = []
    for case in ("mlp", "gelu"):
        questions += [
            (report_of, case, count, 4, "papers"),
            (audit_of, case, count, 4),
            (comparison_of, case, count, 4),
            (spectrum_of, case, count, 4),
            (spectrum_of, case, count, 4, "ggn"),
            (spectrum_of, case, count, 4, "batch_variance"),
        ]
    check(size, questions, tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_every_network(tmp_path: Path) -> None:
    check(2, [(report_of, case, 9, 4) for case in NETWORKS], tmp_path)
