"""``spiritlevel report``: saved reports shown again or joined into one table; nothing is recomputed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any

from spiritlevel.cli.pages import check_page
from spiritlevel.cli.screens import console, note
from spiritlevel.errors import UsageError
from spiritlevel.results import Report, frames
from spiritlevel.results.terminal import layer_tables, rows_table
from spiritlevel.results.wording import shared_prefix_removed
from spiritlevel.results.writing import check_writable, replacing


def show_reports(
    files: Sequence[str],
    *,
    layers: bool,
    csv_file: str | None,
    html: str | None = None,
    figures: str | None = None,
    learning_rate: float | None = None,
) -> int:
    """Print what the files hold, several reports as one table; write rows, the page and its figures where asked for."""
    from spiritlevel.page import loading

    if csv_file is not None:
        check_writable(csv_file, "--csv")
    check_page(html, learning_rate)
    results = [(file, result) for file in files for result in loading.load(file)]
    if html is not None or figures is not None:
        _write_page([result for _, result in results], html, figures, learning_rate)
    found = [(file, result) for file, result in results if isinstance(result, Report)]
    for _, other in results:
        if not isinstance(other, Report):
            console().print(other.table())
    if not found:
        if csv_file is not None:
            raise UsageError("--csv writes rows of reports, and none of these files is one; leave it out")
        return 0
    if csv_file is not None:
        _write_rows(found, csv_file, layers)
    screen = console()
    if len(found) == 1:
        screen.print(found[0][1].table(layers=layers))
        return 0
    labelled = dict(zip(_labels(found), (report for _, report in found)))
    screen.print(rows_table(labelled))
    for label, report in labelled.items() if layers else ():
        screen.print(label)
        for table in layer_tables(report):
            screen.print(table)
    for text in dict.fromkeys(line for report in labelled.values() for line in report.header.get("notes") or ()):
        note(text)
    return 0


def _write_page(results: Sequence[Any], html: str | None, figures: str | None, learning_rate: float | None) -> None:
    from spiritlevel import page
    from spiritlevel.page import loading

    content = loading.together(results, learning_rate)
    if html is not None:
        page.write(content, html)
    if figures is not None:
        for file in page.save_figures(content, figures):
            note(file)


def _labels(found: Sequence[tuple[str, Report]]) -> list[str]:
    """Return the weights files as labels, or the report files where those do not tell the reports apart."""
    weights = [report.header.get("weights") or report.header.get("model") or file for file, report in found]
    if len(set(weights)) == len(weights):
        return shared_prefix_removed(weights)
    files = [file for file, _ in found]
    if len(set(files)) == len(files):
        return shared_prefix_removed(files)
    return [f"{position + 1}: {label}" for position, label in enumerate(weights)]


def _write_rows(found: Sequence[tuple[str, Report]], path: str, layers: bool) -> None:
    """Write one row a report and measure, or with layers a report, quantity and layer (pandas is not needed)."""
    level = "layer" if layers else "network"
    with replacing(path) as stream:
        writer = csv.DictWriter(stream, fieldnames=frames.long_columns(level), lineterminator="\n")
        writer.writeheader()
        for file, report in found:
            writer.writerows(frames.long_rows(file, report, level))
