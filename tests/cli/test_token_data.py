"""Lines of tokens and of text as data for a task: the loss that follows, padding, and what is refused by its line."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from spiritlevel.cli.tasks import task_named
from spiritlevel.cli.text_records import TextRecord, read_text_records, records_of
from spiritlevel.cli.token_data import IGNORED, TokenReader
from spiritlevel.values.errors import SpiritlevelError
from tests.cli.material import Run, strict

NETWORKS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = nn.Embedding(9, 6)
        self.head = nn.Linear(6, 9)
    def forward(self, input_ids, attention_mask=None):
        return self.head(torch.relu(self.embed(input_ids)))

class Classes(Words):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
    def forward(self, input_ids, attention_mask=None):
        seen = torch.relu(self.embed(input_ids))
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        return self.head((seen * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))

def rows():
    return [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6]}]

def sized(length=3):
    return [{"input_ids": list(range(length))}, {"input_ids": [5, 6]}]

def tensors(label=0):
    return torch.randint(0, 9, (4, 5)), torch.randint(0, 9, (4, 5))
"""
ROWS = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6]}, {"input_ids": [7, 8, 1], "labels": [7, -100, 1]}]
LABELLED = [{"input_ids": [1, 2, 3], "label": 2}, {"input_ids": [4], "label": 0}, {"input_ids": [5, 6], "labels": 1}]


@pytest.fixture
def folder(here: Path) -> Path:
    (here / "words.py").write_text(textwrap.dedent(NETWORKS), encoding="utf-8")
    for name, rows in (("rows", ROWS), ("labelled", LABELLED)):
        lines = "\n\n".join(json.dumps(row) for row in rows)  # empty lines are none of the data
        (here / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    return here


def network(folder: Path, name: str) -> Any:
    space: dict[str, Any] = {}
    exec(compile((folder / "words.py").read_text(), "words.py", "exec"), space)
    return space[name]()


def test_next_tokens_of_ragged_rows(run: Run, folder: Path) -> None:
    ran = run("measure", "words.py:Words", "--task", "causal-lm", "--data", "rows.jsonl", "-m", "cheap", "--json", "-")
    header = strict(ran.out)["header"]
    model = network(folder, "Words")
    losses = []
    for row in ROWS:
        ids, labels = torch.tensor(row["input_ids"]), torch.tensor(row.get("labels", row["input_ids"]))
        losses.append(F.cross_entropy(model(ids)[:-1], labels[1:], reduction="none")[labels[1:] != IGNORED])
    assert header["loss"] == pytest.approx(torch.cat(losses).mean().item(), rel=1e-5)
    assert (header["loss_name"], header["samples"]) == ("next_token", 3)
    assert header["request"]["task"] == "causal-lm"
    assert header["notes"][0] == "3 sequences of up to 4 tokens, for causal-lm."
    assert header["notes"][1].startswith("2 are padded to that length")


def test_classes_of_ragged_rows(run: Run, folder: Path) -> None:
    words = ("--task", "classification", "--data", "labelled.jsonl", "-m", "cheap", "--json", "-")
    header = strict(run("measure", "words.py:Classes", *words).out)["header"]
    model = network(folder, "Classes")
    rows = [(torch.tensor([row["input_ids"]]), row.get("label", row.get("labels"))) for row in LABELLED]
    losses = [F.cross_entropy(model(ids), torch.tensor([label])) for ids, label in rows]
    assert header["loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)
    assert header["loss_name"] == "cross_entropy"


def test_rows_of_a_function(run: Run, folder: Path) -> None:
    words = ("--task", "causal-lm", "-m", "output_margin", "--json", "-")
    found = strict(run("measure", "words.py:Words", *words, "--data", "words.py:rows").out)
    assert found["header"]["samples"] == 2
    # An argument that the function takes goes there, even under a name that says how text is read.
    sized = strict(run("measure", "words.py:Words", *words, "--data", "words.py:sized", "--data-args", "length=5").out)
    assert sized["header"]["notes"][0] == "2 sequences of up to 5 tokens, for causal-lm."
    tensors = ("--task", "masked-lm", "--data", "words.py:tensors", "--json", "-", "-m", "output_margin")
    assert strict(run("measure", "words.py:Words", *tensors).out)["header"]["loss_name"] == "same_token"
    refused = run("measure", "words.py:Words", *tensors, "--data-args", "length=5")
    assert "words.py:tensors gave no text, and --data-args length is for text" in refused.sentence


def test_the_task_goes_before_a_lent_loss_and_behind_one_that_is_said(run: Run, folder: Path) -> None:
    words = ("measure", "words.py:Words", "--data", "rows.jsonl", "-m", "output_margin")
    assert run(*words, "--task", "causal-lm", "--json", "r.json").code == 0
    other = ("measure", "words.py:Classes", "--data", "labelled.jsonl", "--task", "classification")
    assert strict(run(*other, "--like", "r.json", "--json", "-").out)["header"]["loss_name"] == "cross_entropy"
    said = run(*words, "--task", "causal-lm", "--loss", "same_token", "--json", "-")
    assert strict(said.out)["header"]["loss_name"] == "same_token"
    (folder / "o.toml").write_text('task = "causal-lm"\ndata = "rows.jsonl"\n', encoding="utf-8")
    configured = run("measure", "words.py:Words", "--config", "o.toml", "-m", "output_margin", "--json", "-")
    assert strict(configured.out)["header"]["loss_name"] == "next_token"


@pytest.mark.parametrize(
    ("line", "task", "sentence"),
    [
        ("{'text': 1}", "causal-lm", "bad.jsonl, line 2, is not JSON"),
        ("[1, 2]", "causal-lm", "bad.jsonl, line 2, is a list; each line is an object"),
        ('{"tokens": [1]}', "causal-lm", "line 2, has no input_ids, and the first one has"),
        ('{"input_ids": []}', "causal-lm", "line 2, has no list of whole numbers in its field 'input_ids'"),
        ('{"input_ids": [1, -2]}', "causal-lm", "line 2, has the token -2"),
        ('{"input_ids": [1, 2], "labels": [1]}', "causal-lm", "line 2, has 1 labels for 2 tokens"),
        ('{"input_ids": [1, 2]}', "masked-lm", "line 2, has input_ids and no labels"),
        ('{"input_ids": [1, 2]}', "classification", "line 2, has no field 'label' (it has input_ids)"),
        ('{"input_ids": [1], "label": "good"}', "classification", "has the label 'good', and only hf:FOLDER knows"),
        ('{"input_ids": [1], "label": [0, 1]}', "classification", "a label is one class"),
        ('{"input_ids": [1], "label": -1}', "classification", "has the label -1, and the classes are 0 and up"),
        ('{"input_ids": [1], "label": true}', "classification", "a label is one class"),
    ],
)
def test_a_wrong_line_is_named(run: Run, folder: Path, line: str, task: str, sentence: str) -> None:
    first = json.dumps({"input_ids": [1, 2], "labels": [1, 2] if task != "classification" else 0})
    (folder / "bad.jsonl").write_text(f"{first}\n{line}\n", encoding="utf-8")
    ran = run("measure", "words.py:Words", "--task", task, "--data", "bad.jsonl")
    assert ran.code == 2
    assert sentence in ran.sentence
    assert len(ran.err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--data", "rows.jsonl"), "rows.jsonl is text, and --task says what is done with it: causal-lm, masked-lm"),
        (("--data", "rows.jsonl", "--task", "causal"), "there is no task 'causal'"),
        (("--data", "row.jsonl", "--task", "causal-lm"), "there is no file row.jsonl; did you mean rows.jsonl"),
        (("--data", "plain.txt", "--task", "causal-lm"), "plain.txt is text, which needs a tokenizer, and only hf:"),
        (
            ("--data", "plain.txt", "--task", "causal-lm", "--data-args", "tokenizer=."),
            "plain.txt is text, which needs a tokenizer, and . has none",
        ),
        (("--data", "plain.txt", "--task", "classification"), "plain.txt has no field 'label' (it has text)"),
        (("--data", "rows.jsonl", "--task", "causal-lm", "--data-args", "lenght=3"), "did you mean length"),
        (("--data", "rows.jsonl", "--task", "causal-lm", "--data-args", "length=1"), "at least 2, not 1"),
        (("--data", "rows.jsonl", "--task", "causal-lm", "--data-args", "masked=2"), "a share between 0 and 1"),
        (("--data", "rows.jsonl", "--task", "causal-lm", "--data-args", "length=8"), "these records hold input_ids"),
        (("--data", "empty.txt", "--task", "causal-lm"), "empty.txt is empty"),
        (("--data", "bytes.txt", "--task", "causal-lm"), "bytes.txt is no text in UTF-8 (at byte 1)"),
        (("--data", "rows.jsonl", "--task", "causal-lm", "--json", "rows.jsonl"), "rows.jsonl"),
    ],
)
def test_refused_in_one_sentence(run: Run, folder: Path, words: tuple[str, ...], sentence: str) -> None:
    (folder / "plain.txt").write_text("some words", encoding="utf-8")
    (folder / "empty.txt").write_text(" \n", encoding="utf-8")
    (folder / "bytes.txt").write_bytes(b"a\xff\xfe")
    before = (folder / "rows.jsonl").read_bytes()
    ran = run("measure", "words.py:Words", *words)
    assert ran.code in (1, 2)
    assert sentence in ran.sentence
    assert len(ran.err.strip().splitlines()) == 1
    assert (folder / "rows.jsonl").read_bytes() == before


def test_line_breaks_inside_a_text_end_no_record(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('\ufeff{"text": "one\u2028two"}\r\n{"text": "three"}\n', encoding="utf-8")
    assert [record.fields["text"] for record in read_text_records(str(tmp_path / "a.jsonl"))] == [
        "one\u2028two",
        "three",
    ]


def test_what_is_no_text_is_left_to_others() -> None:
    assert records_of(["a", {"text": "b", "label": 1}], "f") == [
        TextRecord("f, entry 1,", {"text": "a"}),
        TextRecord("f, entry 2,", {"text": "b", "label": 1}),
    ]
    for other in (torch.zeros(3), (torch.zeros(3), torch.zeros(3)), [], [{"x": torch.zeros(3)}], [(1, 2)]):
        assert records_of(other, "f") is None


def test_masks_and_kinds_of_tokens_that_are_given_are_kept() -> None:
    reader = TokenReader(task_named("classification"), "mine:Net")
    rows = [
        {"input_ids": [1, 2, 3], "attention_mask": [1, 1, 0], "token_type_ids": [0, 1, 1], "label": 0},
        {"input_ids": [4, 5], "label": 1},
    ]
    found, _ = reader.read([TextRecord("here", row) for row in rows], "here", {})
    assert found["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 0]]
    assert found["token_type_ids"].tolist() == [[0, 1, 1], [0, 0, 0]]
    assert found["labels"].tolist() == [0, 1]
    with pytest.raises(SpiritlevelError, match="has 1 attention_mask for 2 tokens"):
        reader.read([TextRecord("here", {**rows[1], "attention_mask": [1]})], "here", {})
