"""What the trials of an audit say of a measure under a symmetry, and the T_α sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from spiritlevel.results import records
from spiritlevel.results.numerals import MISSING, plain
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.symmetries import SYMMETRY_WORDS

Decision = Literal["invariant", "changes", "undecided", "not measured", "not found"]
# The trials whose change is shown where they decided.
_USUAL = ("usual", "α=10")


@dataclass(frozen=True)
class Trial:
    """One measure before and after one change of the network.

    Attributes
    ----------
    measure, symmetry, strength : str
        The measure, the symmetry and the range of factors.
    before, after : Estimate
        The values.
    verdict : str
        "invariant", "changes", "undecided" or "not measured".
    reason : str
        Why it was not measured.
    """

    measure: str
    symmetry: str
    strength: str
    before: Estimate
    after: Estimate
    verdict: Decision
    reason: str = ""

    @property
    def factor(self) -> float | None:
        """After over before, None where that has no meaning."""
        a, b = self.before.value, self.after.value
        return b / a if self.verdict != "not measured" and a * b > 0 else None


@dataclass(frozen=True)
class Verdict:
    """What the trials say about one measure under one symmetry, beside what the measure declares.

    Attributes
    ----------
    measure, symmetry : str
        The measure and the symmetry.
    verdict : str
        "invariant", "changes", "undecided", "not measured" or "not found".
    declared : bool
        Whether the measure is declared invariant; None where that is not known.
    trials : tuple of Trial
        What was measured.
    """

    measure: str
    symmetry: str
    verdict: Decision
    declared: bool | None
    trials: tuple[Trial, ...] = ()

    @property
    def shown(self) -> Trial | None:
        """The trial that is shown: the usual strength where it decided, else the one that changed most."""
        decisive = [trial for trial in self.trials if trial.verdict == self.verdict]
        usual = [trial for trial in decisive if trial.strength in _USUAL]
        ranked = usual or sorted(decisive, key=_size_of_change)
        return ranked[-1] if ranked else None

    @property
    def factor(self) -> float | None:
        """By what the value was multiplied in the trial that is shown, where it changed."""
        return self.shown.factor if self.verdict == "changes" and self.shown is not None else None

    @property
    def contradiction(self) -> str:
        """What contradicts the declaration, or nothing: declared invariant, measured to change."""
        if self.declared is not True or self.verdict != "changes" or self.shown is None:
            return ""
        trial = self.shown
        how = f" ({trial.strength})" if trial.strength else ""
        what = SYMMETRY_WORDS.get(self.symmetry, self.symmetry)
        return (
            f"{self.measure} is declared invariant to {what}, but went from "
            f"{plain(trial.before.value)} to {plain(trial.after.value)}{how}"
        )

    @property
    def words(self) -> str:
        """The verdict in a few words."""
        if self.verdict == "changes":
            if self.factor is not None:
                return f"changes, × {plain(self.factor, 2)}"
            trial = self.shown
            return (
                "changes"
                if trial is None
                else f"changes, {plain(trial.before.value, 2)} → {plain(trial.after.value, 2)}"
            )
        if self.verdict == "undecided":
            return "undecided within error"
        return {"not found": MISSING}.get(self.verdict, self.verdict)


def _size_of_change(trial: Trial) -> float:
    factor = trial.factor
    return abs(trial.after.value - trial.before.value) if factor is None else max(factor, 1 / factor)


@dataclass(frozen=True)
class Sweep:
    """Values along T_α, one for each α in order.

    Attributes
    ----------
    alphas : list of float
        The factors of the outputs.
    values : dict
        By measure, its values.
    titles : dict
        The measures in words.
    losses, accuracies : list of float
        Loss and accuracy at each α.
    """

    alphas: list[float]
    values: dict[str, list[Estimate]]
    titles: dict[str, str]
    losses: list[float]
    accuracies: list[float | None]


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as plain JSON values."""
    return {
        "verdict": verdict.verdict,
        "factor": records.as_json(verdict.factor),
        "declared": verdict.declared,
        "words": verdict.words,
        "trials": [
            {
                "strength": trial.strength,
                "before": records.estimate_record(trial.before),
                "after": records.estimate_record(trial.after),
                "verdict": trial.verdict,
                "reason": trial.reason,
            }
            for trial in verdict.trials
        ],
    }


def read_verdict(name: str, symmetry: str, entry: dict[str, Any]) -> Verdict:
    """Return the verdict of a record."""
    trials = tuple(
        Trial(
            name,
            symmetry,
            trial["strength"],
            records.read_estimate(trial["before"]),
            records.read_estimate(trial["after"]),
            trial["verdict"],
            trial["reason"],
        )
        for trial in entry["trials"]
    )
    return Verdict(name, symmetry, entry["verdict"], entry["declared"], trials)


def sweep_record(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as plain JSON values."""
    return {
        "alphas": records.as_json(sweep.alphas),
        "losses": records.as_json(sweep.losses),
        "accuracies": records.as_json(sweep.accuracies),
        "titles": dict(sweep.titles),
        "values": {name: [records.estimate_record(e) for e in row] for name, row in sweep.values.items()},
    }


def read_sweep(entry: dict[str, Any]) -> Sweep:
    """Return the sweep of a record."""
    values = {name: [records.read_estimate(e) for e in row] for name, row in entry["values"].items()}
    return Sweep(entry["alphas"], values, entry["titles"], entry["losses"], entry["accuracies"])
