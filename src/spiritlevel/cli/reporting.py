"""``spiritlevel report``: saved reports shown again or joined into one table; nothing is recomputed."""

from __future__ import annotations

import csv
from collections.abc import Sequence

from spiritlevel.cli.screens import console, note
from spiritlevel.results import Report, frames, load_reports
from spiritlevel.results.terminal import layer_tables, rows_table
from spiritlevel.results.wording import shared_prefix_removed
from spiritlevel.results.writing import check_writable, replacing


def show_reports(files: Sequence[str], *, layers: bool, csv_file: str | None) -> int:
    """Print one report in full, or several as one table; write all of them as rows where asked for."""
    if csv_file is not None:
        check_writable(csv_file, "--csv")
    found = [(file, report) for file in files for report in load_reports(file)]
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
