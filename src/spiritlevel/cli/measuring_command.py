"""``spiritlevel measure``: one report for each weights file, as a table, as JSON, per sample."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.text import Text

from spiritlevel.analyses.measuring import MeasuringInterrupted
from spiritlevel.analyses.planning import plan
from spiritlevel.cli import names
from spiritlevel.cli.beginning import BEGINNING
from spiritlevel.cli.by_workers import by_workers, crew_of
from spiritlevel.cli.failures import DONE, FAILED, NOT_OK, failure_in_words
from spiritlevel.cli.keeping import Keeper, file_for
from spiritlevel.cli.own_measures import named_measures
from spiritlevel.cli.pages import check_page
from spiritlevel.cli.planned import show_plan
from spiritlevel.cli.request import Request
from spiritlevel.cli.screens import console, note
from spiritlevel.cli.signals import Stopped, stop_if_asked
from spiritlevel.cli.standard_output import keep_for_result, write_result
from spiritlevel.cli.subject import NotLoaded, Subject, targets_of
from spiritlevel.cli.user_code import inputs_of, source_files
from spiritlevel.inputs.deadline import Deadline
from spiritlevel.results import Report, load_reports
from spiritlevel.results.terminal import layer_tables, rows_table
from spiritlevel.results.wording import UNTRAINED
from spiritlevel.results.writing import check_outputs, replacing
from spiritlevel.values.cleaning import for_csv, for_terminal
from spiritlevel.values.errors import SpiritlevelError, UsageError


@dataclass(frozen=True, kw_only=True)
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
    config: str | None = None
    workers: int | None = None
    ray: str | None = None  # the address of a cluster


def run_request(request: Request, outputs: Outputs) -> int:
    """Measure what a checked request asks for, print it and save it; return the exit code."""
    deadline = BEGINNING.deadline(request.seconds)
    labels = targets_of(request.weights)
    wanted = _wanted(outputs, labels)
    inputs = inputs_of(request, config=outputs.config, like=outputs.like)
    check_outputs(wanted, inputs)
    check_page(outputs.html, outputs.learning_rate)
    if outputs.json == "-":
        keep_for_result()
    assert request.model is not None
    names.check_model_name(request.model)
    subject = Subject(request)
    check_outputs(wanted, [("the user's own code", file) for file in source_files()])
    if not request.weights and subject.trained is False and outputs.json == "-":
        note(UNTRAINED, outputs.quiet)
    if outputs.dry_run:
        return _show_plan(subject, len(labels))
    keeper = Keeper(labels, request.weights, outputs.json)
    try:
        _take_up(keeper, subject, outputs)
        _measure_all(keeper, subject, outputs, deadline)
    except KeyboardInterrupt as stop:
        raise Stopped(_after_interruption(keeper, stop, request, outputs)) from stop
    try:
        _deliver(keeper, request, outputs)
    except KeyboardInterrupt as stop:
        raise Stopped(_interrupted(keeper, outputs, len(keeper.reports))) from stop
    return _verdict(keeper, outputs.strict)


def _take_up(keeper: Keeper, subject: Subject, outputs: Outputs) -> None:
    """Begin where an earlier run of the same command ended, and say so."""
    others = keeper.take_up(subject)
    for label, report in keeper.reports.items():
        if report.header.learning_rate != outputs.learning_rate:
            keeper.reports[label] = report.described(learning_rate=outputs.learning_rate)
            keeper.changed(label)
        _write_samples(label, report, outputs)
    kept = len(keeper.reports)
    if kept:
        note(
            f"{kept} of {len(keeper.labels)} kept from {outputs.json}, where the same weights, data and settings were "
            "measured before; remove it to measure them again.",
            outputs.quiet,
        )
    if others:
        what = "unfinished or of other weights, data or settings"
        note(f"{others} in {outputs.json}, {what}, will be replaced.", outputs.quiet)


def _measure_all(keeper: Keeper, subject: Subject, outputs: Outputs, deadline: Deadline | None) -> None:
    """Measure what is not kept yet; among several weights files one that cannot be measured becomes a row."""
    missing = len(keeper.labels) - len(keeper.reports)
    crew = crew_of(subject, outputs.workers, outputs.ray, missing)
    if crew is None:
        _one_by_one(keeper, subject, outputs, deadline)
        return
    with closing(by_workers(crew, keeper, subject, deadline, quiet=outputs.quiet)) as files:
        for file, found in files:
            stop_if_asked()
            if found.report is not None:
                _finished(keeper, file.label, found.report, file.identity, outputs)
                continue
            if keeper.one or found.refused:
                raise (UsageError if found.refused else SpiritlevelError)(found.reason)
            keeper.failed(file.label, found.reason)


def _one_by_one(keeper: Keeper, subject: Subject, outputs: Outputs, deadline: Deadline | None) -> None:
    """Measure what is not kept yet in this process."""
    paths: Sequence[str | None] = subject.request.weights or (None,)
    for position, (label, path) in enumerate(zip(keeper.labels, paths)):
        stop_if_asked()
        if label in keeper.reports:
            continue
        if len(paths) > 1:
            note(f"{position + 1} of {len(paths)}: {path}", outputs.quiet)
        left = len(paths) - position  # among which the time is divided
        identity = keeper.identify(path) if path is not None else ""
        try:
            report = subject.report(
                path, progress=not outputs.quiet, seconds=None if deadline is None else deadline.elsewhere(1 / left)
            )
        except (Exception, SystemExit) as error:
            stop_if_asked()  # the failure may be what other code made of the interruption
            # A request that is wrong is so for every file; but which file cannot be loaded is the file's own affair.
            if keeper.one or (isinstance(error, UsageError) and not isinstance(error, NotLoaded)):
                raise
            reason = " ".join(failure_in_words(error).split())
            keeper.failed(label, reason)
            note(f"not measured: {keeper.failures[label]}", outputs.quiet)
            continue
        _finished(keeper, label, report, identity, outputs)


def _finished(keeper: Keeper, label: str, report: Report, identity: str, outputs: Outputs) -> None:
    keeper.finished(label, report.described(learning_rate=outputs.learning_rate), identity)
    _write_samples(label, report, outputs)


def _after_interruption(keeper: Keeper, stop: KeyboardInterrupt, request: Request, outputs: Outputs) -> str:
    """Save and show what there is, finished measures of the network at hand included; return what to say of it."""
    finished = len(keeper.reports)
    if isinstance(stop, MeasuringInterrupted) and stop.report:
        label = next(label for label in keeper.labels if label not in keeper.reports and label not in keeper.failures)
        keeper.reports[label] = stop.report.described(learning_rate=outputs.learning_rate)
        keeper.changed(label)
        _write_samples(label, stop.report, outputs)
    also = ""
    if keeper.reports:
        try:
            _deliver(keeper, request, outputs)
        except SpiritlevelError as error:  # the terminal may have gone with the signal
            also = f" ({error})"
    return f"{_interrupted(keeper, outputs, finished)}{also}"


def _interrupted(keeper: Keeper, outputs: Outputs, finished: int) -> str:
    if keeper.one:
        return "interrupted"
    where = f" in {outputs.json}, and the same command measures the rest" if outputs.json not in (None, "-") else ""
    return f"interrupted; {finished} of {len(keeper.labels)} networks are finished{where}"


def _show_plan(subject: Subject, networks: int) -> int:
    request = subject.request
    problem = subject.problem(request.weights[0] if request.weights else None)
    planned = plan(problem, named_measures(request.measures), settings=request.flat_settings(), seconds=request.seconds)
    return show_plan(planned, *([f"This is for each of the {networks} weights files."] if networks > 1 else []))


def _verdict(keeper: Keeper, strict: bool) -> int:
    """Return the exit code: what could not be measured counts, with --strict also a measure that is not ok."""
    if keeper.failures:
        first = next(iter(keeper.ordered(keeper.failures).values()))
        count = f"{len(keeper.failures)} of {len(keeper.labels)} weights files could not be measured"
        note(f"spiritlevel: {count}{', the first' if len(keeper.failures) > 1 else ''}: {first}")
        return FAILED
    reports = keeper.reports
    caveats = [(label, name, e) for label, report in reports.items() for name, e in report.items() if not e.ok]
    if not strict or not caveats:
        return DONE
    label, name, estimate = caveats[0]
    where = f" of {label}" if len(reports) > 1 else ""
    note(f"spiritlevel: {name}{where} is not ok and --strict was given: {estimate.reason}")
    return NOT_OK


def _deliver(keeper: Keeper, request: Request, outputs: Outputs) -> None:
    """Write what is written once, files before anything is shown: a screen may be gone."""
    reports, failures = keeper.ordered(keeper.reports), keeper.ordered(keeper.failures)
    if outputs.json == "-":
        write_result(keeper.record())
    keeper.save()
    if outputs.html is not None and reports:
        from spiritlevel import page

        reasons = {label: failure.reason for label, failure in failures.items()}
        page.write(replace(page.of_reports(reports), failures=reasons), outputs.html)
    _compare_data(reports, outputs)
    if outputs.json != "-":
        _show(keeper, request, outputs)
    if outputs.per_sample is not None:
        for label, report in reports.items():
            if not report.per_sample:
                save_samples(report, file_for(outputs.per_sample, label))  # which says what is missing


def _write_samples(label: str, report: Report, outputs: Outputs) -> None:
    if outputs.per_sample is not None and report.per_sample:
        save_samples(report, file_for(outputs.per_sample, label))


def _wanted(outputs: Outputs, labels: list[str]) -> list[tuple[str, str | Path]]:
    """Return every file that will be written, with its option."""
    if outputs.html == "-":
        raise UsageError("--html - is not possible; name a file")
    if outputs.per_sample is not None:
        if outputs.per_sample == "-":
            raise UsageError("--per-sample - is not possible; name a file ending in .npz or .csv")
        if Path(outputs.per_sample).suffix.lower() not in (".npz", ".csv"):
            raise UsageError(f"--per-sample {outputs.per_sample} must end in .npz or .csv")
        if len(labels) > 1 and "{name}" not in outputs.per_sample:
            raise UsageError("--per-sample needs {name} in the file name where there are several weights files")
    found: list[tuple[str, str | Path]] = []
    for option, pattern in (("--json", outputs.json), ("--per-sample", outputs.per_sample)):
        if pattern is None or pattern == "-":
            continue
        files = [file_for(pattern, label) for label in labels]
        if len(set(files)) < len(files) and "{name}" in pattern:
            raise UsageError(f"{option} {pattern} gives two weights files the same name; rename one of them")
        found += [(option, file) for file in dict.fromkeys(files)]
    return [*found, ("--html", outputs.html)] if outputs.html is not None else found


def save_samples(report: Report, path: Path) -> None:
    """Write one number a sample and quantity, beside the sample's index, as .npz arrays or .csv columns."""
    if not report.per_sample:
        raise SpiritlevelError(
            f"{path} was not written because none of these measures has a value per sample; "
            "add output_margin or hessian_trace to --measures"
        )
    name, index = report.sample_index()
    arrays = {name: index.numpy(), **{each: values.double().numpy() for each, values in report.per_sample.items()}}
    if path.suffix.lower() == ".npz":
        save: Callable[..., None] = np.savez
        with replacing(path, "wb") as stream:
            save(stream, **arrays)
        return
    with replacing(path) as stream:
        writer = csv.writer(stream)
        writer.writerow(map(for_csv, arrays))
        writer.writerows(zip(*(values.tolist() for values in arrays.values())))


def _compare_data(reports: dict[str, Report], outputs: Outputs) -> None:
    """Say where the samples are not those of the report that lent its settings."""
    earlier = load_reports(outputs.like)[0].fingerprint if outputs.like else ""
    if earlier and any(report.fingerprint != earlier for report in reports.values()):
        note(f"The data is not that of {outputs.like}: the fingerprints differ.", outputs.quiet)


def _show(keeper: Keeper, request: Request, outputs: Outputs) -> None:
    screen, reports = console(), keeper.ordered(keeper.reports)
    if len(request.weights) <= 1:
        report = next(iter(reports.values()))
        screen.print(report.table(layers=outputs.layers, notes=False))
    else:
        reasons = {label: failure.reason for label, failure in keeper.ordered(keeper.failures).items()}
        screen.print(rows_table(reports, reasons, keeper.labels))
        for label, report in reports.items() if outputs.layers else ():
            screen.print(Text(for_terminal(label)))
            for table in layer_tables(report):
                screen.print(table)
    for text in dict.fromkeys(line for report in reports.values() for line in report.header.notes):
        note(text, outputs.quiet)
