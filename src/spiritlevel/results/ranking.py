"""Several networks in the order of one measure, with letters: those that share one cannot be told apart."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spiritlevel.results.contrasts import Contrast
from spiritlevel.results.report import Report
from spiritlevel.results.standing import standing_of
from spiritlevel.values.letters import letter_groups, lettered


@dataclass(frozen=True)
class Ranking:
    """Networks by one measure, flattest first; two share a letter exactly where they are not told apart.

    Attributes
    ----------
    order : tuple of str
        The networks.
    letters : mapping
        Their letters.
    apart : mapping
        By network, those it is told apart from.
    over_samples : bool
        Whether the verdicts count the error over samples.
    """

    order: tuple[str, ...]
    letters: Mapping[str, str]
    apart: Mapping[str, frozenset[str]]  # by network, those it is told apart from
    over_samples: bool  # whether the verdicts count the error over samples

    @property
    def words(self) -> str:
        """The networks in order with their letters."""
        return ", ".join(f"{label} {self.letters[label]}" for label in self.order)

    def best_of(self, labels: Collection[str]) -> list[str]:
        """Return of some networks the one that comes first and those it cannot be told apart from.

        Parameters
        ----------
        labels : list of str
            Some of the networks.

        Returns
        -------
        list of str
            The first, and those it is not told apart from.
        """
        own = [label for label in self.order if label in labels]
        return [label for label in own if label not in self.apart[own[0]]]


def ranking_of(name: str, reports: Mapping[str, Report], contrasts: Iterable[Contrast]) -> Ranking | None:
    """Return the ranking by a measure from the contrasts of all pairs; None where it has no direction, or no pair."""
    pairs = list(contrasts)
    if not pairs or not pairs[0].sharper_when:
        return None
    labels = dict.fromkeys(label for each in pairs for label in (each.first, each.second))
    smaller_is_sharper = pairs[0].sharper_when == "smaller"
    order = sorted(labels, key=lambda label: reports[label][name].value, reverse=smaller_is_sharper)
    told = [(each.first, each.second) for each in pairs if each.decided]
    apart: dict[str, set[str]] = {label: set() for label in order}
    for a, b in told:
        apart[a].add(b)
        apart[b].add(a)
    letters = lettered(order, letter_groups(order, told))
    counted = all(each.over_samples != "none" for each in pairs)
    return Ranking(tuple(order), letters, {label: frozenset(others) for label, others in apart.items()}, counted)


def at_minimum_or_untold(reports: Mapping[str, Report]) -> list[str]:
    """Return the networks that are at a minimum, or of which it cannot be told; none that does not beat guessing."""
    return [
        label
        for label, report in reports.items()
        if report.header.trained is not False and standing_of(report.header) != "no" and not report.header.guessing
    ]


def left_out_words(reports: Mapping[str, Report]) -> str:
    """Return what is wrong with the networks that these are not, in words that follow "networks that"."""
    left = [report.header for label, report in reports.items() if label not in at_minimum_or_untold(reports)]
    are = "is" if len(left) == 1 else "are"
    guessing = any(header.guessing for header in left)
    away = any(not header.guessing for header in left)
    parts = [f"{are} not at a minimum"] if away else []
    parts += [f"{'does' if len(left) == 1 else 'do'} hardly better than guessing"] if guessing else []
    return " or ".join(parts)


def test_accuracies(reports: Mapping[str, Report], test: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return the accuracy on test data of the networks where it is known: measured beside, or said of the network."""
    said = {label: report.header.test_accuracy for label, report in reports.items()}
    found = {label: test.get(label, {}).get("accuracy", value) for label, value in said.items()}
    return {label: float(value) for label, value in found.items() if value is not None}
