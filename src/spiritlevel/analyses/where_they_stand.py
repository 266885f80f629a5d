"""What must be said of networks beside any comparison: which were never trained, and which are not at a minimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from spiritlevel.results import Report
from spiritlevel.results.standing import Standing, size_words, standing_of, untold_words

MOST_NAMED = 3


def untrained(reports: Mapping[str, Report]) -> str:
    """Return what must be said before any number where a network was never trained."""
    untrained = [label for label, report in reports.items() if report.header.trained is False]
    if not untrained:
        return ""
    are = "is a network as initialised" if len(untrained) == 1 else "are networks as initialised"
    return f"{_and(untrained)} {are}, so these numbers do not compare trained minima."


def by_standing(reports: Mapping[str, Report], standing: Standing) -> list[str]:
    """Return the trained networks of which the answer to "at a minimum?" is this."""
    return [k for k, r in reports.items() if standing_of(r.header) == standing and r.header.trained is not False]


def off_minimum(reports: Mapping[str, Report], away: Sequence[str]) -> list[str]:
    """Return what must be said of networks that are not at a minimum, in sentences."""
    if len(away) > MOST_NAMED:
        return [f"{len(away)} of the {len(reports)} networks are not at a minimum but on the way to one."]
    sizes = {label: size_words(reports[label].header) for label in away}
    return [f"{k} is not at a minimum ({size}) but on the way to one." for k, size in sizes.items()]


def untold(reports: Mapping[str, Report]) -> list[str]:
    """Return of which networks it cannot be told whether they are at a minimum, in a sentence."""
    labels = by_standing(reports, "not told")
    if not labels:
        return []
    if len(labels) > MOST_NAMED:
        who, gradients = f"{len(labels)} of the {len(reports)} networks are", "their gradients are"
    else:
        who = f"{_and(labels)} {'is' if len(labels) == 1 else 'are'}"
        sizes = [size_words(reports[label].header) for label in labels]
        gradients = f"the gradient ({sizes[0]}) is" if len(labels) == 1 else f"their gradients ({'; '.join(sizes)}) are"
    head = reports[labels[0]].header
    return [f"Whether {who} at a minimum cannot be told: {gradients} {untold_words(head)}."]


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
