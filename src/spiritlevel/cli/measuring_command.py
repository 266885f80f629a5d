"""``spiritlevel measure``: one report for each weights file, as a table, as JSON, per sample."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from spiritlevel.cli import names
from spiritlevel.cli.failures import DONE, NOT_OK
from spiritlevel.cli.pages import check_page
from spiritlevel.cli.request import Request
from spiritlevel.cli.screens import console, note
from spiritlevel.cli.subject import Subject, targets_of
from spiritlevel.errors import SpiritlevelError, UsageError
from spiritlevel.measuring import MeasuringInterrupted
from spiritlevel.planning import plan
from spiritlevel.results import Report, load_reports
from spiritlevel.results.collecting import save_reports, several
from spiritlevel.results.records import strict_dumps
from spiritlevel.results.terminal import layer_tables, rows_table
from spiritlevel.results.wording import UNTRAINED
from spiritlevel.results.writing import check_writable, replacing


@dataclass(frozen=True)
class Outputs:
    """Where the results go and what is shown."""

    json: str | None = None
    per_sample: str | None = None
    layers: bool = False
    quiet: bool = False
    strict: bool = False
    dry_run: bool = False
    like: str | None = None  # an earlier report, whose data should be the same
    html: str | None = None
    learning_rate: float | None = None


def run(request: Request, outputs: Outputs) -> int:
    """Measure what a checked request asks for, print it and save it; return the exit code."""
    targets = targets_of(request.weights)
    _check_outputs(outputs, targets)
    assert request.model is not None
    names.check_model_name(request.model)
    subject = Subject(request)
    if not request.weights and subject.trained is False and outputs.json == "-":
        note(UNTRAINED, outputs.quiet)
    if outputs.dry_run:
        return _show_plan(subject, len(targets))
    reports: dict[str, Report] = {}
    try:
        for position, path in enumerate(request.weights or (None,)):
            if len(request.weights) > 1:
                note(f"{position + 1} of {len(request.weights)}: {path}", outputs.quiet)
            try:
                reports[targets[position]] = subject.report(path, progress=not outputs.quiet)
            except MeasuringInterrupted as stop:
                if stop.report:
                    reports[targets[position]] = stop.report
                raise
    finally:  # what was finished before a failure or an interruption is kept
        if reports:
            _deliver(reports, request, outputs)
    return _verdict(reports, outputs.strict)


def _show_plan(subject: Subject, networks: int) -> int:
    request = subject.request
    problem = subject.problem(request.weights[0] if request.weights else None)
    print(plan(problem, list(request.measures), settings=request.flat_settings()))
    if networks > 1:
        print(f"This is for each of the {networks} weights files.")
    return DONE


def _verdict(reports: dict[str, Report], strict: bool) -> int:
    """Return the exit code: with --strict a measure that is not ok is named and counts."""
    caveats = [(label, name, e) for label, report in reports.items() for name, e in report.items() if not e.ok]
    if not strict or not caveats:
        return DONE
    label, name, estimate = caveats[0]
    where = f" of {label}" if len(reports) > 1 else ""
    note(f"spiritlevel: {name}{where} is not ok and --strict was given: {estimate.reason}")
    return NOT_OK


def _deliver(reports: dict[str, Report], request: Request, outputs: Outputs) -> None:
    for report in reports.values() if outputs.learning_rate is not None else ():
        report.header["learning_rate"] = outputs.learning_rate
    _save_json(reports, outputs, one=len(request.weights) <= 1)
    if outputs.json != "-":
        _show(reports, request, outputs)
    _compare_data(reports, outputs)
    if outputs.per_sample is not None:
        for label, report in reports.items():
            save_samples(report, _file_for(outputs.per_sample, label))
    if outputs.html is not None:
        from spiritlevel import page

        page.write(page.of_reports(reports), outputs.html)


def _file_for(pattern: str, label: str) -> Path:
    """Return the file of one network: ``{name}`` stands for its weights file without folder and ending."""
    path = Path(label)
    stem = "-".join([*path.parts[:-1], path.stem]).replace("/", "-")
    return Path(pattern.replace("{name}", stem))


def _check_outputs(outputs: Outputs, targets: list[str]) -> None:
    check_page(outputs.html, outputs.learning_rate)
    for option, pattern in (("--json", outputs.json), ("--per-sample", outputs.per_sample)):
        if pattern is None or pattern == "-":
            if pattern == "-" and option == "--per-sample":
                raise UsageError("--per-sample - is not possible; name a file ending in .npz or .csv")
            continue
        files = [_file_for(pattern, label) for label in targets]
        if len(set(files)) < len(files) and "{name}" in pattern:
            raise UsageError(f"{option} {pattern} gives two weights files the same name; rename one of them")
        for file in files:
            check_writable(file, option)
    if outputs.per_sample is not None:
        if Path(outputs.per_sample).suffix.lower() not in (".npz", ".csv"):
            raise UsageError(f"--per-sample {outputs.per_sample} must end in .npz or .csv")
        if len(targets) > 1 and "{name}" not in outputs.per_sample:
            raise UsageError("--per-sample needs {name} in the file name where there are several weights files")


def _save_json(reports: dict[str, Report], outputs: Outputs, one: bool) -> None:
    if outputs.json == "-":
        only = next(iter(reports.values()))
        sys.stdout.write(strict_dumps(only.record() if one else several(reports.values())))
        sys.stdout.flush()
    elif outputs.json is not None and (one or "{name}" in outputs.json):
        for label, report in reports.items():
            report.save(_file_for(outputs.json, label))
    elif outputs.json is not None:
        save_reports(reports.values(), outputs.json)


def save_samples(report: Report, path: Path) -> None:
    """Write one number a sample and quantity, in data order, as .npz arrays or .csv columns."""
    if not report.per_sample:
        raise SpiritlevelError(
            f"{path} was not written because none of these measures has a value per sample; "
            "add output_margin or hessian_trace to --measures"
        )
    arrays = {name: values.double().numpy() for name, values in report.per_sample.items()}
    if path.suffix.lower() == ".npz":
        save: Callable[..., None] = np.savez
        with replacing(path, "wb") as stream:
            save(stream, **arrays)
        return
    with replacing(path) as stream:
        writer = csv.writer(stream)
        writer.writerow(["sample", *arrays])
        writer.writerows([index, *row] for index, row in enumerate(zip(*(a.tolist() for a in arrays.values()))))


def _compare_data(reports: dict[str, Report], outputs: Outputs) -> None:
    """Say where the samples are not those of the report that lent its settings."""
    earlier = load_reports(outputs.like)[0].fingerprint if outputs.like else ""
    if earlier and any(report.fingerprint != earlier for report in reports.values()):
        note(f"The data is not that of {outputs.like}: the fingerprints differ.", outputs.quiet)


def _show(reports: dict[str, Report], request: Request, outputs: Outputs) -> None:
    screen = console()
    if len(request.weights) <= 1:
        report = next(iter(reports.values()))
        screen.print(report.table(layers=outputs.layers, notes=False))
    else:
        screen.print(rows_table(reports))
        for label, report in reports.items() if outputs.layers else ():
            screen.print(label)
            for table in layer_tables(report):
                screen.print(table)
    for text in dict.fromkeys(line for report in reports.values() for line in report.header["notes"]):
        note(text, outputs.quiet)
