"""Reports as tables for a terminal, one network or several, and the same as plain text."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.text import Text

from spiritlevel.results.numerals import MISSING, how_text, percent, plain, value_text
from spiritlevel.results.standing import standing_of
from spiritlevel.results.wording import Footnotes, data_words, header_lines
from spiritlevel.values.cleaning import Cleaned, for_terminal
from spiritlevel.values.estimate import Estimate, not_applicable
from spiritlevel.values.rich_tables import new_table

if TYPE_CHECKING:
    from rich.table import Table

    from spiritlevel.results.report import Report

TEXT_WIDTH = 120
ID_WIDTH = 14  # a longer id is broken after an underscore in a column's head
_STANDING = {
    "no": ("*", "the gradient is not small against its noise: not at a minimum"),
    "not told": ("?", "the gradient is not distinguishable from its noise at so many samples"),
}
_BOUND_SIGN = {"lower_bound": "≥ ", "upper_bound": "≤ "}


def as_text(renderable: RenderableType, width: int = TEXT_WIDTH) -> str:
    """Return anything rich prints as plain text of a fixed width."""
    stream = io.StringIO()
    Console(
        file=stream,
        width=width,
        color_system=None,
        force_terminal=False,
        legacy_windows=False,
        markup=False,
        emoji=False,
    ).print(Cleaned(renderable))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def report_table(report: Report, *, layers: bool, notes: bool) -> RenderableType:
    """Return one network's report: what was measured, every measure, reasons, and the layers where asked for."""
    footnotes = Footnotes()
    table = new_table()
    table.add_column("measure", overflow="fold")
    table.add_column("value", justify="right", no_wrap=True)
    over_samples = any(estimate.stderr_data is not None for estimate in report.values())
    if over_samples:
        table.add_column("over samples", justify="right")
    table.add_column("how", overflow="fold")
    for name, estimate in report.items():
        mark = footnotes.mark(estimate)
        row = [_titled(report.title(name), name), Text(f"{value_text(estimate)} {mark}".rstrip())]
        if over_samples:
            row.append(Text("" if estimate.stderr_data is None else f"± {plain(estimate.stderr_data, 2)}"))
        table.add_row(*row, Text(how_text(estimate)))
    parts: list[RenderableType] = [_line(line) for line in header_lines(report)]
    parts += [table, *map(_line, footnotes.lines())]
    if layers:
        parts += layer_tables(report)
    if notes:
        parts += [_line(line, style="dim") for line in report.header.notes]
    return Cleaned(Group(*parts))


def layer_tables(report: Report) -> list[RenderableType]:
    """Return the layers' values, a row a layer, as many quantities a table as fit."""
    if not report.per_layer:
        return [Text("None of these measures has a value per layer.")]
    footnotes = Footnotes()
    layers = list(dict.fromkeys(layer for values in report.per_layer.values() for layer in values))
    heads = {quantity: _column_head(report.title(quantity), quantity) for quantity in report.per_layer}
    cells = {
        quantity: [_cell(values.get(layer), footnotes, f"{quantity} of {layer}") for layer in layers]
        for quantity, values in report.per_layer.items()
    }
    return [Cleaned(ColumnsInPortions("layer", layers, heads, cells)), *map(_line, footnotes.lines())]


def rows_table(
    reports: Mapping[str, Report],
    failures: Mapping[str, str] | None = None,
    order: Sequence[str] = (),
    letters: Mapping[str, Mapping[str, str]] | None = None,
) -> RenderableType:
    """Return several networks' reports, a row a network; many measures are spread over several tables.

    ``failures`` are networks that could not be measured, with the reason: rows without a number.  Rows stand in the
    ``order`` of labels that is given, by default the reports first.  Beside each value stand its ``letters``, by
    measure and label, which say what it is not told apart from.
    """
    footnotes = Footnotes()
    failed = failures or {}
    heads: dict[str, Text] = {"loss": Text("loss"), "accuracy": Text("accuracy"), "gradient": Text("gradient norm")}
    if _test_accuracies(reports):
        heads = {"loss": heads["loss"], "accuracy": heads["accuracy"], "test": Text("test accuracy"), **heads}
    cells: dict[str, list[Text]] = {
        "loss": [Text(plain(report.header.loss, 4)) for report in reports.values()],
        "accuracy": [Text(percent(report.accuracy)) for report in reports.values()],
        **_test_accuracies(reports),
        "gradient": [
            Text(plain(report.gradient_norm, 3) + _STANDING.get(standing_of(report.header) or "", ("", ""))[0])
            for report in reports.values()
        ],
    }
    for report in reports.values():
        for name in report:
            heads.setdefault(f"measure {name}", _column_head(report.title(name), name))
            own = (letters or {}).get(name, {})
            column = [
                _lettered(_cell(r.get(name), footnotes, label), own.get(label, "")) for label, r in reports.items()
            ]
            cells.setdefault(f"measure {name}", column)
    for key, column in cells.items():
        column += [Text(_unmeasured(reason, footnotes) if key == "loss" else MISSING) for reason in failed.values()]
    found = {standing_of(report.header) for report in reports.values()}
    below = [f"{sign} {words}" for standing, (sign, words) in _STANDING.items() if standing in found]
    below += [*_meaning_of_signs(reports), *footnotes.lines()]
    labels = [*reports, *failed]
    places = sorted(range(len(labels)), key=lambda place: order.index(labels[place]) if order else place)
    cells = {key: [column[place] for place in places] for key, column in cells.items()}
    table = ColumnsInPortions("weights", [labels[place] for place in places], heads, cells)
    return Cleaned(Group(*_shared_header(reports), table, *map(_line, below)))


def _unmeasured(reason: str, footnotes: Footnotes) -> str:
    return f"{MISSING} {footnotes.mark(not_applicable(f'not measured: {reason}'))}"


class ColumnsInPortions:
    """A table that is continued in further ones where it would be wider than the screen; numbers are never cut."""

    def __init__(
        self, corner: str, labels: list[str], heads: Mapping[str, Text], cells: Mapping[str, Sequence[Text]]
    ) -> None:
        self.corner, self.labels, self.heads, self.cells = corner, list(map(for_terminal, labels)), heads, cells

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first = min(max(map(cell_len, [*self.labels, self.corner])), options.max_width * 2 // 5)
        portions: list[list[str]] = []
        room = 0
        for key in self.heads:
            needed = self._width(key) + 3  # with its rule and spaces
            if needed > room or not portions:
                portions.append([])
                room = options.max_width - first - 4
            portions[-1].append(key)
            room -= needed
        for portion in portions:
            widths = {key: self._width(key) for key in portion}
            spare = options.max_width - first - 4 - sum(width + 3 for width in widths.values())
            for key in portion:  # what is left goes to cells that would be broken, from the left
                more = max(0, min(spare, self._whole_width(key) - widths[key]))
                widths[key] += more
                spare -= more
            table = new_table()
            table.add_column(self.corner, overflow="fold", width=first)
            for key in portion:
                table.add_column(self.heads[key], justify="right", overflow="fold", width=widths[key])
            for row, label in enumerate(self.labels):
                table.add_row(Text(label), *(self.cells[key][row] for key in portion))
            yield table

    def whole(self) -> Table:
        """Return one table of all columns, however wide, for where a reader can scroll."""
        table = new_table(self.corner)
        for head in self.heads.values():
            table.add_column(head, justify="right")
        for row, label in enumerate(self.labels):
            table.add_row(Text(label), *(self.cells[key][row] for key in self.heads))
        return table

    def _whole_width(self, key: str) -> int:
        """Return the width at which no cell of a column is broken."""
        return max(cell_len(line) for text in (self.heads[key], *self.cells[key]) for line in text.plain.splitlines())

    def _width(self, key: str) -> int:
        """Return the least width of a column: no word of it is broken, short cells stay on one line."""
        texts = [text.plain for text in (self.heads[key], *self.cells[key])]
        longest_word = max(cell_len(word) for text in texts for word in text.split())
        return max(longest_word, min(self._whole_width(key), ID_WIDTH))


def _shared_header(reports: Mapping[str, Report]) -> list[RenderableType]:
    """Return one line where all networks share model and data, else one line each."""
    lines = {label: f"{report.header.model or 'network'} on {data_words(report)}" for label, report in reports.items()}
    if len(set(lines.values())) == 1:
        return [_line(next(iter(lines.values())))]
    return [_line(f"{label}: {line}") for label, line in lines.items()]


def _meaning_of_signs(reports: Mapping[str, Report]) -> list[str]:
    kinds = {estimate.how for report in reports.values() for estimate in report.values() if estimate.ok}
    words = {"lower_bound": "≥ marks a lower bound", "upper_bound": "≤ marks an upper bound"}
    said = [text for kind, text in words.items() if kind in kinds]
    return [", ".join(said)] if said else []


def _cell(estimate: Estimate | None, footnotes: Footnotes, subject: str) -> Text:
    if estimate is None:
        return Text(MISSING)
    text = value_text(estimate)
    if text != MISSING:
        text = _BOUND_SIGN.get(estimate.how, "") + text
    return Text(f"{text} {footnotes.mark(estimate, subject)}".rstrip())


def _test_accuracies(reports: Mapping[str, Report]) -> dict[str, list[Text]]:
    """Return the column of accuracies on test data, where they were said of any network."""
    found = [report.header.test_accuracy for report in reports.values()]
    return {"test": [Text(percent(value)) for value in found]} if any(value is not None for value in found) else {}


def _lettered(cell: Text, letters: str) -> Text:
    """Return a cell with its letters; numbers in their place are bracketed, so as not to be read as a value."""
    if not letters:
        return cell
    return cell.append(f" ({letters})" if letters[0].isdigit() else f" {letters}", style="cyan")


def _titled(title: str, name: str) -> Text:
    """Return the title in words with the id small beside it."""
    text = _line(title)
    return text if title == name else text.append(f"  {for_terminal(name)}", style="dim")


def _column_head(title: str, name: str) -> Text:
    """Return the title with the id below it, broken after underscores where it is long."""
    lines = [""]
    for part in re.findall(r"[^_]*_|[^_]+$", for_terminal(name)):
        if len(lines[-1]) + len(part) > ID_WIDTH and lines[-1]:
            lines.append("")
        lines[-1] += part
    return _line(title).append("\n").append("\n".join(lines), style="dim")


def _line(text: str, style: str = "") -> Text:
    """Return one line whose text may come from outside."""
    return Text(for_terminal(text), style=style)
