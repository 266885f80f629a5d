"""The results of several weights files, on disk as each is finished, and taken up again by the same command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spiritlevel.cli.identity import Identity
from spiritlevel.cli.subject import Subject
from spiritlevel.results import Report
from spiritlevel.results.collecting import Failure, load_saved, several_text
from spiritlevel.results.records import stored, strict_dumps
from spiritlevel.results.writing import replacing
from spiritlevel.values.errors import SpiritlevelError


class Keeper:
    """Reports and failures by label, in the order of the weights files, and the JSON file or files they go to.

    Every change rewrites the file as a whole, so that a reader finds complete JSON at any moment.  Only reports that
    are finished carry an identity; one that was interrupted is saved for its measures and measured anew next time.
    """

    def __init__(self, labels: Sequence[str], weights: Sequence[str], target: str | None) -> None:
        self.labels, self.weights, self.target = list(labels), list(weights), target
        self.reports: dict[str, Report] = {}
        self.failures: dict[str, Failure] = {}
        self._identity: Identity | None = None
        self._texts: dict[str, str] = {}
        self._unsaved: dict[str, None] = {}

    @property
    def one(self) -> bool:
        """Whether there is at most one weights file, whose result is a report and not a list of them."""
        return len(self.weights) <= 1

    def take_up(self, subject: Subject) -> int:
        """Take over the results that an earlier run of the same command left; return how many others it replaces."""
        if self.one or self.target is None:
            return 0
        self._identity = Identity(subject)
        earlier = [report for file in self._files() for report in _earlier(file)]
        known = {(report.header.weights, report.header.identity): report for report in earlier}
        for label, path in zip(self.labels, self.weights):
            identity = self._identity.of(path)
            found = known.get((stored(path), identity)) if identity else None
            if found is not None and found.fingerprint == self._identity.fingerprint:
                self.reports[label] = found
        return len(earlier) - len(self.reports)

    def identify(self, path: str) -> str:
        """Return by what the result of a weights file is known, to be asked before the file is read."""
        return self._identity.of(path) if self._identity is not None else ""

    def finished(self, label: str, report: Report, identity: str) -> None:
        """Take in a finished report and save it."""
        if identity:
            report = report.described(identity=identity)
        self.reports[label] = report
        self.changed(label)
        self.save()

    def failed(self, label: str, reason: str) -> None:
        """Take in why a weights file could not be measured and save that."""
        self.failures[label] = Failure(self.weights[self.labels.index(label)], reason)
        self.changed(label)
        self.save()

    def changed(self, label: str) -> None:
        """Remember that the result of a label is not on disk as it is."""
        self._unsaved[label] = None
        self._texts.pop(label, None)

    def ordered(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Return entries in the order of the weights files."""
        return {label: entries[label] for label in self.labels if label in entries}

    def record(self) -> str:
        """Return everything there is as JSON text."""
        if self.one:
            return strict_dumps(next(iter(self.reports.values())).record())
        reports = self.ordered(self.reports)
        for label, report in reports.items():
            if label not in self._texts:
                self._texts[label] = strict_dumps(report.record())
        return several_text([self._texts[label] for label in reports], self.ordered(self.failures).values())

    def save(self) -> None:
        """Write the file anew, or those of changed results where each network has its own."""
        if self.target is None or self.target == "-":
            return
        if not self.one and "{name}" not in self.target:
            _write(self.target, self.record())
            self._unsaved.clear()
            return
        for label in list(self._unsaved):
            if label in self.reports:
                _write(file_for(self.target, label), strict_dumps(self.reports[label].record()))
            elif label in self.failures:
                _write(file_for(self.target, label), several_text([], [self.failures[label]]))
            del self._unsaved[label]

    def _files(self) -> list[Path]:
        assert self.target is not None
        return list(dict.fromkeys(file_for(self.target, label) for label in self.labels)) if self.target != "-" else []


def file_for(pattern: str, label: str) -> Path:
    """Return the file of one network: ``{name}`` stands for its weights file without folder and ending."""
    path = Path(label)
    stem = "-".join([*path.parts[:-1], path.stem]).replace("/", "-")
    return Path(pattern.replace("{name}", stem))


def _earlier(file: Path) -> list[Report]:
    """Return the reports in a file of an earlier run; one that holds none is simply replaced."""
    if not os.path.isfile(file):
        return []
    try:
        return load_saved(file)[0]
    except SpiritlevelError:
        return []


def _write(path: str | Path, text: str) -> None:
    with replacing(path) as stream:
        stream.write(text)
