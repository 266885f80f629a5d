"""A table that says of networks which run they are of, and where in it: a CSV file, a data frame or a mapping."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

from spiritlevel.results.report import Report
from spiritlevel.values.errors import UsageError, near_names

COLUMNS = ("path", "run", "epoch", "step", "group", "test_accuracy")
_NUMBERS = ("epoch", "step", "test_accuracy")
_FIELDS = {"group": "run_group"}  # columns whose name in a header is another one

# By label or path: the run, or what the columns say.
RunsMapping = Mapping[str, str | Mapping[str, Any]]
RunsTable = str | os.PathLike[str] | RunsMapping | Any


def described_by(
    reports: Mapping[str, Report], table: RunsTable, files: Mapping[str, str] | None = None
) -> dict[str, Report]:
    """Return the reports with what a table says of them in their headers.

    A row belongs to the report whose file (``files``, by label), weights file or label its path is, or ends with.
    Every report must be in the table; the table may hold more.
    """
    rows, source = _rows_of(table)
    by_path = _by_path(rows, source)
    found = {}
    for label, report in reports.items():
        names = [name for name in ((files or {}).get(label), label, report.header.weights) if name]
        facts = _row_of(names, by_path)
        if facts is None:
            raise UsageError(
                f"{source} has no row for {names[0]}; its column path must name every report's file or weights file"
            )
        found[label] = report.described(**facts)
    return found


def _rows_of(table: RunsTable) -> tuple[list[dict[str, Any]], str]:
    if isinstance(table, (str, os.PathLike)):
        source = os.fspath(table)
        try:
            with open(source, encoding="utf-8-sig", newline="") as stream:
                return list(csv.DictReader(stream)), source
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise UsageError(f"{source} cannot be read as a table of runs ({error}); give a CSV file") from error
    if isinstance(table, Mapping):
        return [
            {"path": path, **({"run": said} if isinstance(said, str) else said)} for path, said in table.items()
        ], "the table of runs"
    if hasattr(table, "to_dict") and hasattr(table, "columns"):
        return table.to_dict("records"), "the table of runs"
    raise UsageError(
        f"runs must be a CSV file, a mapping from path to run, or a data frame, not a {type(table).__name__}"
    )


def _by_path(rows: Iterable[Mapping[str, Any]], source: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name in row:
            if name not in COLUMNS:
                raise UsageError(
                    f"{source} has a column {name!r}{near_names(str(name), COLUMNS)}; its columns are path and any of "
                    f"{', '.join(COLUMNS[1:])}"
                )
        path = str(row.get("path") or "")
        if not path:
            raise UsageError(
                f"{source} has a row without a path; its column path names a report's file or weights file"
            )
        if path in found:
            raise UsageError(f"{source} has two rows for {path}; leave one of them")
        found[path] = {
            _FIELDS.get(name, name): value
            for name in COLUMNS[1:]
            if (value := _value(row.get(name), name, path, source)) is not None
        }
    if not found:
        raise UsageError(f"{source} holds no rows; give one for each report, with the columns path and run")
    return found


def _value(value: Any, name: str, path: str, source: str) -> str | float | None:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return None
    if name not in _NUMBERS:
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{source} says {name} {value!r} of {path}; give a number, or leave it empty")
    return number


def _row_of(names: list[str], by_path: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row of a path that is one of the names, or else of the only one that ends like a name."""
    parts = {path: _parts(path) for path in by_path}
    for same in (_equal, _ends_alike):
        for name in names:
            fitting = [path for path, each in parts.items() if same(_parts(name), each)]
            if len(fitting) == 1:
                return by_path[fitting[0]]
    return None


def _parts(path: str) -> tuple[str, ...]:
    return PurePath(os.path.normpath(path)).parts


def _equal(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    return a == b


def _ends_alike(a: tuple[str, ...], b: tuple[str, ...]) -> bool:
    return a[-len(b) :] == b or b[-len(a) :] == a
