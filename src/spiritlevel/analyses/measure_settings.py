"""Settings of measures as they are given, by measure, checked and with defaults in place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import MEASURES
from spiritlevel.values.errors import UsageError, near_names

MeasureSettings = Mapping[str, Any]


def nested_settings(settings: MeasureSettings) -> dict[str, dict[str, Any]]:
    """Return settings by measure, from {"name": {...}} and "name.option" keys."""
    nested: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        name, dot, option = key.partition(".")
        if dot:
            nested.setdefault(name, {})[option] = value
        elif isinstance(value, Mapping):
            nested.setdefault(name, {}).update(value)
        else:
            raise UsageError(f"setting {key!r} must be written 'measure.option' or map a measure to its options")
    return nested


def chosen_settings(measures: list[Measure], settings: MeasureSettings) -> dict[str, dict[str, Any]]:
    """Return every measure's settings with the given ones in place."""
    nested = nested_settings(settings)
    known = {measure.name: measure for measure in measures}
    for name in nested:
        if name not in known and name not in MEASURES:
            raise UsageError(f"settings name the measure {name!r}, which does not exist{near_names(name, MEASURES)}")
    return {measure.name: measure.checked_settings(nested.get(measure.name, {})) for measure in measures}


def toleranced_settings(
    chosen: list[Measure], settings: MeasureSettings, tolerance: float | None
) -> dict[str, dict[str, Any]]:
    """Return every measure's settings, with the tolerance where a measure has one and none of its own was given."""
    values = chosen_settings(chosen, settings)
    if tolerance is None:
        return values
    if not 0 < tolerance < 1:
        raise UsageError(f"tolerance must lie between 0 and 1, not {tolerance}")
    given = nested_settings(settings)
    for own in chosen:
        if "tolerance" in own.settings and "tolerance" not in given.get(own.name, {}):
            values[own.name]["tolerance"] = tolerance
    return values


def wanted_of(chosen: list[Measure], values: Mapping[str, Mapping[str, Any]]) -> frozenset[str]:
    """Return what some measures want of the diagonal blocks."""
    return frozenset().union(*(own.wanted(values[own.name]) for own in chosen))
