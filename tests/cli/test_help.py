"""Help in groups, each with an example that the command takes, and whole examples at the end; shells' completion."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import spiritlevel
from spiritlevel.cli import completing
from spiritlevel.cli.application import app
from spiritlevel.cli.examples import EXAMPLES, GROUP_EXAMPLES
from spiritlevel.cli.groups import ORDER, OTHERS
from spiritlevel.inputs.losses import NAMES as LOSS_NAMES
from spiritlevel.lab import datasets, nets
from spiritlevel.lab.studies import studies
from spiritlevel.measures.registry import GROUPS, MEASURES
from tests.cli.material import Run

COMPLETING = """
import sys
from spiritlevel.cli import main
code = main([])
print(sorted({'torch', 'numpy', 'rich'} & set(sys.modules)), file=sys.stderr)
sys.exit(code)
"""
SOURCE = str(Path(spiritlevel.__file__).resolve().parents[1])


def commands() -> dict[str, Any]:
    """Every command by the words that call it."""
    found: dict[str, Any] = {}
    root: Any = typer.main.get_command(app)
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {word}": own for word, own in inner.items()}
    return found


def group_of(parameter: Any) -> str:
    return str(getattr(parameter, "rich_help_panel", None) or OTHERS)


def groups_of(command: Any) -> set[str]:
    return {group_of(each) for each in command.params}


def help_of(words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "80", "TERMINAL_WIDTH": "80"}
    ran = subprocess.run(
        [sys.executable, "-m", "spiritlevel", *words.split(), "--help"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout


@pytest.mark.parametrize("words", commands())
def test_every_option_stands_in_a_group_with_an_example(words: str) -> None:
    command = commands()[words]
    groups = groups_of(command)
    assert groups <= {*ORDER, OTHERS}
    for each in command.params:
        assert group_of(each) in ORDER, f"{each.name} of {words} is in no group"
    assert set(GROUP_EXAMPLES.get(words.split()[-1], {})) <= groups
    if words not in ("list", "doctor"):
        assert set(GROUP_EXAMPLES[words.split()[-1]]) == groups


@pytest.mark.parametrize("words", [words for words in commands() if words.split()[-1] in GROUP_EXAMPLES])
def test_an_example_of_a_group_is_made_of_its_options(words: str) -> None:
    command = commands()[words]
    for group, example in GROUP_EXAMPLES[words.split()[-1]].items():
        context = command.make_context("x", shlex.split(example), resilient_parsing=True)
        said = {name for name, value in context.params.items() if value not in (None, (), [], False)}
        named = re.findall(r"(?<!\S)--?[a-z][\w-]*", example)
        known = {word: each for each in command.params for word in (*each.opts, *each.secondary_opts)}
        assert set(named) <= set(known), f"{words}: {example}"
        assert said
        # An example may reach into another group, but is about its own.
        own = [word for word in named if group_of(known[word]) == group]
        arguments = [each for each in command.params if each.param_type_name == "argument" and group_of(each) == group]
        assert own or arguments, f"{words}: {example} has no option of {group}"


@pytest.mark.parametrize("words", commands())
def test_every_command_has_two_or_three_examples_that_it_takes(words: str) -> None:
    assert 2 <= len(EXAMPLES[words]) <= 3
    for _, example in EXAMPLES[words]:
        for line in example.replace("\\\n", " ").split(";"):
            program, *rest = shlex.split(line.partition(">")[0])
            assert program == "spiritlevel"
            count = len(words.split())
            assert rest[:count] == words.split()
            commands()[words].make_context("x", rest[count:], resilient_parsing=True)
            options = {word for each in commands()[words].params for word in (*each.opts, *each.secondary_opts)}
            assert {word for word in rest if word.startswith("-") and word != "-"} <= options


def test_no_example_is_of_a_command_that_is_not() -> None:
    assert set(EXAMPLES) == set(commands())


@pytest.mark.parametrize("words", ["measure", "compare", "audit", "spectrum", "report", "study run", "doctor"])
def test_help_fits_a_terminal_and_shows_groups_and_examples(words: str) -> None:
    text = help_of(words)
    assert max(map(len, text.splitlines())) <= 80
    at = [text.index(f"\n{group}:\n") for group in ORDER if group in groups_of(commands()[words])]
    assert at == sorted(at)
    for _, example in EXAMPLES[words]:
        assert f"  {example.splitlines()[0]}\n" in text
    assert "<str>" not in text
    assert "list[" not in text


# --- completion ------------------------------------------------------------------------------------------------------


def test_the_names_to_complete_are_those_there_are() -> None:
    assert tuple(nets.NETS) == completing.NETS
    assert tuple(datasets.DATASETS) == completing.DATASETS
    assert (*LOSS_NAMES, "model") == completing.LOSSES
    assert tuple(GROUPS) == completing.MEASURE_GROUPS
    assert tuple(name for name, own in MEASURES.items() if own.builtin) == completing.MEASURES
    assert tuple(studies()) == completing.STUDIES


def completed(line: str) -> list[str]:
    """What bash is offered after a line."""
    words = line.split(" ")
    environment = {
        **os.environ, "PYTHONPATH": SOURCE, "_SPIRITLEVEL_COMPLETE": "complete_bash", "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-c", COMPLETING], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "[]\n"  # no library is loaded
    return ran.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("spiritlevel mea", ["measure"]),
        ("spiritlevel measure digits_", ["digits_mlp", "digits_cnn"]),
        ("spiritlevel measure mlp --data mn", ["mnist"]),
        ("spiritlevel measure mlp -m hessian_t", ["hessian_trace", "hessian_top_eigenvalue"]),
        ("spiritlevel compare mlp -m rho_sum,hessian_tr", ["rho_sum,hessian_trace"]),
        ("spiritlevel audit mlp --strengths mild,u", ["mild,usual"]),
        ("spiritlevel spectrum mlp --operator g", ["ggn"]),
        ("spiritlevel measure mlp weights/la", []),  # files are the shell's own
        ("spiritlevel study run nfm-a", ["nfm-a1"]),
    ],
)
def test_a_shell_is_offered_what_begins_so(line: str, offered: list[str]) -> None:
    assert sorted(completed(line)) == sorted(offered)


def test_the_script_for_a_shell_is_shown(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    ran = run("--show-completion", "bash")
    assert ran.code == 0
    assert "_SPIRITLEVEL_COMPLETE=complete_bash" in ran.out
    assert ran.err == ""
