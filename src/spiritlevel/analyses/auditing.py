"""The invariance audit: every measure before and after each symmetry found, and what that says about the measure.

Verdicts come from measuring alone.  What a measure declares about itself is compared with them afterwards, and a
declared invariance that a measured change contradicts is reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spiritlevel.analyses.costing import costed
from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.measuring import Measures, MeasureSettings, as_problem, chosen_settings, measure
from spiritlevel.analyses.trials import TRIALS, Change, rescalings
from spiritlevel.inputs.deadline import Deadline, deadline_of
from spiritlevel.inputs.open_problem import Measurable, OpenProblem, open_problem
from spiritlevel.inputs.opening import as_torch_dtype
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import MEASURES, select
from spiritlevel.results import Report
from spiritlevel.results.audits import Audit
from spiritlevel.results.verdicts import Decision, Sweep, Trial, Verdict
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names
from spiritlevel.values.estimate import Estimate

# Ranges from which factors are drawn; the middle one is that of Petzka et al. 2019.
STRENGTHS: dict[str, tuple[float, float]] = {"mild": (1.25, 2.0), "usual": (5.0, 25.0), "extreme": (100.0, 1000.0)}
ALPHAS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
# What the sweep over T_α shows whatever was chosen (Lengyel et al. 2021, Corollary 5.2).
SWEPT = ("hessian_trace", "hessian_top_eigenvalue", "hessian_frobenius", "output_margin", "softmax_margin")
ONE_NEURON = (1.0, 10.0, 100.0, 1000.0)

# Relative change that rounding explains where a value is exact.
ROUNDING = {torch.float32: 2e-3, torch.float64: 1e-7}
SIGMAS = 5.0  # standard errors come from as few as eight draws, whose own spread is large
# "Invariant" needs an error small enough to have seen a change: larger than this share of the value it is undecided.
RESOLUTION = 0.01
# Measurements of an audit: of the network itself, permuted, and one neuron rescaled; and for each range of factors.
RUNS_AT_LEAST, RUNS_A_STRENGTH = 2 + len(ONE_NEURON), 2
# A bound found by a search, or an infimum over samples, may miss its own optimum by about this share.
BOUND_SHARE = 0.1

Strengths = Mapping[str, tuple[float, float]] | Sequence[str] | None


@costed
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
    dtype: str | torch.dtype | None = "float64",
    seconds: float | Deadline | None = None,
    progress: bool = False,
    **options: Any,
) -> Audit:
    """Measure before and after every symmetry found in the network: which numbers would change, and by how much.

    Verdicts come from measuring alone, on a float64 copy unless ``dtype=None``, so that what rounding changes is not
    taken for what the symmetry changes.

    Parameters
    ----------
    problem : Problem or torch.nn.Module
        What to audit; with a network ``data`` must be given too.
    data : tensors, a Dataset, a DataLoader or batches
        The data, where a network was given; as for `Problem`.
    measures : str, Measure or list of these
        As for `measure`.
    strengths : list of str or mapping
        Names among "mild", "usual" (factors in [5, 25]) and "extreme", or a mapping from names to ranges; by default
        all.
    alphas : sequence of float
        The grid of the T_α sweep, in which the outputs are scaled; empty for none.
    settings : mapping
        Settings of measures, as for `measure`.
    seed : int
        Seed of the factors and of everything that is drawn while measuring.
    tolerance : float
        As for `measure`.
    dtype : str or torch.dtype
        "float64", "float32", or None for the network's own.
    seconds : float
        Shared by all measurements: what there was no time to try is among what was refused, and what is not known well
        enough is undecided.
    progress : bool
        Whether to show progress on standard error.
    **options
        Arguments of `Problem`, where a network was given.

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
    run = _AuditRun(equivalents, chosen, settings or {}, seed, tolerance, progress, measurements)
    base = run.report(equivalents.problem)
    sweep = _sweep(run, sorted({*map(float, alphas), 1.0}), SWEPT) if alphas else None
    trials = [
        *(trial for changes in TRIALS for trial in _tried(run, base, changes(equivalents, ranges, seed))),
        *_output_scaling(run, base, sweep),
    ]
    return Audit(
        verdicts=_verdicts(chosen, trials),
        sweep=sweep,
        one_neuron=_one_neuron(run),
        found=[str(each) for each in equivalents.found],
        left_alone=[f"{where}: {reason}" for where, reason in equivalents.found.left_alone],
        untraced=equivalents.found.reason,
        refused=dict(run.refused),
        strengths=ranges,
        base=base,
        copied_from=None if equivalents.problem is given else str(given.dtype).removeprefix("torch."),
    )


def examine(
    equivalents: Equivalents,
    base: Report,
    chosen: list[Measure],
    *,
    strengths: Strengths = ("usual",),
    alpha: float = 2.0,
    settings: MeasureSettings | None = None,
    seed: int = 0,
    tolerance: float | None = None,
) -> tuple[dict[str, dict[str, Verdict]], dict[str, str]]:
    """Return an audit's verdicts alone, and what was refused: rescalings and one scale of the outputs."""
    ranges = chosen_strengths(strengths)
    measurements = RUNS_A_STRENGTH * len(ranges) + 1
    run = _AuditRun(equivalents, chosen, settings or {}, seed, tolerance, False, measurements)
    sweep = _sweep(run, [float(alpha)])
    changes = rescalings(equivalents, ranges, seed)
    trials = [*_tried(run, base, changes), *_output_scaling(run, base, sweep)]
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


class _AuditRun:
    """What every measurement of one audit has in common."""

    def __init__(
        self,
        equivalents: Equivalents,
        chosen: list[Measure],
        settings: MeasureSettings,
        seed: int,
        tolerance: float | None,
        progress: bool,
        measurements: int,
    ) -> None:
        self.equivalents = equivalents
        self.left = measurements  # still to come, among which the time is divided
        self.chosen = chosen
        self.settings = settings
        self.seed = seed
        self.tolerance = tolerance
        self.progress = progress
        self.refused: dict[str, str] = {}  # why a symmetry could not be applied

    def report(self, problem: OpenProblem, chosen: list[Measure] | None = None) -> Report:
        measured = chosen or self.chosen
        names = {own.name for own in measured}
        deadline = self.equivalents.problem.deadline
        if deadline is not None:
            self.left = max(self.left - 1, 0)
            deadline = deadline.elsewhere(1 / (self.left + 1))
        return measure(
            problem,
            measures=measured,
            settings={key: value for key, value in self.settings.items() if key.partition(".")[0] in names},
            seed=self.seed,
            tolerance=self.tolerance,
            seconds=deadline,
            progress=self.progress,
        )


def _tried(run: _AuditRun, base: Report, changes: Iterable[Change]) -> Iterator[Trial]:
    """Measure on the changed networks; a refusal of a change is kept with its reason."""
    dtype = run.equivalents.problem.dtype
    for symmetry, strength, change in changes:
        try:
            after = run.report(change())
        except SpiritlevelError as error:
            run.refused[f"{symmetry} {strength}".strip()] = str(error)
            continue
        for own in run.chosen:
            yield judge_trial(own.name, symmetry, strength, base[own.name], after[own.name], dtype)


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


def _sweep(run: _AuditRun, alphas: Sequence[float], beside: Sequence[str] = ()) -> Sweep | None:
    """Measure along T_α: the chosen measures, and those named ``beside`` them."""
    if not run.equivalents.found.of_kind("output_scale") and run.equivalents.found.analysis is not None:
        run.refused["output_scaling"] = "no layer with a free scale produces the outputs"
        return None
    names = {name: MEASURES[name] for name in beside} | {own.name: own for own in run.chosen}
    reports: dict[float, Report] = {}
    for alpha in alphas:
        try:
            reports[alpha] = run.report(run.equivalents.outputs_scaled(alpha), list(names.values()))
        except SpiritlevelError as error:
            run.refused[f"output_scaling α={alpha:g}"] = str(error)
    if not reports:
        return None
    titles = {name: own.title for name, own in names.items()}
    values = {name: [report[name] for report in reports.values()] for name in names}
    accuracies = [report.accuracy for report in reports.values()]
    return Sweep(list(reports), values, titles, [report.loss for report in reports.values()], accuracies)


def _output_scaling(run: _AuditRun, base: Report, sweep: Sweep | None) -> list[Trial]:
    if sweep is None:
        return []
    return [
        judge_trial(own.name, "output_scaling", f"α={alpha:g}", base[own.name], estimate, run.equivalents.problem.dtype)
        for own in run.chosen
        for alpha, estimate in zip(sweep.alphas, sweep.values[own.name])
        if alpha != 1
    ]


def _one_neuron(run: _AuditRun) -> dict[str, dict[str, list[float]]]:
    """Follow the sizes of the two matrices around one neuron while it is rescaled further and further.

    A row of the first shrinks and a column of the second grows (Tsuzuku et al. 2019, section 5.1): norms follow the
    factor and the stable rank of the second goes to 1, though the function stays as it is.
    """
    equivalents = run.equivalents
    groups = equivalents.found.of_kind("neurons")
    if not groups:
        return {}
    group = groups[0]
    rows: dict[str, dict[str, list[float]]] = {}
    for factor in ONE_NEURON:
        scales = torch.ones(group.factors, dtype=torch.float64)
        scales[0] = 1 / factor
        try:
            report = run.report(equivalents.neurons_rescaled(factors={group.name: scales}), [MEASURES["weight_norm"]])
        except SpiritlevelError as error:
            run.refused[f"one neuron ×{factor:g}"] = str(error)
            continue
        for quantity in ("frobenius", "spectral_norm", "stable_rank"):
            for layer, estimate in report.per_layer.get(quantity, {}).items():
                rows.setdefault(layer, {}).setdefault(quantity, []).append(estimate.value)
        rows.setdefault("", {}).setdefault("factor", []).append(factor)
    return rows
