"""Several ranks give the numbers of one process, whatever they are asked and however the data falls to them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

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


def in_training(case: str, count: int, batch_size: int) -> Record:
    """Samples of a batch share its statistics, so that only whole batches can be shared out."""
    problem = NETWORKS[case].problem(count=count, batch_size=batch_size, mode="train")
    return sl.measure(problem).record()


def of_batches(case: str, count: int, batch_size: int) -> Record:
    """Batches of several sizes, of which nobody knows beforehand how many there are."""
    inputs, labels = NETWORKS[case].data(count)
    batches = [(inputs[:3], labels[:3]), (inputs[3:9], labels[3:9]), (inputs[9:], labels[9:])]
    return sl.measure(sl.Problem(NETWORKS[case].model(), batches), "papers").record()


def of_a_loader(case: str, count: int, batch_size: int) -> Record:
    data = torch.utils.data.TensorDataset(*NETWORKS[case].data(count))
    loader = torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)
    return sl.measure(sl.Problem(NETWORKS[case].model(), loader)).record()


def by_a_deadline(case: str, count: int, batch_size: int) -> Record:
    return sl.measure(made(case, count, batch_size), "papers", seconds=2.0, tolerance=1e-4).record()


def of_wrong_data(case: str, count: int, batch_size: int) -> str:
    inputs, labels = NETWORKS[case].data(count)
    inputs[count - 2] = math.nan
    try:
        sl.measure(sl.Problem(NETWORKS[case].model(), (inputs, labels), batch_size=batch_size))
    except sl.SpiritlevelError as error:
        return str(error)
    return "nothing was wrong"


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
def test_data_in_other_forms(tmp_path: Path) -> None:
    check(
        3, [(in_training, "batch_norm_1d", 22, 4), (of_batches, "gelu", 21, 0), (of_a_loader, "mlp", 21, 4)], tmp_path
    )


def test_what_is_wrong_in_one_part_of_the_data_is_said_alike_by_all(tmp_path: Path) -> None:
    for found in on_ranks(2, of_wrong_data, tmp_path, "mlp", 11, 4):
        assert found == of_wrong_data("mlp", 11, 4)
        assert "first at sample 9" in found


@pytest.mark.slow
def test_a_deadline_is_the_same_for_all_ranks(tmp_path: Path) -> None:
    first, *others = on_ranks(3, by_a_deadline, tmp_path, "gelu", 25, 4)
    assert isinstance(first, dict), first
    assert all(isinstance(found, dict) and not differences(found, first) for found in others)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_every_network(tmp_path: Path) -> None:
    check(2, [(report_of, case, 9, 4) for case in NETWORKS], tmp_path)
