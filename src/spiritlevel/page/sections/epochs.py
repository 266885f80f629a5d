"""Several reports as curves over training: loss, accuracy and every measure, with the 2/lr line."""

from __future__ import annotations

from collections.abc import Mapping

from spiritlevel.measures.registry import DEFAULT, MEASURES
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.curves import CurvePoint, curve, relative_curves
from spiritlevel.page.parts import Figure, Part, Section, Words
from spiritlevel.results.runs import Runs


def signature(content: PageContent) -> Figure | None:
    """Return the default measures in one figure, each against its first value; of several runs the first of them.

    What follows each other in no training has no such figure.
    """
    if not content.runs.in_training:
        return None
    places, unit = content.runs.places, content.runs.unit
    if content.runs.several:
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
    places, unit = content.runs.places, content.runs.unit
    parts: list[Part] = []
    for key in ("loss", "accuracy", "test_accuracy", "gradient_norm"):
        points, words = _header_points(content, places, key), key.replace("_", " ")
        if len(points) > 1:
            parts.append(curve(points, words, f"curve_of_{key}", unit, joined=content.runs.in_training))
    rate = content.learning_rate
    for name in content.measures:
        points = _points(content, places, name)
        if len(points) > 1:
            rule = (2 / rate, f"2/lr, lr = {rate:g}") if rate and _has_stability_line(name) else None
            joined = content.runs.in_training
            parts.append(curve(points, content.title(name), f"curve_of_measure_{name}", unit, rule, joined=joined))
    if not parts:
        return None
    if content.runs.several:
        parts.insert(0, Words(how_grouped(content.runs)))
    title = "Curves over training" if content.runs.in_training else "Network by network"
    return Section("curves", title, f"{len(content.reports)} reports by {unit}", parts)


def how_grouped(runs: Runs) -> str:
    """Say what makes the runs, and which of them differ in their seed alone."""
    words = f"{len(runs.names)} runs, {runs.named_by}."
    for group, members in runs.members.items():
        words += f" {_and(members)} are taken to differ in their seed alone: {group}."
    return words


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


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
    runs, groups = content.runs.runs, content.runs.groups
    points = [
        CurvePoint(places[label], label, *value, runs[label], groups.get(runs[label], ""))
        for label, value in values.items()
    ]
    return sorted(points, key=lambda point: (point.series, point.run, point.place, point.label))
