"""A study: a frozen grid of runs, how each is trained and measured, what is made of the rows, and the claims."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiritlevel.lab.studies.claims import Claim
from spiritlevel.lab.studies.quantities import Quantity
from spiritlevel.values.errors import UsageError

SIZES = ("smoke", "small", "medium", "paper")
Settings = Mapping[str, Any]  # everything about a run that changes its result, as JSON
Row = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where runs are computed and where their data sets lie; no part of a run's identity."""

    device: str = "cpu"
    data_root: str | None = None


@dataclass(frozen=True)
class Outcome:
    """What one run yields: rows of numbers for the tables, and longer columns that figures need."""

    rows: list[Row]
    columns: dict[str, list[float]] = field(default_factory=dict)


@dataclass(frozen=True)
class FinishedRun:
    """A run read back from the store."""

    identity: str
    settings: Settings
    rows: list[Row]
    columns: dict[str, list[float]]
    seconds: float = 0.0
    environment: Mapping[str, Any] = field(default_factory=dict)
    rules: str = ""  # the hash of the rules when it was run, where it was kept


class Table:
    """All rows of a study, each with the settings of its run."""

    def __init__(self, runs: Sequence[FinishedRun]) -> None:
        self.runs = list(runs)
        self.rows: list[Row] = [{**run.settings, **row, "run": run.identity} for run in self.runs for row in run.rows]

    def where(self, **wanted: Any) -> Table:
        """Return the rows whose entries equal the wanted ones."""
        chosen = Table([])
        chosen.rows = [row for row in self.rows if all(row.get(key) == value for key, value in wanted.items())]
        names = {row["run"] for row in chosen.rows}
        chosen.runs = [run for run in self.runs if run.identity in names]
        return chosen

    def values(self, name: str) -> list[Any]:
        """Return the different values of a column in the order they first appear."""
        return list(dict.fromkeys(row.get(name) for row in self.rows))

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a column as floats; what is missing is nan."""
        return np.array([_as_float(row.get(name)) for row in self.rows], dtype=float)

    def by(self, name: str) -> Iterator[tuple[Any, Table]]:
        """Split by the values of a column."""
        for value in self.values(name):
            yield value, self.where(**{name: value})

    def __len__(self) -> int:
        return len(self.rows)


def _as_float(value: Any) -> float:
    return float("nan") if value is None or isinstance(value, str) else float(value)


@dataclass(frozen=True, kw_only=True)
class Study:
    """One experiment of a paper, the same code at every size.

    ``train`` takes the settings of the runs that are trained in one stack (one run unless ``together`` gives several
    runs the same word) and returns one trained object each; ``measure`` turns each into an `Outcome`.  ``explain`` adds
    quantities that no claim is judged by, for what is said about verdicts afterwards.
    """

    name: str
    title: str
    paper: str
    grid: Callable[[str], Sequence[Settings]]
    train: Callable[[Sequence[Settings], Place], Sequence[Any]]
    measure: Callable[[Settings, Any, Place], Outcome]
    analyse: Callable[[Table], dict[str, Quantity]]
    claims: tuple[Claim, ...]
    departures: Callable[[str], Sequence[str]]
    figures: Mapping[str, Callable[[Table], Any]] = field(default_factory=dict)
    together: Callable[[Settings], str] | None = None
    explain: Callable[[Table], dict[str, Quantity]] | None = None
    unrun: str = "it has not been run at any size yet"
    revision: int = 1  # raised when the code of train or measure changes its results

    def settings(self, size: str) -> list[Settings]:
        """Return the settings of every run at a size, each once."""
        if size not in SIZES:
            raise UsageError(f"There is no size {size!r}: the sizes are {', '.join(SIZES)}.")
        return list({self.identity(settings): settings for settings in self.grid(size)}.values())

    def identity(self, settings: Settings) -> str:
        """Return the name of a run: the hash of everything that affects its result."""
        text = json.dumps([self.name, self.revision, settings], sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def groups(self, size: str) -> list[list[Settings]]:
        """Return the runs in the groups that are trained together; which ones share a group never changes."""
        found: dict[str, list[Settings]] = {}
        for settings in self.settings(size):
            word = self.together(settings) if self.together else self.identity(settings)
            found.setdefault(word, []).append(settings)
        return list(found.values())

    def rules_hash(self) -> str:
        """Return the hash of what decides the claims: their rules, and the analysis that the rules are applied to."""
        rules = [[claim.name, claim.place, claim.paper, [str(rule) for rule in claim.rules]] for claim in self.claims]
        minimum = [[rule.minimum for rule in claim.rules] for claim in self.claims]
        text = json.dumps([rules, minimum, inspect.getsource(self.analyse)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def trained_by_nothing(settings: Sequence[Settings], place: Place) -> list[None]:
    """Train nothing: for studies of formulas."""
    return [None for _ in settings]
