"""Help in groups: options stand under what they are about, each group with an example, and examples at the end.

The group of an option is the ``rich_help_panel`` of its own declaration.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from spiritlevel.cli.examples import EXAMPLES, GROUP_EXAMPLES

if TYPE_CHECKING:
    from collections.abc import Iterator

MODEL = "Model"
DATA = "Data"
MEASURED = "What is measured"
PRECISELY = "How precisely"
COMPUTED = "Speed and memory"
OUTPUT = "Output"
NETWORKS = "Networks"
LISTED = "What is listed"
TRAINING = "Training"
STUDIES = "Studies"
PLACE = "Where it is computed"
ORDER = (
    MODEL, NETWORKS, STUDIES, LISTED, TRAINING, DATA, MEASURED, PRECISELY, COMPUTED, PLACE, OUTPUT,
)  # fmt: skip
OTHERS = "Other options"


class GroupedCommand(TyperCommand):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section a group, in the order in which a command line is thought of."""
        for group, rows in grouped(self, ctx):
            with formatter.section(group):
                formatter.write_dl(rows)
                example = GROUP_EXAMPLES.get(self.name or "", {}).get(group)
                if example:
                    _write_line(formatter, f"Example: {example}")

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the command's examples, each in lines as they can be copied."""
        examples = EXAMPLES.get(_path(ctx), ())
        if examples:
            with formatter.section("Examples"):
                for words, command in examples:
                    for line in (f"# {words}", *command.splitlines()):
                        _write_line(formatter, line)
        super().format_epilog(ctx, formatter)


def grouped(command: Any, ctx: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the groups of a command with the rows of their options, arguments first."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        row = parameter.get_help_record(ctx)
        if row is None:
            continue
        if parameter.param_type_name == "argument":  # without the type that typer writes after it
            row = (row[0].partition(" ")[0], row[1])
        rows.setdefault(getattr(parameter, "rich_help_panel", None) or OTHERS, []).append(row)
    for group in (*ORDER, OTHERS):
        if group in rows:
            yield group, rows.pop(group)
    yield from rows.items()


def _write_line(formatter: Any, line: str) -> None:
    """Write a line as it stands: what is to be copied is not wrapped."""
    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


def _path(ctx: Any) -> str:
    """Return the words that call a command, without the program's."""
    return str(ctx.command_path).partition(" ")[2]
