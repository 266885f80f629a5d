"""Results as rows of a data frame; pandas is loaded only where one is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spiritlevel.values.errors import UsageError, near_names
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.extras import need_of_extra

if TYPE_CHECKING:
    from spiritlevel.results.report import Report

ESTIMATE_COLUMNS = (
    "value", "stderr", "stderr_data", "interval_low", "interval_high", "how", "verified", "status", "reason",
    "samples", "passes",
)  # fmt: skip
# What tells reports apart in a long table, by the name of its column.
HEADER_COLUMNS = {
    name: f"data_{name}" if name.startswith("samples") else name  # an estimate has samples of its own
    for name in (
        "model", "weights", "data", "split", "samples", "samples_total", "loss_name", "loss", "accuracy",
        "gradient_norm", "at_minimum", "seed", "mode", "dtype", "fingerprint", "trained",
    )
}  # fmt: skip


@dataclass(frozen=True)
class Level:
    """One of the data frames of a result: what a row of it is, its columns, and its rows."""

    words: str
    columns: Sequence[str]
    rows: Callable[[Any], list[dict[str, Any]]]
    index: Callable[[Any], tuple[str, Sequence[Any]]] | None = None  # name and entries, where rows have names


def data_frame(result: object, kind: str, levels: Mapping[str, Level], level: str) -> Any:
    """Return the data frame of a level, by default the first."""
    name = level or next(iter(levels))
    if name not in levels:
        known = ", ".join(f"{own!r} ({each.words})" for own, each in levels.items())
        a = "an" if kind[0] in "aeiou" else "a"
        raise UsageError(f"there is no level {level!r}{near_names(level, levels)}; {a} {kind} has {known}")
    chosen = levels[name]
    module, rows = pandas(), chosen.rows(result)
    columns = list(chosen.columns) or None
    if chosen.index is None:
        return module.DataFrame(rows, columns=columns)
    index_name, entries = chosen.index(result)
    return module.DataFrame(rows, columns=columns, index=module.Index(entries, name=index_name))


def pandas() -> Any:
    """Return the pandas module, or say in one sentence how to get it."""
    return need_of_extra("pandas", "a data frame", "page", instead="use record() and scalars()")


def estimate_cells(estimate: Estimate) -> dict[str, Any]:
    """Return an estimate's cells, the certificate as two of them."""
    low, high = estimate.interval or (None, None)
    parts = {"interval_low": low, "interval_high": high}
    return {name: parts[name] if name in parts else getattr(estimate, name) for name in ESTIMATE_COLUMNS}


def network_rows(report: Report) -> list[dict[str, Any]]:
    """Return one row a measure."""
    return [
        {"measure": name, "title": report.title(name), **estimate_cells(estimate)} for name, estimate in report.items()
    ]


def layer_rows(report: Report) -> list[dict[str, Any]]:
    """Return one row a quantity and layer."""
    return [
        {"quantity": quantity, "layer": layer, **estimate_cells(estimate)}
        for quantity, layers in report.per_layer.items()
        for layer, estimate in layers.items()
    ]


def long_rows(file: str, report: Report, level: str) -> list[dict[str, Any]]:
    """Return the rows of one level, each with the file and what the report was taken on."""
    context = {"file": file, **{column: getattr(report.header, name) for name, column in HEADER_COLUMNS.items()}}
    rows = network_rows(report) if level == "network" else layer_rows(report)
    return [{**context, **row} for row in rows]


def long_columns(level: str) -> list[str]:
    """Return the columns of such rows."""
    first = ("measure", "title") if level == "network" else ("quantity", "layer")
    return ["file", *HEADER_COLUMNS.values(), *first, *ESTIMATE_COLUMNS]
