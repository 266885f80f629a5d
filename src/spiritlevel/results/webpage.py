"""A report as a static piece of HTML for notebooks: escaped, without scripts."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from spiritlevel.results.numerals import how_text, plain, value_text
from spiritlevel.results.wording import Footnotes, header_lines
from spiritlevel.values.cleaning import for_page

if TYPE_CHECKING:
    from spiritlevel.results.report import Report


def escape(text: str) -> str:
    """Return text from outside as it may stand in HTML."""
    return html.escape(for_page(text))


def fragment(report: Report) -> str:
    """Return the report's lines and table as HTML."""
    footnotes = Footnotes()
    rows = []
    for name, estimate in report.items():
        error = "" if estimate.stderr_data is None else f"± {plain(estimate.stderr_data, 2)}"
        cells = (value_text(estimate), error, how_text(estimate), footnotes.mark(estimate))
        head = (
            f"<th scope='row' style='text-align:left'>{escape(report.title(name))} <small>{escape(name)}</small></th>"
        )
        rows.append(f"<tr>{head}{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    names = ("measure", "value", "over samples", "how", "")
    header = "".join(f"<th scope='col'>{name}</th>" for name in names)
    lines = "".join(f"<div>{escape(line)}</div>" for line in header_lines(report))
    below = [*footnotes.lines(), *report.header.notes]
    reasons = "".join(f"<div><small>{escape(line)}</small></div>" for line in below)
    return f"{lines}<table><thead><tr>{header}</tr></thead><tbody>{''.join(rows)}</tbody></table>{reasons}"
