"""Files with several reports, and many of them as one long table, one row a report and measure."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from spiritlevel.results import frames, records
from spiritlevel.results.report import Report
from spiritlevel.results.saving import read_record
from spiritlevel.results.writing import replacing
from spiritlevel.values.errors import SpiritlevelError, UsageError

FilePath = str | os.PathLike[str]
Paths = FilePath | Iterable[FilePath]


@dataclass(frozen=True)
class Failure:
    """A weights file among several that could not be measured, and why."""

    weights: str
    reason: str

    def __str__(self) -> str:
        return self.reason if self.weights in self.reason else f"{self.weights}: {self.reason}"


def load_reports(path: FilePath) -> list[Report]:
    """Return the report of a file, or all of them where it holds several.

    Parameters
    ----------
    path : path
        A file that ``report.save`` or the command line wrote.

    Returns
    -------
    list of Report
        The reports in the file's order.

    Raises
    ------
    SpiritlevelError
        The file cannot be read, does not follow the layout, or holds no report.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> sl.measure(problem, "weight_norm").save("report.json")
    >>> sl.load_reports("report.json")
    [<Report of Sequential, 100 samples: 1 measure>]
    """
    reports, failures = load_saved(path)
    if not reports:
        why = f": {failures[0].weights} was not measured ({failures[0].reason})" if failures else ""
        raise SpiritlevelError(f"{path} holds no report{why}; give another file")
    return reports


def load_saved(path: FilePath) -> tuple[list[Report], list[Failure]]:
    """Return the reports of a file and the weights files that could not be measured."""
    record = read_record(path, "report")
    records.check_record(record, str(path))
    if "reports" not in record:
        return [Report.from_record(record, str(path))], []
    parts = record["reports"]
    reports = [Report.from_record(part, f"{path} (report {position + 1})") for position, part in enumerate(parts)]
    return reports, [Failure(entry["weights"], entry["reason"]) for entry in record.get("failures", ())]


def save_reports(reports: Iterable[Report], path: FilePath) -> None:
    """Write several reports into one strict JSON file; it appears whole or not at all."""
    text = several_text([records.strict_dumps(report.record()) for report in reports])
    with replacing(path) as stream:
        stream.write(text)


def several_text(reports: Iterable[str], failures: Iterable[Failure] = ()) -> str:
    """Return reports that are strict JSON text already as one text of the published layout.

    It is put together from the reports' own texts, because a command over many weights files writes it after each.
    """
    failed = [asdict(failure) for failure in failures]
    rest = {"failures": failed} if failed else {}
    frame = records.strict_dumps({"schema_version": records.SCHEMA_VERSION, "reports": [], **rest})
    # No string of JSON holds the end of a line, so all of them may be indented.
    parts = ",\n".join("  " + text.rstrip("\n").replace("\n", "\n  ") for text in reports)
    return frame.replace('"reports": []', f'"reports": [\n{parts}\n ]', 1) if parts else frame


def collect(paths: Paths, level: str = "network") -> Any:
    """Return one long pandas table from report files: a row a report and measure, or ("layer") quantity and layer.

    Columns that say what a report was taken on come first: ``file``, ``model``, ``weights``, ``loss`` and so on, the
    count of samples as ``data_samples``.  Weights files that could not be measured have no row.

    Parameters
    ----------
    paths : path or list of paths
        Files of one report or of several.
    level : str
        "network" or "layer".

    Returns
    -------
    pandas.DataFrame
        The table.

    Raises
    ------
    UsageError
        There is no such level.
    SpiritlevelError
        A file cannot be read, or pandas is not installed.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> data = sl.datasets.load("digits")
    >>> for seed in range(2):
    ...     model = sl.nets.build("digits_mlp", seed=seed)
    ...     problem = sl.Problem(model, data, samples=100)
    ...     sl.measure(problem, "weight_norm").save(f"seed-{seed}.json")
    >>> sl.collect(["seed-0.json", "seed-1.json"])[["file", "measure", "value"]]
              file      measure     value
    0  seed-0.json  weight_norm  4.976550
    1  seed-1.json  weight_norm  5.011255
    """
    if level not in ("network", "layer"):
        raise UsageError(f"level must be 'network' or 'layer', not {level!r}")
    pandas = frames.pandas()
    files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    rows = [
        row for file in files for report in load_saved(file)[0] for row in frames.long_rows(str(file), report, level)
    ]
    return pandas.DataFrame(rows, columns=frames.long_columns(level))
