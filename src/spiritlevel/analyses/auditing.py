"""The invariance audit: every measure before and after each symmetry found, and what that says about the measure.

Verdicts come from values alone (``changed_copies``).  What a measure declares about itself is compared with them
afterwards, and a declared invariance that a change contradicts is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spiritlevel.analyses.changed_copies import SHARED, ChangedCopies, judge_trial
from spiritlevel.analyses.changed_workbench import Rescaler
from spiritlevel.analyses.costing import costed
from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.measure_settings import MeasureSettings, chosen_settings
from spiritlevel.analyses.measuring import Measures, as_problem, estimates_of, measure, measured
from spiritlevel.analyses.running import run_measure
from spiritlevel.analyses.trials import TRIALS, Change, rescalings
from spiritlevel.inputs.deadline import Deadline, deadline_of
from spiritlevel.inputs.open_problem import Measurable, open_problem
from spiritlevel.inputs.opening import as_torch_dtype
from spiritlevel.inputs.steps import told_steps
from spiritlevel.inputs.survey import Survey
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import MEASURES, select
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results.audits import Audit
from spiritlevel.results.verdicts import Decision, Sweep, Trial, Verdict
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names
from spiritlevel.values.estimate import Estimate
from spiritlevel.values.symmetries import SYMMETRY_WORDS

# Ranges from which factors are drawn; the middle one is that of Petzka et al. 2019.
STRENGTHS: dict[str, tuple[float, float]] = {"mild": (1.25, 2.0), "usual": (5.0, 25.0), "extreme": (100.0, 1000.0)}
ALPHAS = (0.1, 1.0, 3.0, 10.0, 100.0)
# What the sweep over T_α shows whatever was chosen (Lengyel et al. 2021, Corollary 5.2).
SWEPT = ("hessian_trace", "hessian_top_eigenvalue", "output_margin", "softmax_margin")
COARSE = 0.02  # of eigenvalues that are shown
ALSO = frozenset({"diagonal"})  # of the blocks: what rescaled networks' values follow from
ONE_NEURON = (1.0, 10.0, 100.0, 1000.0)

# Measurements of an audit: of the network itself, permuted, and one neuron rescaled; and for each range of factors.
RUNS_AT_LEAST, RUNS_A_STRENGTH = 2 + len(ONE_NEURON), 2

# About how much of the first measurement's work the others are, for progress and plans.
A_TRIAL, AN_ALPHA = 0.2, 0.6

Strengths = Mapping[str, tuple[float, float]] | Sequence[str] | None


@costed
@documented_like(measure)
def audit(
    problem: Measurable | nn.Module,
    data: Any = None,
    measures: Measures = "default",
    *,
    strengths: Strengths = None,
    alphas: Sequence[float] = ALPHAS,
    settings: MeasureSettings | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    dtype: str | torch.dtype | None = None,
    seconds: float | Deadline | None = None,
    progress: bool = False,
    **options: Any,
) -> Audit:
    """Measure before and after every symmetry found in the network: which numbers would change, and by how much.

    What a rescaling or a permutation of units makes of sums over the Hessian's diagonal, of quadratic forms and of
    eigenvalues follows from the network's own, exactly; that it does is checked on each changed copy by a product with
    its own Hessian. Everything else, scaled outputs among it, is measured on the copies.

    Parameters
    ----------
    problem : Problem or torch.nn.Module
        What to audit; with a network ``data`` must be given too.
    strengths : list of str or mapping
        Names among "mild", "usual" (factors in [5, 25]) and "extreme", or a mapping from names to ranges; by default
        all.
    alphas : sequence of float
        The grid of the T_α sweep, in which the outputs are scaled; empty for none.
    seed : int
        Seed of the factors and of everything that is drawn while measuring.
    dtype : str or torch.dtype
        Precision of the network that is audited: "float64" or "float32" for a copy, None for the network itself.
    seconds : float
        Shared by all measurements: what there was no time to try is among what was refused, and what is not known well
        enough is undecided.

    Returns
    -------
    Audit
        A verdict for each measure and symmetry, with the trials behind it.

    Raises
    ------
    UsageError
        A measure, a setting, a strength or an α does not exist or has a value that the message names.
    SpiritlevelError
        The network cannot be measured on this data.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=50)
    >>> names = ["hessian_trace", "rho_sum"]
    >>> found = sl.audit(problem, names, strengths=["usual"], alphas=())
    >>> [found.verdict(name, "layer_rescaling") for name in names]
    ['changes', 'invariant']
    """
    if data is not None and isinstance(problem, Measurable) and isinstance(data, (str, Measure, list, tuple)):
        data, measures = None, data
    chosen = select(measures)
    chosen_settings(chosen, settings or {})  # refused before any work is done
    ranges, deadline = chosen_strengths(strengths), deadline_of(seconds)
    for alpha in alphas:
        if not (math.isfinite(alpha) and alpha > 0):
            raise UsageError(f"alphas must be positive finite numbers, not {alpha!r}")
    given = open_problem(as_problem(problem, data, **options))
    given.deadline = deadline or given.deadline
    equivalents = Equivalents(given, copy_dtype(dtype))
    measurements = RUNS_AT_LEAST + RUNS_A_STRENGTH * len(ranges) + len(alphas)
    with told_steps(progress, work_of_audit(len(ranges), len(alphas))) as steps:
        equivalents.problem.progress = steps.hook if progress else None
        steps.begin("measuring the network", 1.0)
        base, bench = measured(
            equivalents.problem,
            chosen,
            settings=settings or {},
            seed=seed,
            tolerance=tolerance,
            seconds=None if given.deadline is None else given.deadline.elsewhere(1 / measurements),
            also=ALSO,
        )
        rescaler = Rescaler(equivalents, bench)
        copies = ChangedCopies(
            rescaler,
            base,
            settings or {},
            seed=seed,
            tolerance=tolerance,
            coarse=COARSE,
            left=measurements - 1,
            steps=steps,
        )
        run = _AuditRun(copies, chosen)
        try:
            sweep = run.sweep(sorted({*map(float, alphas), 1.0}), SWEPT) if alphas else None
            trials = [trial for changes in TRIALS for trial in run.tried(changes(equivalents, ranges, seed))]
            trials.sort(key=lambda trial: [*ranges, trial.strength].index(trial.strength))
            trials += run.output_scaling(sweep)
            one_neuron = run.one_neuron()
        finally:
            rescaler.release()
            equivalents.problem.progress = None
    return Audit(
        verdicts=_verdicts(chosen, trials),
        sweep=sweep,
        one_neuron=one_neuron,
        found=[str(each) for each in equivalents.found],
        left_alone=[f"{where}: {reason}" for where, reason in equivalents.found.left_alone],
        untraced=equivalents.found.reason,
        refused=dict(run.refused),
        strengths=ranges,
        base=base,
        copied_from=None if equivalents.problem is given else str(given.dtype).removeprefix("torch."),
    )


def work_of_audit(strengths: int, alphas: int) -> float:
    """Return about how many measurements of the network an audit comes to, where values follow."""
    return 1 + A_TRIAL * (1 + RUNS_A_STRENGTH * strengths) + AN_ALPHA * alphas


def examine(
    copies: ChangedCopies, chosen: list[Measure], *, strengths: Strengths = ("usual",), alpha: float = 2.0
) -> tuple[dict[str, dict[str, Verdict]], dict[str, str]]:
    """Return an audit's verdicts alone, and what was refused: rescalings and one scale of the outputs."""
    run = _AuditRun(copies, chosen)
    trials = [
        *run.tried(rescalings(copies.equivalents, chosen_strengths(strengths), copies.seed)),
        *run.output_scaling(run.sweep([float(alpha)])),
    ]
    return _verdicts(chosen, trials), dict(run.refused)


def _verdicts(chosen: list[Measure], trials: list[Trial]) -> dict[str, dict[str, Verdict]]:
    return {
        own.name: {
            symmetry: conclude(own, symmetry, [t for t in trials if t.measure == own.name and t.symmetry == symmetry])
            for symmetry in own.invariances
        }
        for own in chosen
    }


def chosen_strengths(strengths: Strengths) -> dict[str, tuple[float, float]]:
    """Return the ranges of factors by name, checked."""
    if strengths is None:
        return dict(STRENGTHS)
    if not isinstance(strengths, Mapping):
        names = [strengths] if isinstance(strengths, str) else list(strengths)
        for name in names:
            if name not in STRENGTHS:
                raise UsageError(f"there is no strength {name!r}{near_names(str(name), STRENGTHS)}")
        return {name: STRENGTHS[name] for name in names}
    for name, (low, high) in strengths.items():
        if not (0 < low <= high and math.isfinite(high)) or low == high == 1:
            raise UsageError(f"strength {name!r} must be a range of positive factors, not ({low}, {high})")
    return {name: (float(low), float(high)) for name, (low, high) in strengths.items()}


def copy_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """Return the dtype that copies are measured in, from itself or its name; None stands for the network's own."""
    return as_torch_dtype(dtype, "'float64', 'float32' or None for the network's own")


def conclude(own: Measure, symmetry: str, trials: list[Trial]) -> Verdict:
    """Gather the trials of one measure under one symmetry: one change is enough, invariance needs all of them."""
    usable = [trial for trial in trials if trial.verdict != "not measured"]
    kinds = {trial.verdict for trial in usable}
    verdict: Decision
    if not trials:
        verdict = "not found"
    elif not usable:
        verdict = "not measured"
    elif "changes" in kinds:
        verdict = "changes"
    else:
        verdict = "undecided" if "undecided" in kinds else "invariant"
    return Verdict(own.name, symmetry, verdict, own.invariances.get(symmetry), tuple(trials))


class _AuditRun:
    """The trials of one audit, and what could not be tried."""

    def __init__(self, copies: ChangedCopies, chosen: list[Measure]) -> None:
        self.copies, self.chosen = copies, chosen
        self.refused: dict[str, str] = {}  # why a symmetry could not be applied

    def tried(self, changes: Iterable[Change]) -> Iterator[Trial]:
        """Try the changes; what takes passes of its own is not tried again under a symmetry that changes it."""
        decided: set[tuple[str, str]] = set()
        for change in changes:
            self.copies.steps.begin(f"trying {SYMMETRY_WORDS[change.symmetry]} {change.strength}".rstrip(), A_TRIAL)
            open_ones = [own for own in self.chosen if (own.name, change.symmetry) not in decided]
            try:
                trials = self.copies.tried(change, open_ones)
            except SpiritlevelError as error:
                self.refused[f"{change.symmetry} {change.strength}".strip()] = str(error)
                continue
            costly = {own.name for own in self.chosen if not SHARED.issuperset(own.needs)}
            decided |= {(t.measure, t.symmetry) for t in trials if t.verdict == "changes" and t.measure in costly}
            yield from trials

    def sweep(self, alphas: Sequence[float], beside: Sequence[str] = ()) -> Sweep | None:
        """Measure along T_α: the chosen measures, and those named ``beside`` them."""
        found = self.copies.equivalents.found
        if not found.of_kind("output_scale") and found.analysis is not None:
            self.refused["output_scaling"] = "no layer with a free scale produces the outputs"
            return None
        names = {name: MEASURES[name] for name in beside} | {own.name: own for own in self.chosen}
        measures = list(names.values())
        along: dict[float, tuple[dict[str, Estimate], Survey]] = {}
        # Away from 1 on either side, so that every search begins where the one before it ended.
        for side in (sorted(a for a in alphas if a >= 1), sorted((a for a in alphas if a < 1), reverse=True)):
            bench = self.copies.rescaler.bench
            for alpha in side:
                self.copies.steps.begin(f"scaling the outputs by {alpha:g}", 0.0 if alpha == 1 else AN_ALPHA)
                try:
                    if alpha == 1:
                        values = self._at_one(measures)
                    else:
                        problem, start = self.copies.equivalents.outputs_scaled(alpha), bench.top_vectors
                        values, bench = self.copies.measured(
                            problem, measures, self.copies.settings_for(measures), start
                        )
                except SpiritlevelError as error:
                    self.refused[f"output_scaling α={alpha:g}"] = str(error)
                    continue
                along[alpha] = values, bench.problem.survey
        if not along:
            return None
        kept = [alpha for alpha in alphas if alpha in along]
        return Sweep(
            kept,
            {name: [along[alpha][0][name] for alpha in kept] for name in names},
            {name: own.title for name, own in names.items()},
            [along[alpha][1].loss for alpha in kept],
            [along[alpha][1].accuracy for alpha in kept],
        )

    def _at_one(self, measures: list[Measure]) -> dict[str, Estimate]:
        """Return the values of the network itself, of which those that were not asked for are measured now."""
        copies = self.copies
        known = {own.name: copies.base[own.name] for own in measures if own.name in copies.base}
        more = [own for own in measures if own.name not in known]
        return known | estimates_of(copies.rescaler.bench, more, copies.settings_for(more))

    def output_scaling(self, sweep: Sweep | None) -> list[Trial]:
        """Judge what the sweep saw of the chosen measures; what it leaves open is measured closely."""
        if sweep is None:
            return []
        copies = self.copies
        dtype = copies.equivalents.problem.dtype
        found: list[Trial] = []
        for own in self.chosen:
            for alpha, value in zip(sweep.alphas, sweep.values[own.name]):
                if alpha == 1:
                    continue
                trial = judge_trial(own.name, "output_scaling", f"α={alpha:g}", copies.base[own.name], value, dtype)
                if trial.verdict == "undecided" and copies.coarse(own):
                    problem = copies.equivalents.outputs_scaled(alpha)
                    close = copies.measured(problem, [own], copies.settings_for([own], closely=True))[0][own.name]
                    trial = judge_trial(own.name, trial.symmetry, trial.strength, trial.before, close, dtype)
                found.append(trial)
        return found

    def one_neuron(self) -> dict[str, dict[str, list[float]]]:
        """Follow the sizes of the two matrices around one neuron while it is rescaled further and further.

        A row of the first shrinks and a column of the second grows (Tsuzuku et al. 2019, section 5.1): norms follow the
        factor and the stable rank of the second goes to 1, though the function stays as it is.
        """
        equivalents = self.copies.equivalents
        groups = equivalents.found.of_kind("neurons")
        if not groups:
            return {}
        group = groups[0]
        self.copies.steps.begin("rescaling one neuron", 0.0)
        rows: dict[str, dict[str, list[float]]] = {}
        for factor in ONE_NEURON:
            scales = torch.ones(group.factors, dtype=torch.float64)
            scales[0] = 1 / factor
            try:
                problem = equivalents.neurons_rescaled(factors={group.name: scales})
            except SpiritlevelError as error:
                self.refused[f"one neuron ×{factor:g}"] = str(error)
                continue
            sizes = run_measure(MEASURES["weight_norm"], Workbench(problem, seed=self.copies.seed), {}).layers
            for quantity in ("frobenius", "spectral_norm", "stable_rank"):
                for layer, estimate in sizes.get(quantity, {}).items():
                    rows.setdefault(layer, {}).setdefault(quantity, []).append(estimate.value)
            rows.setdefault("", {}).setdefault("factor", []).append(factor)
        return rows
