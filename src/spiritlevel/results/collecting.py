"""Many report files as one long table, one row a report and measure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from spiritlevel.errors import UsageError
from spiritlevel.results import frames, records
from spiritlevel.results.report import Report
from spiritlevel.results.saving import read_record
from spiritlevel.results.writing import replacing

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def load_reports(path: str | os.PathLike[str]) -> list[Report]:
    """Return the report of a file, or all of them where it holds several."""
    record = read_record(path, "report")
    records.check_record(record, str(path))
    if "reports" not in record:
        return [Report.from_record(record, str(path))]
    parts = record["reports"]
    return [Report.from_record(part, f"{path} (report {position + 1})") for position, part in enumerate(parts)]


def save_reports(reports: Iterable[Report], path: str | os.PathLike[str]) -> None:
    """Write several reports into one strict JSON file; it appears whole or not at all."""
    text = records.strict_dumps(several(reports))
    with replacing(path) as stream:
        stream.write(text)


def several(reports: Iterable[Report]) -> dict[str, Any]:
    """Return several reports as one JSON value of the published layout."""
    return {"schema_version": records.SCHEMA_VERSION, "reports": [report.record() for report in reports]}


def collect(paths: Paths, level: str = "network") -> Any:
    """Return one long pandas table from report files: a row a report and measure, or ("layer") quantity and layer.

    Columns that say what a report was taken on come first: ``file``, ``model``, ``weights``, ``loss`` and so on, the
    count of samples as ``data_samples``.
    """
    if level not in ("network", "layer"):
        raise UsageError(f"level must be 'network' or 'layer', not {level!r}")
    pandas = frames.pandas()
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    rows = [
        row for file in files for report in load_reports(file) for row in frames.long_rows(str(file), report, level)
    ]
    return pandas.DataFrame(rows, columns=frames.long_columns(level))
