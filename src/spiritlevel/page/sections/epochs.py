"""Several reports as curves over training: loss, accuracy and every measure, with the 2/lr line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from spiritlevel.measures.registry import DEFAULT, MEASURES
from spiritlevel.page.content import PageContent
from spiritlevel.page.figures.curves import curve, estimates_over, relative_curves
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
            if len(set(numbers.values())) == len(numbers):
                return numbers, unit
    return {label: float(position + 1) for position, label in enumerate(content.reports)}, "report"


def signature(content: PageContent) -> Figure | None:
    """Return the default measures in one figure, each against its first value."""
    places, unit = places_of(content)
    values = {}
    for name in [name for name in content.measures if name in DEFAULT] or content.measures[:6]:
        points = estimates_over(places, {k: r[name] for k, r in content.reports.items() if name in r})
        if len(points) > 1:
            values[content.title(name)] = [(place, value) for place, _, value, _ in points]
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
        points = estimates_over(places, {k: r[name] for k, r in content.reports.items() if name in r})
        if len(points) > 1:
            rule = (2 / rate, f"2/lr, lr = {rate:g}") if rate and _has_stability_line(name) else None
            parts.append(curve(points, content.title(name), f"curve_of_measure_{name}", unit, rule))
    return (
        Section("curves", "Curves over training", f"{len(content.reports)} reports by {unit}", parts) if parts else None
    )


def _has_stability_line(name: str) -> bool:
    return name in MEASURES and MEASURES[name].stability_line


def _header_points(
    content: PageContent, places: Mapping[str, float], key: str
) -> list[tuple[float, str, float, float]]:
    found = {label: getattr(report.header, key) for label, report in content.reports.items()}
    return sorted((places[label], label, float(value), 0.0) for label, value in found.items() if value is not None)
