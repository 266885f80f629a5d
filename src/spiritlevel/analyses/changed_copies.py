"""Values on changed copies of a network: as they follow from its own, or measured as closely as tells a change.

What a rescaling makes of sums and eigenvalues follows from the network's own (``changed_workbench``); other changes,
and what does not follow, are measured on the copy.  Eigenvalues are searched for from the network's own eigenvectors,
and only so far that a change can be told from none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from spiritlevel.analyses.changed_workbench import Rescaler
from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.measure_settings import MeasureSettings, nested_settings, toleranced_settings
from spiritlevel.analyses.measuring import estimates_of, workbench_of
from spiritlevel.analyses.parameter_maps import ParameterMap
from spiritlevel.analyses.trials import Change
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.steps import Steps
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results.verdicts import Decision, Trial
from spiritlevel.values.estimate import Estimate

# Relative change that rounding explains where a value is exact.
ROUNDING = {torch.float32: 2e-3, torch.float64: 1e-7}
SIGMAS = 5.0  # standard errors come from as few as eight draws, whose own spread is large
# "Invariant" needs an error small enough to have seen a change: larger than this share of the value it is undecided.
RESOLUTION = 0.01
# A bound found by a search, or an infimum over samples, may miss its own optimum by about this share.
BOUND_SHARE = 0.1
# How closely eigenvalues are searched for on a changed copy, until that leaves something open.
COARSE = 0.1
# What a measure may need to be known of a copy without a pass of its own.
SHARED = frozenset({"problem", "outputs", "gradient", "blocks", "seed"})


class ChangedCopies:
    """One network with its values, and the values on changed copies of it."""

    def __init__(
        self,
        rescaler: Rescaler,
        base: Mapping[str, Estimate],
        settings: MeasureSettings,
        *,
        seed: int = 0,
        tolerance: float | None = None,
        coarse: float = COARSE,
        left: int = 1,
        steps: Steps | None = None,
    ) -> None:
        self.rescaler, self.base, self._coarse_tolerance = rescaler, base, coarse
        self.settings, self.seed, self.tolerance = settings, seed, tolerance
        self.steps = steps or Steps()
        self.left = left  # measurements still to come, among which the time is divided

    @property
    def equivalents(self) -> Equivalents:
        """The copies that can be made."""
        return self.rescaler.equivalents

    def tried(self, change: Change, chosen: list[Measure]) -> list[Trial]:
        """Return the measures before and after a change; a refusal of the change is raised."""
        problem = change.make()
        follows = change.map is not None and self.rescaler.follows and self.rescaler.agrees(problem, change.map)
        map = change.map if follows else None
        trials = self._judged(change, self.values(problem, chosen, map))
        again = [own for own in chosen if trials[own.name].verdict == "undecided" and self.coarse(own)]
        if again:
            trials |= self._judged(change, self.values(problem, again, map, closely=True))
        return list(trials.values())

    def _judged(self, change: Change, values: Mapping[str, Estimate]) -> dict[str, Trial]:
        dtype = self.equivalents.problem.dtype
        return {
            name: judge_trial(name, change.symmetry, change.strength, self.base[name], value, dtype)
            for name, value in values.items()
        }

    def values(
        self, problem: OpenProblem, chosen: list[Measure], map: ParameterMap | None = None, *, closely: bool = False
    ) -> dict[str, Estimate]:
        """Return the measures' values on a copy; with the ``map`` that made it, those that follow are not measured."""
        settings = self.settings_for(chosen, closely)
        found: dict[str, Estimate] = {}
        if map is not None:
            found = self.rescaler.values(self.rescaler.workbench(problem, map), chosen, settings)
        rest = [own for own in chosen if own.name not in found]
        return found | (self.measured(problem, rest, settings)[0] if rest else {})

    def measured(
        self,
        problem: OpenProblem,
        chosen: list[Measure],
        settings: Mapping[str, Mapping[str, Any]],
        start: Tensor | None = None,
    ) -> tuple[dict[str, Estimate], Workbench]:
        """Measure a copy, in its share of the time that is left."""
        deadline = self.equivalents.problem.deadline
        if deadline is not None:
            self.left = max(self.left - 1, 0)
            problem.deadline = deadline.elsewhere(1 / (self.left + 1))
        bench = workbench_of(problem, chosen, settings, seed=self.seed, tolerance=self.tolerance, start=start)
        return estimates_of(bench, chosen, settings), bench

    def settings_for(self, chosen: list[Measure], closely: bool = False) -> dict[str, dict[str, Any]]:
        """Return every measure's settings: eigenvalues as coarse as tells a change, unless they are wanted closely."""
        own = of_measures(chosen, self.settings)
        if closely:
            return toleranced_settings(chosen, own, self.tolerance)
        return coarsened_settings(chosen, own, self.tolerance, self._coarse_tolerance)

    def coarse(self, own: Measure) -> bool:
        """Whether a measure's eigenvalues are searched for coarsely first."""
        return _coarse(own, self.settings, self.tolerance)


def coarsened_settings(
    chosen: list[Measure], settings: MeasureSettings, tolerance: float | None, coarse: float = COARSE
) -> dict[str, dict[str, Any]]:
    """Return every measure's settings, with coarser eigenvalues where their tolerance was not asked for."""
    found = toleranced_settings(chosen, of_measures(chosen, settings), tolerance)
    for own in chosen:
        if _coarse(own, settings, tolerance):
            found[own.name]["tolerance"] = max(coarse, found[own.name]["tolerance"])
    return found


def of_measures(chosen: list[Measure], settings: MeasureSettings) -> dict[str, Any]:
    """Return those of some settings that are some measures' own."""
    names = {own.name for own in chosen}
    return {key: value for key, value in settings.items() if key.partition(".")[0] in names}


def _coarse(own: Measure, settings: MeasureSettings, tolerance: float | None) -> bool:
    """Whether eigenvalues may be coarse: not where their tolerance was asked for."""
    asked = tolerance is not None or "tolerance" in nested_settings(settings).get(own.name, {})
    return "eigen" in own.needs and "tolerance" in own.settings and not asked


def judge_trial(
    name: str, symmetry: str, strength: str, before: Estimate, after: Estimate, dtype: torch.dtype = torch.float64
) -> Trial:
    """Decide from two measurements whether the value changed: by more than errors, certificates and rounding allow."""
    for estimate, when in ((before, "before"), (after, "after")):
        if estimate.status not in ("ok", "budget_spent"):
            return Trial(name, symmetry, strength, before, after, "not measured", f"{when}: {estimate.reason}")
    size = max(abs(before.value), abs(after.value))
    error = uncertainty(before, after)
    change = abs(after.value - before.value)
    verdict: Decision
    if change > error + ROUNDING.get(dtype, 2e-3) * size:
        verdict = "changes"
    elif error <= RESOLUTION * size:
        verdict = "invariant"
    else:
        verdict = "undecided"
    return Trial(name, symmetry, strength, before, after, verdict)


def uncertainty(first: Estimate, second: Estimate) -> float:
    """Return how far two estimates may differ by their errors, certificates and searches alone."""
    error = SIGMAS * math.hypot(first.stderr, second.stderr)
    error += sum((e.interval[1] - e.interval[0]) / 2 for e in (first, second) if e.interval is not None)
    # A search for a bound stops somewhere: two searches may differ although the quantities do not.
    if any(e.how in ("lower_bound", "upper_bound") for e in (first, second)):
        error += BOUND_SHARE * max(abs(first.value), abs(second.value))
    return error
