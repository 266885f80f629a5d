"""A sample is known by its index in the data as given, whatever draw or sampler chose it, wherever it is shown."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset

import spiritlevel as sl
from spiritlevel import page
from spiritlevel.analyses.sample_groups import on_samples
from spiritlevel.cli import main
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.page import builder
from spiritlevel.page.parts import PageTable
from spiritlevel.results import Report
from spiritlevel.values.errors import SpiritlevelError

COUNT, DRAWN = 60, 13
CHOSEN = [31, 4, 17, 8, 25, 12, 39, 0, 22, 6, 58, 41, 9, 33, 50]


def arrays() -> tuple[Tensor, Tensor]:
    """Sorted by class, so that a stratified draw takes from all over the data."""
    generator = torch.Generator().manual_seed(5)
    return torch.randn(COUNT, 4, generator=generator).double(), torch.arange(COUNT) // 20


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).double()


def losses_by_hand(indices: Tensor) -> Tensor:
    x, y = arrays()
    with torch.no_grad():
        return F.cross_entropy(network()(x[indices]), y[indices], reduction="none")


class Lists(torch.utils.data.Dataset):
    """A data set that takes a list of indices, and gives a batch."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        x, y = arrays()
        return x[indices], y[indices]


def batches() -> list[tuple[Tensor, Tensor]]:
    x, y = arrays()
    return [(x[:7], y[:7]), (x[7:40], y[7:40]), (x[40:], y[40:])]


FORMS: dict[str, Callable[[], Any]] = {
    "tensors": arrays,
    "dataset": lambda: TensorDataset(*arrays()),
    "loader": lambda: DataLoader(TensorDataset(*arrays()), batch_size=8, shuffle=True),
    "batches": batches,
    "sampler": lambda: DataLoader(TensorDataset(*arrays()), sampler=SubsetRandomSampler(CHOSEN), batch_size=4),
    "batch sampler": lambda: DataLoader(
        TensorDataset(*arrays()), batch_sampler=[CHOSEN[:5], CHOSEN[5:6], CHOSEN[6:]]
    ),
    "lists of indices": lambda: DataLoader(
        Lists(), sampler=BatchSampler(SubsetRandomSampler(CHOSEN), 4, False), batch_size=None
    ),
}  # fmt: skip


@pytest.mark.parametrize("samples", [None, DRAWN])
@pytest.mark.parametrize("form", FORMS)
def test_each_number_is_that_of_the_sample_it_names(form: str, samples: int | None) -> None:
    problem = sl.Problem(network(), FORMS[form](), samples=samples)
    found = sl.per_sample(problem, ["index", "loss"])
    torch.testing.assert_close(found["loss"], losses_by_hand(found["index"]), rtol=1e-12, atol=0)
    report = sl.measure(problem, "output_margin")
    assert report.sample_indices is not None
    assert torch.equal(report.sample_indices, found["index"])
    everything = CHOSEN if form in ("sampler", "batch sampler", "lists of indices") else range(COUNT)
    assert set(found["index"].tolist()) <= set(everything)
    assert len(set(found["index"].tolist())) == (samples or len(everything))


def test_a_group_of_samples_keeps_their_indices() -> None:
    problem = open_problem(sl.Problem(network(), arrays(), samples=DRAWN))
    index = sl.per_sample(problem, "index")["index"]
    kept = torch.arange(DRAWN) % 3 == 1
    for part in (on_samples(problem, kept), problem.on_every(4)):
        found = sl.per_sample(part, ["index", "loss"])
        torch.testing.assert_close(found["loss"], losses_by_hand(found["index"]), rtol=1e-12, atol=0)
    assert torch.equal(sl.per_sample(on_samples(problem, kept), "index")["index"], index[kept])


@pytest.fixture
def report() -> Report:
    return sl.measure(sl.Problem(network(), arrays(), samples=DRAWN, seed=3), ["hessian_trace", "aceht"])


def largest(report: Report) -> int:
    """The sample with the largest trace, from all of the data by another way."""
    assert report.sample_indices is not None
    every = sl.per_sample(sl.Problem(network(), arrays()), "hessian_trace")["hessian_trace"]
    return max(report.sample_indices.tolist(), key=lambda index: float(every[index]))


def table_of(report: Report) -> PageTable:
    section = next(one for one in builder.page_of(page.of_reports(report)).sections if one.name == "samples")
    return next(part for part in section.parts if isinstance(part, PageTable))


def test_page_and_frame_name_the_sample_of_the_data(report: Report) -> None:
    assert max(report.sample_indices.tolist()) >= DRAWN  # else the place in the draw would do
    expected = largest(report)
    shown = table_of(report)
    assert shown.rows[0].cells[0].value == expected
    assert "index in the data" in shown.caption
    figure = builder.figures(page.of_reports(report))["trace_against_aceht"]
    points = next(rows for rows in figure.data if rows.name == "samples").values
    assert {row["sample"] for row in points} == set(report.sample_indices.tolist())
    frame = report.to_pandas("sample")
    assert (frame.index.name, int(frame["hessian_trace"].idxmax())) == ("sample", expected)


def test_a_saved_report_keeps_the_indices_and_an_older_one_claims_none(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "r.json")
    again = Report.load(tmp_path / "r.json")
    assert again.sample_indices.tolist() == report.sample_indices.tolist()
    record = json.loads((tmp_path / "r.json").read_text())
    del record["sample_indices"]  # as version 0.2 wrote it
    (tmp_path / "old.json").write_text(json.dumps(record))
    old = Report.load(tmp_path / "old.json")
    assert old.sample_indices is None
    assert old.to_pandas("sample").index.name == "measured"
    assert "place among the measured samples" in table_of(old).caption
    assert old.record()["sample_indices"] is None
    record["sample_indices"] = [1, 2]
    with pytest.raises(SpiritlevelError, match="must have 2 entries each"):
        Report.from_record(record)


def test_files_of_samples_carry_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x, y = arrays()
    np.savez("data.npz", x=x.float().numpy(), y=y.numpy())
    Path("net.py").write_text(
        "from torch import nn\nnet = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))\n"
    )
    words = ["measure", "net.py:net", "--data", "data.npz", "--samples", str(DRAWN), "-m", "output_margin", "-q"]
    for file in ("s.npz", "s.csv"):
        assert main([*words, "--per-sample", file, "--json", "r.json"]) == 0
    indices = Report.load("r.json").sample_indices.tolist()
    assert max(indices) >= DRAWN
    assert np.load("s.npz")["sample"].tolist() == indices
    with open("s.csv", newline="") as stream:
        assert [int(row["sample"]) for row in csv.DictReader(stream)] == indices


def test_refusals_name_the_sample_of_the_data() -> None:
    x, y = arrays()
    draw = sl.per_sample(sl.Problem(network(), (x, y), samples=DRAWN), "index")["index"]
    bad = int(draw[7])
    assert bad != 7
    x[bad] = torch.inf
    with pytest.raises(SpiritlevelError, match=rf"not finite \(first at sample {bad}\)"):
        sl.measure(sl.Problem(network(), (x, y), samples=DRAWN), "output_margin")


def test_a_report_made_by_hand_may_leave_the_indices_out() -> None:
    made = Report({}, per_sample={"output_margin": torch.ones(3)})
    assert made.to_pandas("sample").index.tolist() == [0, 1, 2]
    assert dataclasses.replace(made, sample_indices=torch.tensor([5, 7, 9])).to_pandas("sample").index.tolist() == [
        5, 7, 9,
    ]  # fmt: skip
