"""The page of commands and options: written from the application, complete, and the one that is committed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

import spiritlevel
from spiritlevel.cli.application import app
from spiritlevel.cli.documenting import commands_page, section_of

ROOT = Path(__file__).parents[2]
COMMANDS = [
    "measure", "audit", "compare", "spectrum", "report", "list", "doctor", "demo", "data get", "study run",
    "study show", "study export",
]  # fmt: skip


def test_the_committed_page_is_the_generated_one() -> None:
    path = ROOT / "docs" / "reference" / "commands.md"
    assert path.read_text(encoding="utf-8") == commands_page(), "run make docs"


def test_every_command_has_a_section() -> None:
    assert re.findall(r"^## `spiritlevel (.*)`", commands_page(), re.MULTILINE) == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_help_shows_is_on_the_page(command: str) -> None:
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command.split(), "--help"]).output
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", re.sub(r"\x1b\[[0-9;]*m", "", shown))) - {"--help"}
    section = commands_page().partition(f"## `spiritlevel {command}`")[2].partition("\n## ")[0]
    assert options <= set(re.findall(r"--[a-z][a-z-]+", section))


def test_panels_examples_defaults_and_variables_are_taken_from_the_declaration() -> None:
    own = typer.Typer(epilog="Codes.")

    @own.command("weigh", epilog="spiritlevel weigh a.pt\n\nspiritlevel weigh b.pt")
    def weigh(
        files: Annotated[list[str], typer.Argument(help="Files *.pt")],
        tries: Annotated[int, typer.Option(help="How often.", rich_help_panel="Sampling", envvar="TRIES")] = 3,
        note: Annotated[
            list[str] | None, typer.Option("--note", "-n", help="What | to say.", rich_help_panel="Output")
        ] = None,
        secret: Annotated[bool, typer.Option(hidden=True)] = False,
    ) -> None:
        """Weigh files."""

    @own.command("other")
    def other() -> None:
        """Do nothing."""

    text = "\n\n".join(section_of(own, "weigh"))
    assert "    spiritlevel weigh FILES … [OPTIONS]" in text
    assert r"| `FILES` | Files \*.pt |" in text
    assert "**Sampling**" in text
    assert "| `--tries N` | How often. Default: `3`. Environment: `TRIES`. |" in text
    assert "**Output**" in text
    assert r"| `--note TEXT`, `-n` | What \| to say. May be given several times. |" in text
    assert text.endswith("    spiritlevel weigh a.pt\n\n    spiritlevel weigh b.pt")
    assert "secret" not in text


def test_every_variable_of_the_environment_is_on_the_commands_page() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(os.fspath(spiritlevel.__path__[0])).rglob("*.py")]
    named = {name for text in sources for name in re.findall(r'"(SPIRITLEVEL_[A-Z]+|XDG_[A-Z_]+)"', text)}
    assert named
    assert all(f"| `{name}` |" in commands_page() for name in named)
