"""``spiritlevel report``: saved reports shown again or joined into one table; nothing is recomputed."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rich.text import Text

from spiritlevel.analyses.beside import ranked_beside
from spiritlevel.cli.pages import check_page
from spiritlevel.cli.screens import console, note
from spiritlevel.results import Report, frames, many
from spiritlevel.results.collecting import Failure
from spiritlevel.results.compared import Comparison
from spiritlevel.results.runs_table import described_by
from spiritlevel.results.saving import undamaged
from spiritlevel.results.terminal import layer_tables, rows_table
from spiritlevel.results.wording import shared_prefix_removed
from spiritlevel.results.writing import check_outputs, replacing
from spiritlevel.values.cleaning import for_csv, for_terminal
from spiritlevel.values.errors import UsageError

Labelled = Sequence[tuple[str, Report]]
Failed = Sequence[tuple[str, Failure]]


def show_reports(
    files: Sequence[str],
    *,
    layers: bool,
    csv_file: str | None,
    html: str | None = None,
    figures: str | None = None,
    learning_rate: float | None = None,
    runs: str | None = None,
) -> int:
    """Print what the files hold, several reports as one table; write rows, the page and its figures where asked for."""
    from spiritlevel.page import loading

    wanted = [(option, path) for option, path in (("--csv", csv_file), ("--html", html)) if path not in (None, "-")]
    check_outputs(
        wanted, [("the report", file) for file in files] + ([] if runs is None else [("the table of runs", runs)])
    )
    check_page(html, learning_rate)
    results = [(file, result) for file in files for result in loading.load_results(file)]
    found = [(file, result) for file, result in results if isinstance(result, Report)]
    if runs is not None:
        found = _in_runs(found, runs)
    failed = [(file, result) for file, result in results if isinstance(result, Failure)]
    others = [(file, result) for file, result in results if not isinstance(result, (Report, Failure))]
    # A file may follow the schema and still make no sense, which shows only here.
    with undamaged("result", ", ".join(files)):
        labelled = dict(zip(_labels(found), (report for _, report in found)))
        beside = ranked_beside(labelled)
        if html is not None or figures is not None:
            _write_page(labelled, others, failed, html, figures, learning_rate, beside)
        for _, other in others:
            console().print(other.table())
        if not found and not failed:
            if csv_file is not None:
                raise UsageError("--csv writes rows of reports, and none of these files is one; leave it out")
            return 0
        if csv_file is not None:
            _write_rows(found, failed, csv_file, "layer" if layers else "network")
        _show(labelled, failed, layers, beside)
    return 0


def _show(labelled: Mapping[str, Report], failed: Failed, layers: bool, beside: Comparison | None) -> None:
    screen = console()
    if len(labelled) == 1 and not failed:
        screen.print(next(iter(labelled.values())).table(layers=layers))
        return
    unmeasured = {failure.weights: failure.reason for _, failure in failed}
    if beside is None:
        screen.print(rows_table(labelled, unmeasured))
    else:
        screen.print(many.table(beside, unmeasured))
    for label, report in labelled.items() if layers else ():
        screen.print(Text(for_terminal(label)))
        for table in layer_tables(report):
            screen.print(table)
    for text in dict.fromkeys(line for report in labelled.values() for line in report.header.notes):
        note(text)


def _write_page(
    labelled: Mapping[str, Report],
    others: Sequence[tuple[str, Any]],
    failed: Failed,
    html: str | None,
    figures: str | None,
    learning_rate: float | None,
    beside: Comparison | None,
) -> None:
    from spiritlevel import page
    from spiritlevel.page import loading

    results = [*labelled.values(), *(result for _, result in others)]
    content = loading.together(results, learning_rate, list(labelled), beside)
    content = replace(content, failures={failure.weights: failure.reason for _, failure in failed})
    if html is not None:
        page.write(content, html)
    if figures is not None:
        for file in page.save_figures(content, figures):
            note(file)


def _in_runs(found: Labelled, table: str) -> list[tuple[str, Report]]:
    """Return the reports with what a table of runs says of them."""
    numbered = {str(place): report for place, (_, report) in enumerate(found)}
    described = described_by(numbered, table, {str(place): file for place, (file, _) in enumerate(found)})
    return [(file, report) for (file, _), report in zip(found, described.values())]


def _labels(found: Labelled) -> list[str]:
    """Return the weights files as labels, or the report files where those do not tell the reports apart."""
    weights = [report.header.weights or report.header.model or file for file, report in found]
    if len(set(weights)) == len(weights):
        return shared_prefix_removed(weights)
    files = [file for file, _ in found]
    if len(set(files)) == len(files):
        return shared_prefix_removed(files)
    return [f"{position + 1}: {label}" for position, label in enumerate(weights)]


def _write_rows(found: Labelled, failed: Failed, path: str, level: str) -> None:
    """Write one row a report and measure, or of level "layer" a report, quantity and layer (pandas is not needed)."""
    rows = [row for file, report in found for row in frames.long_rows(file, report, level)]
    rows += [
        {"file": file, "weights": failure.weights, "status": "not_measured", "reason": failure.reason}
        for file, failure in failed
    ]
    with replacing(path) as stream:
        writer = csv.DictWriter(stream, fieldnames=frames.long_columns(level), lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: for_csv(cell) for name, cell in row.items()} for row in rows)
