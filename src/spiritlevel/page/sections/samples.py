"""Sample by sample: the trace against the quantities that predict or bound it, with the extremes as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.scatter import ALL, RIGHT, WRONG, scatter
from spiritlevel.page.parts import Cell, PageTable, Part, Rows, Section, TableRow, Words
from spiritlevel.page.points import Axis, axis_of, choose_points, short
from spiritlevel.results import Report
from spiritlevel.results.numerals import plain

Y = "hessian_trace"
AGAINST = ("aceht", "margin_bound", "output_margin", "softmax_margin", "softmax_impurity")
MOST_NETWORKS = 4
LISTED = 12
NUMBERED = {
    "sample": "index in the data",
    "measured": "place among the measured samples, since this file does not say which of the data they are",
}


def section(content: PageContent) -> Section | None:
    """Return the section of samples, for the networks that have a trace for each of them."""
    parts: list[Part] = []
    drawn = 0
    shown = list(content.shown)[:MOST_NETWORKS]
    axes = {
        name: axis_of(np.concatenate(values))
        for name in (Y, *AGAINST)
        if (
            values := [
                _of(report, name)
                for label, report in content.shown.items()
                if label in shown and name in report.per_sample
            ]
        )
    }
    for position, (label, report) in enumerate(content.reports.items()):
        samples = {name: _of(report, name) for name in (Y, *AGAINST) if name in report.per_sample}
        if Y not in samples or len(samples) < 2:
            continue
        drawn += 1
        if label not in shown:
            continue
        if content.several:
            parts.append(Words("", strong=label))
        parts += _parts(content, report, samples, axes, "" if position == 0 else f"_{position + 1}")
    if not parts:
        return None
    if drawn > len(shown):
        parts.append(Words(f"{len(shown)} networks of {drawn} are drawn: {', '.join(shown)}."))
    counted = len(content.first.per_sample.get(Y, ())) or 0
    return Section("samples", "Sample by sample", f"trace of {counted:,} samples against what predicts it", parts)


def _of(report: Report, name: str) -> NDArray[np.float64]:
    """Return a quantity of the samples that count."""
    values: NDArray[np.float64] = report.per_sample[name].double().numpy()
    return values


def _parts(
    content: PageContent,
    report: Report,
    samples: dict[str, NDArray[np.float64]],
    axes: Mapping[str, Axis],
    suffix: str,
) -> list[Part]:
    kept = counted(report, samples)
    numbered, all_numbers = report.sample_index()
    numbers = all_numbers.numpy()[kept]
    samples = {name: values[kept] for name, values in samples.items()}
    right = right_of(report)
    right = None if right is None else right[kept]
    choice = choose_points(samples, right)
    points: list[dict[str, Any]] = []
    for index in choice.index:
        group = ALL if right is None else RIGHT if right[index] else WRONG
        points.append(
            {"sample": int(numbers[index]), "group": group, **{q: short(float(v[index])) for q, v in samples.items()}}
        )
    points.sort(key=lambda point: point["group"] == WRONG)  # drawn last, on top of the others
    rows_of_points = Rows(f"samples{suffix}", points)
    titles = {name: content.title(name) for name in samples}
    titles[Y] = "Hessian trace of a sample"
    parts: list[Part] = [
        scatter(samples, x, Y, titles, right, choice, rows_of_points, axes=axes, name=f"trace_against_{x}{suffix}")
        for x in samples
        if x != Y and np.isfinite(samples[x]).any()
    ]
    order = np.argsort(-np.where(np.isfinite(samples[Y]), samples[Y], -np.inf), kind="stable")[:LISTED]
    rows = [
        TableRow(
            [
                Cell(f"{int(numbers[i])}", value=int(numbers[i])),
                *(Cell(plain(float(v[i]), 4), value=float(v[i])) for v in samples.values()),
                Cell("" if right is None else "right" if right[i] else "wrong"),
            ]
        )
        for i in order
    ]
    listed = PageTable(
        f"largest-traces{suffix.replace('_', '-')}",
        ["sample", *(titles[name] for name in samples), "classified"],
        rows,
        caption=f"The {len(rows)} samples with the largest trace, by their {NUMBERED[numbered]} (from 0)",
        numeric=range(len(samples) + 1),
    )
    return [*parts, listed]


def counted(report: Report, samples: dict[str, NDArray[np.float64]]) -> NDArray[np.int64]:
    """Return the places of the samples that count: those whose margin is a number, where margins were measured."""
    for name in ("output_margin", "softmax_margin"):
        if name in report.per_sample:
            return np.flatnonzero(~np.isnan(report.per_sample[name].double().numpy()))
    return np.arange(len(samples[Y]))


def right_of(report: Report) -> NDArray[np.bool_] | None:
    """Return which samples are classified right, by the sign of their margin; None where margins were not measured."""
    for name in ("output_margin", "softmax_margin"):
        if name in report.per_sample:
            return report.per_sample[name].double().numpy() > 0
    return None
