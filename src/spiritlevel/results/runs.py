"""Which run each of several networks is of, where in it the network stands, and which runs differ in their seed alone.

Headers say it (``run``, ``epoch``, ``step``, ``run_group``); where they do not, the folders and names of files do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from spiritlevel.results.report import Report

_PLACES = (
    ("epoch", r"(?<![a-z])ep(?:och)?[-_=]?(\d+)"),
    ("step", r"(?:step|checkpoint|ckpt|(?<![a-z])iter(?:ation)?)[-_=]?(\d+)"),
)
_NUMBER = r"(\d+)(?!.*\d)"
# A seed in the name of a run, with what parts it from the rest.
_SEED = re.compile(r"[-_/. ]?(?<![a-z])s(?:eed)?[-_=]?\d+", re.IGNORECASE)


@dataclass(frozen=True)
class Runs:
    """Several networks by run and place in training.

    Attributes
    ----------
    unit : str
        What places count: "epoch", "step", "number" (in the files' names), or "report" where nothing is known but the
        order, which is no training.
    places : mapping
        The place of each network.
    runs : mapping
        The run of each network; "" where there are no several runs.
    groups : mapping
        By run, what it shares with others that differ in their seed alone.
    named_by : str
        What tells the runs apart, in words.
    """

    unit: str
    places: Mapping[str, float]  # by label
    runs: Mapping[str, str]  # by label; "" where there are no several runs
    groups: Mapping[str, str]  # by run; only runs that differ in their seed from another
    named_by: str = ""  # what tells the runs apart, in words

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return any(self.runs.values())

    @property
    def in_training(self) -> bool:
        """Whether the networks follow each other in a training; a mere number says so where several runs have it."""
        shared = self.several and len(set(self.places.values())) < len(self.places)
        return self.unit in ("epoch", "step") or (self.unit == "number" and shared)

    @property
    def names(self) -> list[str]:
        """The runs, those of one group beside each other."""
        found = dict.fromkeys(self.runs.values())
        return sorted(found, key=lambda run: (self.groups.get(run, run), run))

    @property
    def ends(self) -> dict[str, str]:
        """The label of each run's last network, by run; nothing where there are no several runs of training."""
        found: dict[str, str] = {}
        for label in sorted(self.places, key=lambda label: self.places[label]):
            if self.runs[label] and self.in_training:
                found[self.runs[label]] = label
        return {run: found[run] for run in self.names if run in found}

    @property
    def members(self) -> dict[str, list[str]]:
        """The runs of each group of seeds."""
        found: dict[str, list[str]] = {}
        for run in self.names:
            if run in self.groups:
                found.setdefault(self.groups[run], []).append(run)
        return found

    def where(self, label: str) -> str:
        """Return which network that is, in words: its run and its place in it, or its label.

        Parameters
        ----------
        label : str
            The network.

        Returns
        -------
        str
            The words.
        """
        here = (self.runs[label], self.places[label])
        if self.unit in ("report", "number") or sum(here == (self.runs[k], self.places[k]) for k in self.places) > 1:
            return label
        place = f"{self.unit} {self.places[label]:g}"
        return f"{self.runs[label]} at {place}" if self.runs[label] else place


def runs_of(reports: Mapping[str, Report]) -> Runs:
    """Return the runs of networks by their labels."""
    said = {label: report.header.run for label, report in reports.items()}
    folders = {label: _folder(label) for label in reports}
    alone = len(set(folders.values())) == len(folders) > 1
    if all(said.values()):
        runs, by = {label: str(run) for label, run in said.items()}, "as their reports say"
    elif len(reports) > len(set(folders.values())) > 1:
        runs, by = folders, "one folder each"
    else:
        stems = {label: _without_place(label) for label in reports}
        told = len(reports) > len(set(stems.values())) > 1
        runs, by = (stems, "by the names of their files") if told else (dict.fromkeys(reports, ""), "")
    if len(set(runs.values())) < 2:
        runs, by = dict.fromkeys(reports, ""), ""
    places, unit = _places(reports, runs, alone and not any(runs.values()))
    return Runs(unit, places, runs, _groups(reports, runs), by)


def _places(reports: Mapping[str, Report], runs: Mapping[str, str], alone: bool) -> tuple[dict[str, float], str]:
    """Return where each network stands in training and the unit: from its header, its name, or its order."""
    for unit in ("epoch", "step"):
        found = {label: getattr(report.header, unit) for label, report in reports.items()}
        said = all(isinstance(value, (int, float)) for value in found.values())
        if said and _apart(runs, found):
            return {label: float(value) for label, value in found.items()}, unit
    for unit, pattern in (*_PLACES, *(() if alone else (("number", _NUMBER),))):
        matches = {label: re.search(pattern, _named(label, pattern), re.IGNORECASE) for label in reports}
        if all(matches.values()):
            numbers = {label: float(match.group(1)) for label, match in matches.items() if match}
            if _apart(runs, numbers):
                return numbers, unit
    return {label: float(position + 1) for position, label in enumerate(reports)}, "report"


def _apart(runs: Mapping[str, str], places: Mapping[str, float]) -> bool:
    """Return whether no two networks stand at one place of one run: those of no run would then be no training."""
    return len({(runs[label], place) for label, place in places.items()}) == len(places)


def _named(label: str, pattern: str) -> str:
    """Return the part of a label that a place is looked for in: the file's name, or its folder's."""
    path = PurePath(label)
    if pattern != _NUMBER and not re.search(pattern, path.stem, re.IGNORECASE):
        return path.parent.name
    return path.stem


def _folder(label: str) -> str:
    """Return the folder of a file; a folder that is itself a place in training belongs to the one above it."""
    folder = PurePath(label).parent
    own = any(re.fullmatch(pattern, folder.name, re.IGNORECASE) for _, pattern in _PLACES)
    return str(folder.parent if own else folder)


def _without_place(label: str) -> str:
    """Return a file's name without its place in training, which is the run's where several are in one folder."""
    path = PurePath(label)
    for _, pattern in _PLACES:
        shorter, count = re.subn(rf"[-_. ]?{pattern}", "", path.stem, flags=re.IGNORECASE)
        if count:
            return str(path.with_name(shorter)) if shorter else str(path.parent)
    return label


def _groups(reports: Mapping[str, Report], runs: Mapping[str, str]) -> dict[str, str]:
    """Return the group of each run: as headers say, else its name without its seed; a run alone has none."""
    said = {runs[label]: report.header.run_group for label, report in reports.items() if runs[label]}
    found = {run: group or _SEED.sub("", run).strip("/-_. ") or "all seeds" for run, group in said.items()}
    found = {run: group for run, group in found.items() if said[run] or group != run}
    counts = list(found.values())
    return {run: group for run, group in found.items() if counts.count(group) > 1}
