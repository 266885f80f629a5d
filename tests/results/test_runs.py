"""Runs, places in training and seeds, from headers, folders, names and tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from spiritlevel.results import Report
from spiritlevel.results.runs import Runs, runs_of
from spiritlevel.results.runs_table import described_by
from spiritlevel.values.errors import UsageError
from tests.analyses.made_reports import made


def reports(labels: list[str]) -> dict[str, Report]:
    return {label: made(label, {}) for label in labels}


def found_in(labels: list[str]) -> Runs:
    return runs_of(reports(labels))


def test_folders_are_runs_and_seeds_are_told_by_their_names() -> None:
    labels = [f"{kind}/seed-{seed}/epoch-{epoch}.pt" for kind in ("sam", "sgd") for seed in (0, 1) for epoch in (2, 10)]
    runs = found_in([*labels, "other/epoch-10.pt"])
    assert runs.names == ["other", "sam/seed-0", "sam/seed-1", "sgd/seed-0", "sgd/seed-1"]
    assert runs.members == {"sam": ["sam/seed-0", "sam/seed-1"], "sgd": ["sgd/seed-0", "sgd/seed-1"]}
    assert runs.ends["sam/seed-1"] == "sam/seed-1/epoch-10.pt"
    assert runs.where("sam/seed-1/epoch-2.pt") == "sam/seed-1 at epoch 2"
    assert "other" not in runs.groups, "a run alone has no band"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["a_s0_ep1.pt", "a_s0_ep2.pt", "a_s1_ep1.pt", "a_s1_ep2.pt"], {"a_s0", "a_s1"}),
        (["x/checkpoint-5/m.pt", "x/checkpoint-9/m.pt", "y/checkpoint-5/m.pt", "y/checkpoint-9/m.pt"], {"x", "y"}),
        (["run/epoch-1.pt", "run/epoch-2.pt"], {""}),
        (["x/checkpoint-5/m.pt", "x/checkpoint-9/m.pt"], {""}),
        (["seed1/final.pt", "seed2/final.pt"], {""}),
        (["width-64.pt", "width-128.pt"], {""}),
    ],
)
def test_runs_are_read_from_names(labels: list[str], expected: set[str]) -> None:
    assert set(found_in(labels).runs.values()) == expected


def test_networks_of_folders_of_their_own_follow_each_other_in_no_training() -> None:
    runs = found_in(["seed1/final-1.pt", "seed2/final-2.pt", "seed3/final-3.pt"])
    assert not runs.in_training
    assert runs.where("seed2/final-2.pt") == "seed2/final-2.pt"
    assert found_in(["run/epoch-1.pt", "run/epoch-2.pt"]).where("run/epoch-2.pt") == "epoch 2"


def test_a_mere_number_is_a_place_in_training_where_several_runs_have_it() -> None:
    assert found_in(["a/1.pt", "a/2.pt", "b/1.pt", "b/2.pt"]).in_training
    assert not found_in(["width-64.pt", "width-128.pt"]).in_training
    apart = found_in(["a/net-1.pt", "a/net-2.pt", "b/net-3.pt", "b/net-4.pt"])
    assert apart.several
    assert not apart.in_training
    assert apart.ends == {}, "what is no training has no end"
    assert found_in(["ckpt-1.pt", "ckpt-2.pt"]).in_training


def test_headers_come_before_names() -> None:
    both = {
        f"x/epoch-{place}.pt": made("w", {}, run=f"r{place % 2}", epoch=100 + place, run_group="g")
        for place in range(4)
    }
    runs = runs_of(both)
    assert (runs.unit, runs.places["x/epoch-3.pt"], runs.runs["x/epoch-3.pt"]) == ("epoch", 103, "r1")
    assert runs.members == {"g": ["r0", "r1"]}


def test_networks_at_one_place_of_one_run_are_no_training() -> None:
    runs = runs_of({f"{label}.pt": made("w", {}, epoch=10) for label in "abc"})
    assert not runs.in_training
    assert runs.where("b.pt") == "b.pt"


def test_a_table_says_which_run_and_where(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("path,run,epoch,group,test_accuracy\nout/a.json,one,3,g,0.9\nout/b.json,two,,g,\nc.json,,,,\n")
    found = described_by(reports(["a.json", "b.json"]), table)
    heads = [(r.header.run, r.header.epoch, r.header.run_group, r.header.test_accuracy) for r in found.values()]
    assert heads == [("one", 3.0, "g", 0.9), ("two", None, "g", None)]
    assert Report.from_record(found["a.json"].record()).header.run == "one"
    by_mapping = described_by(reports(["a.json", "b.json"]), {"a.json": "one", "b.json": {"run": "two", "step": 7}})
    assert [(r.header.run, r.header.step) for r in by_mapping.values()] == [("one", None), ("two", 7.0)]


def test_a_data_frame_is_a_table() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"path": ["a.json", "b.json"], "run": ["x", "y"], "epoch": [1, float("nan")]})
    found = described_by(reports(["a.json", "b.json"]), frame)
    assert [(r.header.run, r.header.epoch) for r in found.values()] == [("x", 1.0), ("y", None)]


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"z.json": "x"}, "the table of runs has no row for a.json"),
        ({"x/a.json": "x", "y/a.json": "y"}, "has no row for a.json"),
        ({"a.json": {"run": "x", "epoc": 1}}, "has a column 'epoc'; did you mean epoch"),
        ({"a.json": {"epoch": "three"}}, "says epoch 'three' of a.json; give a number"),
        ({"": "x"}, "has a row without a path"),
        ({}, "holds no rows"),
        ("none.csv", "none.csv cannot be read as a table of runs"),
        (3, "runs must be a CSV file, a mapping from path to run, or a data frame, not a int"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused(table: Mapping[str, object] | str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        described_by(reports(["a.json"]), table)
