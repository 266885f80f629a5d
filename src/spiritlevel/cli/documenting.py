"""The page of commands and options, written from the application itself (``make docs``)."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
import typer.main

from spiritlevel.cli.application import app
from spiritlevel.cli.by_ranks import RENDEZVOUS
from spiritlevel.cli.examples import EXAMPLES, GROUP_EXAMPLES
from spiritlevel.cli.groups import ORDER
from spiritlevel.inputs.process.joining import VARIABLE as TIMEOUT
from spiritlevel.inputs.process.memory_limit import VARIABLE
from spiritlevel.lab.datasets.files import ENVIRONMENT
from spiritlevel.results.writing import replacing

_HEAD = """# Commands and options

Generated from the application itself; do not edit by hand (`make docs` writes it). `spiritlevel COMMAND --help` prints
the same. [The command line](../command-line.md) says what commands do with files, time and interruptions."""
_VARIABLES = {
    ENVIRONMENT: "The folder of the data sets' files, where `--data-root` does not name one.",
    VARIABLE: "How much memory measurements may take, as `16 GB` or `500MiB`; by default what is free.",
    TIMEOUT: "Under torchrun, the seconds after which a rank without a sign of life ends the run; by default 600.",
    RENDEZVOUS: "Where ranks find each other without torchrun, as `file:///shared/folder/new-file`.",
    "XDG_CACHE_HOME": "The folder of caches, in which fetched data sets are kept; by default `~/.cache`.",
}
# What stands for a value, by its type.
_VALUES: dict[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", Path: "PATH"}
_PLAIN = "Options"  # the heading of options without a panel of their own


def commands_page() -> str:
    """Return the Markdown page of all commands."""
    root = typer.main.get_command(app)
    parts = [_HEAD, root.help or ""]
    parts += [_table("option", [_row(param) for param in root.params if not _is_argument(param)])]
    parts += [f"| command | what it does |\n|---|---|\n{_listed(root)}"]
    parts += [part for path, command in _commands(root, "spiritlevel") for part in _section(path, command)]
    parts += ["## Exit codes", *_paragraphs(root.epilog), "## Environment variables"]
    parts += [_table("variable", [(f"`{name}`", words) for name, words in _VARIABLES.items()])]
    return "\n\n".join(part for part in parts if part) + "\n"


def section_of(application: typer.Typer, name: str) -> list[str]:
    """Return the parts of a command's section."""
    root = typer.main.get_command(application)
    return next(_section(path, command) for path, command in _commands(root, "spiritlevel") if path.endswith(name))


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each command that does something with the words that call it, in the order of ``--help``."""
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _listed(root: Any) -> str:
    rows = []
    for path, command in _commands(root, "spiritlevel"):
        first = inspect.cleandoc(command.help or "").partition("\n")[0]
        rows.append(f"| [`{path}`](#{path.replace(' ', '-')}) | {_escaped(first)} |")
    return "\n".join(rows)


def _section(path: str, command: Any) -> list[str]:
    arguments = [param for param in command.params if _is_argument(param) and not param.hidden]
    options = [param for param in command.params if not _is_argument(param) and not param.hidden]
    panels: dict[str, list[Any]] = {}
    for param in options:
        panels.setdefault(_panel_of(param), []).append(param)
    usage = " ".join([path, *map(_in_usage, arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## `{path}` {{#{path.replace(' ', '-')}}}", *_paragraphs(command.help), f"    {usage}"]
    if arguments:
        parts.append(_table("argument", [_row(param) for param in arguments]))
    called = path.partition(" ")[2]
    examples = GROUP_EXAMPLES.get(called.rpartition(" ")[2], {})
    for name in sorted(panels, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER)):
        if len(panels) > 1:
            parts.append(f"**{name}**")
        parts.append(_table("option", [_row(param) for param in panels[name]]))
        if name in examples:
            parts.append(f"Example: `{examples[name]}`")
    for words, lines in EXAMPLES.get(called, ()):
        parts += [f"{words[0].upper()}{words[1:]}:", "\n".join(f"    {line}" for line in lines.splitlines())]
    return [*parts, *_paragraphs(command.epilog)]


def _is_argument(param: Any) -> bool:
    return not param.opts[0].startswith("-")


def _panel_of(param: Any) -> str:
    panel = getattr(param, "rich_help_panel", None)
    return panel if isinstance(panel, str) else _PLAIN


def _in_usage(param: Any) -> str:
    name = _called(param) + (" …" if _takes_several(param) else "")
    return name if param.required else f"[{name}]"


def _called(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def _type_of(param: Any) -> Any:
    return param.type_descriptor.annotation


def _takes_several(param: Any) -> bool:
    return param.nargs == -1 or param.multiple or get_origin(_type_of(param)) is list


def _row(param: Any) -> tuple[str, str]:
    """Return what is typed and what it means, with its default and its environment variable."""
    words = [_escaped(" ".join((param.help or "").split()))]
    if _is_argument(param):
        return f"`{_called(param)}`", " ".join(words)
    if _takes_several(param):
        words.append("May be given several times.")
    if param.default not in (None, False, (), []) and not callable(param.default) and not param.is_flag:
        words.append(f"Default: `{param.default}`.")
    if param.envvar:
        names = [param.envvar] if isinstance(param.envvar, str) else param.envvar
        words.append(f"Environment: {', '.join(f'`{name}`' for name in names)}.")
    value = "" if getattr(param, "is_flag", False) else f" {_value_of(param)}"
    spelt = [*sorted(param.opts, key=len, reverse=True), *param.secondary_opts]
    return ", ".join(f"`{name}{value}`" if place == 0 else f"`{name}`" for place, name in enumerate(spelt)), " ".join(
        words
    )


def _value_of(param: Any) -> str:
    kind = _type_of(param)
    kind = get_args(kind)[0] if get_origin(kind) is list else kind
    return str(param.metavar or _VALUES[kind])


def _table(head: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {first} | {second} |" for first, second in rows]
    return "\n".join([f"| {head} | meaning |", "|---|---|", *lines]) if lines else ""


def _paragraphs(text: str | None) -> list[str]:
    """Return a help's paragraphs; lines that are commands stand as code, one below the other."""
    found = []
    for part in inspect.cleandoc(text or "").replace("\b\n", "").split("\n\n"):
        lines = part.splitlines()
        if lines and all(line.lstrip().startswith(("spiritlevel ", "eval ")) for line in lines):
            found.append("\n".join(f"    {line.strip()}" for line in lines))
        elif lines:
            found.append(_escaped(" ".join(line.strip() for line in lines)))
    return found


def _escaped(text: str) -> str:
    """Return a plain text as Markdown that shows it as it is."""
    for mark in "\\*|<[`":
        text = text.replace(mark, f"\\{mark}")
    return text


if __name__ == "__main__":
    with replacing(sys.argv[1]) as stream:
        stream.write(commands_page())
