"""The command line says options where Python has arguments, in every message that reaches it."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer

import spiritlevel
from spiritlevel.cli.application import app
from spiritlevel.cli.spoken import OPTIONS, in_cli_words, results_in_cli_words
from spiritlevel.results import Report
from spiritlevel.results.header import Header
from spiritlevel.values.estimate import Estimate, not_applicable
from tests.cli.material import Run

PACKAGE = Path(spiritlevel.__file__).parent
ARGUMENT = re.compile(rf"(?<![\w.'\"-])(?!key=value)(?:{'|'.join(OPTIONS)})=")
# What is never behind a command: trainings of one's own, and what follows another tool's interface.
ELSEWHERE = ("compat/", "lab/")


NORMED = """
from torch import nn


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(4, 3), nn.BatchNorm1d(3))
"""


def options() -> set[str]:
    commands: Any = typer.main.get_command(app)
    every = [each for own in commands.commands.values() for each in own.params]
    return {word for each in every for word in (*each.opts, *each.secondary_opts)}


def template(node: ast.AST) -> str:
    """A text as it stands in the source, with a 7 where something is filled in."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part) if isinstance(part, ast.Constant) else "7" for part in node.values)
    return ""


def messages() -> dict[str, str]:
    """Every text of the package that says an argument of Python's, by its place; code and docstrings are none."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = str(path.relative_to(PACKAGE))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            text = "" if id(node) in inner else template(node)
            if ARGUMENT.search(text) and "\n" not in text and "``" not in text and not place.startswith(ELSEWHERE):
                found[f"{place}:{getattr(node, 'lineno', 0)}"] = text
    return found


def test_there_are_many_messages_with_arguments() -> None:
    assert len(messages()) >= 15


@pytest.mark.parametrize("place", messages())
def test_a_message_is_said_in_options(place: str) -> None:
    said = in_cli_words(messages()[place])
    called = re.sub(r"\w\([^()]*\)", "", said)  # what is called is Python's own
    assert not ARGUMENT.search(called), said
    assert set(re.findall(r"(?<!\S)--[a-z][\w-]*", said)) <= options(), said


@pytest.mark.parametrize(
    ("python", "spoken"),
    [
        ("pass samples=N to keep one fixed draw", "pass --samples N to keep one fixed draw"),
        ("use mode='eval'", "use --mode eval"),
        ('so dtype="float64".', "so --dtype float64."),
        ("pass parameters='*' for all", "pass --parameters '*' for all"),
        ("(key=ema_state_dict)", "(--key ema_state_dict)"),
        ("found probes=0, steps=5", "found --probes 0, --steps 5"),
        ("batch_size=8 and keep_graphs=False", "--batch-size 8 and --no-keep-graphs"),
        ("use clip='zero'", "use --set MEASURE.clip=zero"),
        ("use keskar_budget=3", "use keskar_budget=3"),
        ("calling Net(width=9, seed=3) of mine:Net failed", "calling Net(width=9, seed=3) of mine:Net failed"),
        ("reduction='none' and model.to_empty(device='cpu')", "reduction='none' and model.to_empty(device='cpu')"),
        ("--model-args 'mode=3' and x.seed=1", "--model-args 'mode=3' and x.seed=1"),
    ],
)
def test_what_is_an_argument_becomes_an_option(python: str, spoken: str) -> None:
    assert in_cli_words(python) == spoken


def test_only_the_sentences_of_a_result_are_changed() -> None:
    report = Report(
        estimates={"a": not_applicable("use mode='eval'"), "b": Estimate(1.0)},
        per_layer={"q": {"l": not_applicable("pass samples=N")}},
        header=Header(weights="mode=train.pt", notes=("samples=3 asks for all 3 samples there are.",)),
    )
    said = results_in_cli_words(report)
    assert said["a"].reason == "use --mode eval"
    assert said.per_layer["q"]["l"].reason == "pass --samples N"
    assert said.header.notes == ("--samples 3 asks for all 3 samples there are.",)
    assert said.header.weights == "mode=train.pt"
    plain = replace(report, estimates={"b": Estimate(1.0)}, per_layer={}, header=Header())
    assert results_in_cli_words(plain) is plain


def test_a_reason_a_note_and_a_refusal_on_the_command_line(run: Run, here: Path) -> None:
    Path("normed.py").write_text(NORMED, encoding="utf-8")
    measuring = ("measure", "normed.py:Normed", "--data", "mine:pair", "-m", "ggn_trace")
    ran = run(*measuring, "--mode", "train", "--json", "r.json")
    assert "use --mode eval" in " ".join(ran.out.split())
    assert "mode=" not in ran.out + ran.err + Path("r.json").read_text(encoding="utf-8")
    ran = run("measure", "mine:Net", "--data", "mine:pair", "--samples", "4000", "-m", "output_margin")
    assert "--samples 4000 asks for all" in ran.err
    ran = run("spectrum", "mine:Net", "--data", "mine:pair", "--probes", "0")
    assert ran.code == 2
    assert "found --probes 0, --steps" in ran.sentence
