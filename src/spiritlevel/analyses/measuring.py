"""Measuring: choose measures, share their passes, and gather the results with everything needed to read them."""

from __future__ import annotations

import math
import platform
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.analyses.measure_settings import MeasureSettings, chosen_settings, toleranced_settings, wanted_of
from spiritlevel.analyses.refining import keep_what_is_known, measure_all
from spiritlevel.analyses.running import MeasureRun, run_measure
from spiritlevel.engine.blocks import BUDGET
from spiritlevel.engine.passes.gradient import GradientStats
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.deadline import Deadline, deadline_of
from spiritlevel.inputs.given import Given
from spiritlevel.inputs.open_problem import Measurable, OpenProblem, open_problem
from spiritlevel.inputs.progress import show_progress
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import MEASURES, select
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results import Report
from spiritlevel.results.header import Header
from spiritlevel.results.standing import at_minimum, guesses
from spiritlevel.values.errors import UsageError, near_names
from spiritlevel.values.estimate import Estimate, Result

Measures = str | Measure | Iterable[str | Measure]


class MeasuringInterrupted(KeyboardInterrupt):
    """Measuring was interrupted; ``report`` holds every measure, with what was known of it by then.

    It is a ``KeyboardInterrupt``.

    Parameters
    ----------
    report : Report
        Every measure, with the error it has by then and a reason that says it was interrupted.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> try:
    ...     report = sl.measure(problem, "hessian_trace")  # where Ctrl-C may be pressed
    ... except sl.MeasuringInterrupted as error:
    ...     report = error.report
    >>> report["hessian_trace"].status
    'ok'
    """

    def __init__(self, report: Report) -> None:
        super().__init__("interrupted")
        self.report = report


def as_problem(problem: Measurable | nn.Module, data: Any, **options: Any) -> Measurable:
    """Return the problem given, or the one a model and data make."""
    if isinstance(problem, Measurable):
        if data is not None or options:
            raise UsageError("data and its options belong to the Problem; pass either a Problem, or a model and data")
        return problem
    if data is None:
        raise UsageError("measure(model, data) needs data: (x, y) tensors, a Dataset, a DataLoader or batches")
    return Problem(problem, data, **options)


def measure(
    problem: Measurable | nn.Module,
    data: Any = None,
    measures: Measures = "default",
    *,
    settings: MeasureSettings | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    seconds: float | Deadline | None = None,
    progress: bool = False,
    **options: Any,
) -> Report:
    """Measure a network: ``measure(problem, measures=...)`` or ``measure(model, data, measures=..., loss=...)``.

    Passes over the data that several measures need are made once.  A measure that cannot be computed has a row with its
    reason.

    Parameters
    ----------
    problem : Problem or torch.nn.Module
        What to measure; with a network ``data`` must be given too.
    data : tensors, a Dataset, a DataLoader or batches
        The data, where a network was given; as for `Problem`.
    measures : str, Measure or list of these
        Names, groups ("default", "cheap", "papers", "all"), globs, or functions declared with `declare`. With a problem
        they may be the second argument.
    settings : mapping
        Settings of measures, as ``{"name.option": value}`` or ``{"name": {"option": value}}``.
    seed : int
        Seed of everything that is drawn while measuring.
    tolerance : float
        The relative error at which sampling and eigenvalues stop; by default each measure's own.
    seconds : float
        By when the best answer is to be had: it comes sooner where all errors are within the tolerance, and else each
        value stands with the error it has by then.
    progress : bool
        Whether to show progress on standard error.
    **options
        Arguments of `Problem`, where a network was given.

    Returns
    -------
    Report
        An `Estimate` a measure, with layers, neurons and samples, and a header that says what was measured.

    Raises
    ------
    UsageError
        A measure, a setting or an option does not exist or has a value that the message names.
    SpiritlevelError
        The network and the data do not allow it, for instance where the data differs from sweep to sweep.
    MeasuringInterrupted
        It was interrupted (Ctrl-C); ``report`` of this ``KeyboardInterrupt`` holds what is known.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model, data = sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits")
    >>> record = sl.training.train(model, data, steps=300, batch_size=32)
    >>> report = sl.measure(model, data, ["hessian_trace", "output_margin"], samples=200)
    >>> for name, estimate in report.items():
    ...     print(f"{name} {estimate.value:.3g} ± {estimate.stderr_data:.2g} over samples")
    hessian_trace 64 ± 4.1 over samples
    output_margin 2.66 ± 0.15 over samples
    """
    if data is not None and isinstance(problem, Measurable) and isinstance(data, (str, Measure, list, tuple)):
        data, measures = None, data  # measure(problem, "papers")
    chosen, limit = select(measures), deadline_of(seconds)
    chosen_settings(chosen, settings or {})  # refused before any work is done
    target = as_problem(problem, data, **options)
    if isinstance(target, Given) and target.sharded:
        from spiritlevel.analyses.sharded_measuring import measured_sharded

        refuse_deadline(limit)
        values = toleranced_settings(chosen, settings or {}, tolerance)
        return measured_sharded(target, chosen, values, seed=seed, tolerance=tolerance, progress=progress)
    return measured(
        open_problem(target),
        chosen,
        settings=settings or {},
        seed=seed,
        tolerance=tolerance,
        seconds=limit,
        progress=progress,
    )[0]


def refuse_deadline(limit: Deadline | None) -> None:
    """Refuse a deadline for a sharded model: ranks that look at clocks of their own do not stay in step."""
    if limit is not None:
        raise UsageError(
            "seconds cannot be kept for a sharded model, whose ranks must all stop at the same place; give a tolerance"
        )


def measured(
    target: OpenProblem,
    chosen: list[Measure],
    *,
    settings: MeasureSettings,
    seed: int,
    tolerance: float | None,
    seconds: Deadline | None = None,
    progress: bool = False,
    also: frozenset[str] = frozenset(),
) -> tuple[Report, Workbench]:
    """Return the report and the quantities it came from.

    ``also`` names what is wanted of the diagonal blocks beside what the measures want.
    """
    values = toleranced_settings(chosen, settings, tolerance)
    began = time.perf_counter()
    target.deadline = seconds or target.deadline
    bench = workbench_of(target, chosen, values, seed=seed, tolerance=tolerance, also=also)
    runs = [MeasureRun(own, bench, values[own.name]) for own in chosen]
    interrupted = ""
    with show_progress(target, progress), target.session():
        bench.begin({need for own in chosen for need in own.needs})
        gradient = bench.gradient
        try:
            measure_all(target, runs)
        except KeyboardInterrupt:
            finished = sum(run.settled for run in runs)
            interrupted = f"Interrupted after {finished} of {len(chosen)} measures."
            keep_what_is_known(target, runs)
    header = replace(header_of(target, bench, seed, gradient), wall_time=time.perf_counter() - began)
    if interrupted:
        header = replace(header, notes=(*header.notes, interrupted))
    results = {run.measure.name: run.result for run in runs}
    report = _assemble(results, chosen, values, header, target.source.indices_of(target.survey.count))
    if interrupted:
        raise MeasuringInterrupted(report)
    return report, bench


def estimates_of(
    bench: Workbench, chosen: list[Measure], values: Mapping[str, Mapping[str, Any]]
) -> dict[str, Estimate]:
    """Return the measures' values on a workbench alone, without the gradient and all else that a report shows."""
    runs = [MeasureRun(own, bench, values[own.name]) for own in chosen]
    with bench.problem.session():
        bench.begin({need for own in chosen for need in own.needs})
        measure_all(bench.problem, runs)
    return {run.measure.name: run.result.value for run in runs}


def workbench_of(
    target: OpenProblem,
    chosen: list[Measure],
    values: Mapping[str, Mapping[str, Any]],
    *,
    seed: int,
    tolerance: float | None,
    also: frozenset[str] = frozenset(),
    start: Tensor | None = None,
) -> Workbench:
    """Return the workbench for some measures; ``start`` (P, k) are vectors near the top eigenvectors."""
    wants = also | wanted_of(chosen, values)
    pairs = max((int(values[own.name].get("k", 1)) for own in chosen if "eigen" in own.needs), default=1)
    budget = BUDGET if target.deadline is None else math.inf  # the time is what may be spent
    return Workbench(target, wants, seed=seed, tolerance=tolerance, budget=budget, eigenpairs=pairs, start=start)


def _assemble(
    results: dict[str, Result],
    chosen: list[Measure],
    settings: dict[str, dict[str, Any]],
    header: Header,
    indices: Tensor,
) -> Report:
    per_layer: dict[str, dict[str, Estimate]] = {}
    per_neuron: dict[str, dict[str, list[float]]] = {}
    per_sample: dict[str, Tensor] = {}
    for result in results.values():
        per_layer.update(result.layers)
        per_neuron.update(result.neurons)
        per_sample.update(result.samples)
    titles = {q: title for own in [*MEASURES.values(), *chosen] for q, title in own.layer_titles.items()}
    return Report(
        estimates={name: result.value for name, result in results.items()},
        per_layer=per_layer,
        per_neuron=per_neuron,
        per_sample=per_sample,
        sample_indices=indices if per_sample else None,
        header=header,
        settings=settings,
        titles={**titles, **{own.name: own.title for own in chosen}},
    )


def header_of(problem: OpenProblem, bench: Workbench | None, seed: int, gradient: GradientStats | None) -> Header:
    """Return what every result says of itself: which network, data, loss and precision, and where it stands.

    Without a ``gradient`` nobody looked where it stands, without a ``bench`` which layers are exact.
    """
    survey = problem.survey
    total = problem.source.drawn_from or survey.count
    blocks = None if bench is None else bench.known_blocks
    exact = None if blocks is None else blocks.exact_layers
    sums = None if blocks is None else blocks.sums
    rounding = None if sums is None else sums.rounding
    classes = survey.output_shape[-1] if survey.correct is not None and problem.loss.name == "cross_entropy" else None
    guessing = guesses(survey.loss, classes)
    return Header(
        model=type(problem.model).__name__,
        samples=survey.count,
        samples_total=total,
        loss_name=problem.loss.name,
        loss=survey.loss,
        accuracy=survey.accuracy,
        gradient_norm=None if gradient is None else gradient.norm,
        gradient_noise=None if gradient is None else gradient.noise,
        at_minimum=at_minimum_of(gradient, survey.count, total, guessing=guessing),
        guessing=guessing or None,
        seed=seed,
        data_seed=problem.seed,
        fingerprint=survey.fingerprint,
        mode=problem.mode,
        dtype=str(problem.dtype).removeprefix("torch."),
        precision=None if rounding is None else rounding.precision,
        device=str(problem.device),
        parameters=problem.size,
        layers=tuple(problem.layers),
        exact_layers=None if exact is None else tuple(name for name, is_exact in exact.items() if is_exact),
        versions=versions(),
        passes=dict(problem.spent),
        notes=tuple(problem.notes),
    )


def at_minimum_of(gradient: GradientStats | None, samples: int, total: int, *, guessing: bool) -> bool | None:
    """Return whether a network is at a minimum, None where nobody looked or it cannot be told."""
    return None if gradient is None else at_minimum(gradient.norm, gradient.noise, samples, total, guessing=guessing)


def versions() -> dict[str, str]:
    """Return the versions that decide the numbers."""
    from spiritlevel.values.version import __version__

    return {
        "spiritlevel": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.machine(),
    }


def per_sample(problem: Measurable, names: str | Iterable[str], *, seed: int = 0, **settings: Any) -> dict[str, Tensor]:
    """Return one number a sample: {name: tensor of length N}; settings as for ``measure``.

    Samples come in the order of the data; row i is sample i only where all of it is measured, and not where
    ``samples=N`` or a DataLoader's sampler chose some.

    Parameters
    ----------
    problem : Problem
        What to measure.
    names : str or list of str
        Measures that have a value of each sample, "loss", and "index": where the sample stands in the data, from 0.
    seed : int
        Seed of everything that is drawn.
    **settings
        ``settings={"name.option": value}``, as for `measure`.

    Returns
    -------
    dict of str to Tensor
        A number a sample, (N,), by name.

    Raises
    ------
    UsageError
        There is no such number of a sample, or it cannot be computed for these samples.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> found = sl.per_sample(problem, ["loss", "output_margin", "index"])
    >>> worst = int(found["loss"].argmax())
    >>> int(found["index"][worst]), round(float(found["loss"][worst]), 3)
    (778, 2.402)
    """
    wanted = [names] if isinstance(names, str) else list(names)
    known = [*(name for name, own in MEASURES.items() if own.per_sample), "loss", "index"]
    for name in wanted:
        if name not in known:
            raise UsageError(f"there is no per-sample quantity {name!r}{near_names(name, known)}")
    problem = open_problem(problem)
    bench = Workbench(problem, seed=seed)
    found: dict[str, Tensor] = {}
    with problem.session():
        for name in wanted:
            if name == "loss":
                found[name] = problem.survey.losses.clone()
                continue
            if name == "index":
                found[name] = problem.source.indices_of(problem.survey.count).clone()
                continue
            own = MEASURES[name]
            if callable(own.per_sample):
                found[name] = own.per_sample(*(getattr(bench, need) for need in own.needs))
            else:
                result = run_measure(own, bench, chosen_settings([own], settings.get("settings", {}))[name])
                if result.value.status == "not_applicable":
                    raise UsageError(f"{name} cannot be computed for these samples: {result.value.reason}")
                found[name] = result.samples[name].clone()
    return found
