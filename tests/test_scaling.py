"""The page on scaling is what its record, the declarations and the formula give, which agree with what is counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn

import spiritlevel as sl
from benchmarks.scaling import __main__ as entry
from benchmarks.scaling import formula, points
from benchmarks.scaling.page import page, rate_of

MACHINES = formula.Machines(rate=5e13)
TOP, TRACE = "hessian_top_eigenvalue", "hessian_trace"


def at(measure: str, parameters: float, count: int, samples: int = 1024) -> formula.Prediction:
    return formula.predicted(
        measure, formula.Transformer(parameters), MACHINES, ranks=count, samples=samples, tokens=1024
    )


def problem(width: int = 40) -> sl.Problem:
    torch.manual_seed(0)
    layers = [nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)]
    return sl.Problem(nn.Sequential(*layers), (torch.randn(200, 20), torch.randint(4, (200,))))


@pytest.fixture
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def test_the_committed_page_is_the_generated_one() -> None:
    record, large = entry.read(entry.RECORD), entry.read(entry.LARGE)
    assert entry.PAGE.read_text(encoding="utf-8") == page(record, large), "run python -m benchmarks.scaling page"
    assert [point["ranks"] for point in record["ranks"]] == [1, 2, 3]
    assert all(point["values"] == record["ranks"][0]["values"] for point in record["ranks"])
    assert 1e13 < rate_of(record, large) < 1e15


@pytest.mark.parametrize("measures", [[TRACE], ["normalized_sharpness"], [TOP], ["fisher_rao_norm"]])
def test_what_is_planned_to_be_added_up_is_what_is_added_up(one_rank: None, measures: list[str]) -> None:
    planned = sl.plan(problem(), measures)
    with sl.over_ranks(), points.bytes_added() as added:
        report = sl.measure(problem(), measures)
    assert report.header.passes is not None
    # A search makes as many products as it takes; the plan counts the usual number.
    usual, made = planned.measures[-1].sweeps.get("product", 0.0), report.header.passes.get("hessian product", 0.0)
    expected = planned.reduced_bytes + 8 * planned.parameters * (made - usual)
    # Not every measure that costs a gradient adds one up: some only need a number of each sample from it.
    assert 0.7 * expected <= added[0] <= 1.1 * expected


def test_a_plan_counts_the_ranks_it_is_made_on(one_rank: None) -> None:
    with sl.over_ranks():
        assert sl.plan(problem(), TRACE).ranks == 1
    assert sl.plan(problem(), TRACE, ranks=4).ranks == 4


def test_the_formula_holds_as_many_vectors_as_are_counted() -> None:
    """A wide network, in which nothing counts but what has the parameters' size."""
    planned = sl.plan(problem(width=600), TOP).memory
    assert planned.peak / 1.5 <= formula.vectors_held(("eigen",), 600 * 625, 1e12)[0] <= 1.5 * planned.peak


@pytest.mark.parametrize("measure", [TOP, TRACE])
def test_more_gpus_are_quicker_and_never_as_much_as_they_are_more(measure: str) -> None:
    alone = at(measure, 1e9, 1)
    assert alone.adding == alone.gathering == 0.0
    assert alone.seconds == alone.computing
    for few, more in ((1, 8), (8, 64), (64, 1024)):
        assert at(measure, 1e9, few).seconds > at(measure, 1e9, more).seconds
        assert at(measure, 1e9, few).seconds < at(measure, 1e9, more).seconds * more / few
    # Beyond one sample a rank nothing computes faster.
    assert at(measure, 1e9, 1024).computing == at(measure, 1e9, 4096).computing


def test_what_does_not_fit_is_sharded_and_traffic_is_counted() -> None:
    small, large = at(TOP, 1e8, 64), at(TOP, 1e10, 64)
    assert not small.sharded
    assert small.gathering == 0.0
    assert small.bytes < MACHINES.memory
    assert large.sharded
    assert large.gathering > 0.0
    assert not at(TRACE, 1e11, 1).fits(MACHINES)
    # In a ring every rank sends nearly twice what is added up, however many there are.
    size = 8 * 20 * 1e8
    assert small.adding == pytest.approx(2 * 63 / 64 * size / MACHINES.between, rel=0.25)


def test_a_decoder_has_about_the_parameters_asked_for(tmp_path: Path) -> None:
    model = points.Decoder(3e6, vocabulary=512, tokens=16)
    assert sum(tensor.numel() for tensor in model.parameters()) == pytest.approx(3e6, rel=0.3)
    logits = model(torch.arange(16)[None])
    assert logits.shape == (1, 16, 512)
    later = model(torch.cat([torch.arange(8), torch.zeros(8, dtype=torch.long)])[None])
    assert torch.allclose(logits[:, :8], later[:, :8], atol=1e-5)  # a position sees none behind it


@pytest.mark.slow
def test_a_point_goes_into_the_record(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    asked = ["--parameters", "2e5", "--device", "cpu", "--samples", "2", "--tokens", "8", "--seconds", "20"]
    entry.main(["model", *asked, "--record", str(file)])
    (point,) = json.loads(file.read_text(encoding="utf-8"))["models"]
    assert point[TOP]["interval"][0] <= point[TOP]["value"] <= point[TOP]["interval"][1]
    assert point[TRACE]["status"] == "ok"
    assert "Measured: one GPU" in page({**entry.read(entry.RECORD), "models": [point]}, entry.read(entry.LARGE))
