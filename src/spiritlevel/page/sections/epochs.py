"""Several reports as curves over training: loss, accuracy and every measure, with the 2/lr line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from spiritlevel.measures.registry import DEFAULT, MEASURES
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.curves import CurvePoint, curve, relative_curves
from spiritlevel.page.parts import Figure, Part, Section


def places_of(content: PageContent) -> tuple[dict[str, float], str]:
    """Return where each report stands in training and the unit: from its header, its name, or its order."""
    for unit in ("epoch", "step"):
        found = {label: getattr(report.header, unit) for label, report in content.reports.items()}
        if all(isinstance(value, (int, float)) for value in found.values()):
            return {label: float(value) for label, value in found.items()}, unit
    for unit, pattern in (
        ("epoch", r"(?<![a-z])ep(?:och)?[-_=]?(\d+)"),
        ("step", r"step[-_=]?(\d+)"),
        ("number", r"(\d+)(?!.*\d)"),
    ):
        matches = {label: re.search(pattern, PurePath(label).stem, re.IGNORECASE) for label in content.reports}
        if all(matches.values()):
            numbers = {label: float(match.group(1)) for label, match in matches.items() if match}
            if len({(_folder(label), number) for label, number in numbers.items()}) == len(numbers):
                return numbers, unit
    return {label: float(position + 1) for position, label in enumerate(content.reports)}, "report"


def _folder(label: str) -> str:
    return str(PurePath(label).parent)


def runs_of(content: PageContent) -> dict[str, str]:
    """Return the run that each report is of: its folder, where several folders hold several reports each."""
    folders = {label: _folder(label) for label in content.reports}
    several = len(set(folders.values())) > 1 and len(folders) > len(set(folders.values()))
    return folders if several else dict.fromkeys(folders, "")


def ends_of_runs(content: PageContent) -> dict[str, str]:
    """Return the label of each run's last report, by run; nothing where there are no runs to tell apart."""
    places, runs = places_of(content)[0], runs_of(content)
    ends: dict[str, str] = {}
    for label in sorted(content.reports, key=lambda label: places[label]):
        if runs[label]:
            ends[runs[label]] = label
    return dict(sorted(ends.items()))


def signature(content: PageContent) -> Figure | None:
    """Return the default measures in one figure, each against its first value; of several runs the first of them."""
    places, unit = places_of(content)
    if any(runs_of(content).values()):
        name = next((name for name in content.measures if name in DEFAULT), content.measures[0])
        points = _points(content, places, name)
        return curve(points, content.title(name), "curves", unit) if len(points) > 1 else None
    values = {}
    for name in [name for name in content.measures if name in DEFAULT] or content.measures[:6]:
        points = _points(content, places, name)
        if len(points) > 1:
            values[content.title(name)] = [(point.place, point.value) for point in points]
    return relative_curves(values, unit, "curves", "Each measure against its first value")


def section(content: PageContent) -> Section | None:
    """Return the section of curves where there are three reports or more."""
    if len(content.reports) < 3:
        return None
    places, unit = places_of(content)
    parts: list[Part] = [
        curve(points, words, f"curve_of_{key}", unit)
        for key, words in (("loss", "loss"), ("accuracy", "accuracy"), ("gradient_norm", "gradient norm"))
        if len(points := _header_points(content, places, key)) > 1
    ]
    rate = content.learning_rate
    for name in content.measures:
        points = _points(content, places, name)
        if len(points) > 1:
            rule = (2 / rate, f"2/lr, lr = {rate:g}") if rate and _has_stability_line(name) else None
            parts.append(curve(points, content.title(name), f"curve_of_measure_{name}", unit, rule))
    return (
        Section("curves", "Curves over training", f"{len(content.reports)} reports by {unit}", parts) if parts else None
    )


def _has_stability_line(name: str) -> bool:
    return name in MEASURES and MEASURES[name].stability_line


def _points(content: PageContent, places: Mapping[str, float], name: str) -> list[CurvePoint]:
    """Return the values of a measure along training, run after run."""
    found = {label: report[name] for label, report in content.reports.items() if name in report}
    values = {label: (e.value, e.stderr) for label, e in found.items() if e.status in ("ok", "budget_spent")}
    return _in_order(content, places, values)


def _header_points(content: PageContent, places: Mapping[str, float], key: str) -> list[CurvePoint]:
    found = {label: getattr(report.header, key) for label, report in content.reports.items()}
    values = {label: (float(value), 0.0) for label, value in found.items() if value is not None}
    return _in_order(content, places, values)


def _in_order(
    content: PageContent, places: Mapping[str, float], values: Mapping[str, tuple[float, float]]
) -> list[CurvePoint]:
    runs = runs_of(content)
    points = [CurvePoint(places[label], label, *value, runs[label]) for label, value in values.items()]
    return sorted(points, key=lambda point: (point.run, point.place, point.label))
