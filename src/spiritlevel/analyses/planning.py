"""What a run will cost, before it is made: passes by kind, seconds by timing one batch, memory, what ranks add up."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spiritlevel.analyses.measure_settings import chosen_settings
from spiritlevel.analyses.measuring import Measures, measure
from spiritlevel.analyses.memory_plan import MemoryPlan, plan_memory
from spiritlevel.analyses.sampling_plan import plan_sampling
from spiritlevel.engine.passes.curvature import COLUMN_LIMIT, gauss_newton_columns
from spiritlevel.inputs.deadline import deadline_of
from spiritlevel.inputs.open_problem import Measurable, OpenProblem, open_problem
from spiritlevel.inputs.process.ranks import ranks as present_ranks
from spiritlevel.measures.costs import Extent
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.reductions import FLOAT64_BYTES, reduced_numbers, reported_numbers, ring_bytes
from spiritlevel.measures.registry import select
from spiritlevel.results.cost import passes_in_words
from spiritlevel.results.numerals import bytes_text
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import UsageError

# Cost of one sweep of each kind in gradient passes, about.
WEIGHT = {"forward": 0.35, "gradient": 1.0, "column": 0.7, "product": 1.3}
# Of the products that a search usually takes, the fewest and the most as a share.
LEAST_OF_SEARCH, MOST_OF_SEARCH = 0.2, 10.0


@dataclass(frozen=True)
class PlannedMeasure:
    """The expected cost of one measure on its own; shared sweeps are counted with the first that needs them.

    Attributes
    ----------
    name : str
        The measure.
    sweeps : dict of str to float
        Sweeps over the data by kind.
    gradient_passes : float
        What they cost, in gradients of the mean loss.
    seconds : float
        About how long they take.
    passes_range : pair of float
        Gradient passes where what stops by its own error stops at once, and where it does not.
    """

    name: str
    sweeps: dict[str, float]  # by kind
    gradient_passes: float
    seconds: float
    passes_range: tuple[float, float]  # where what stops by its own error stops at once, and where it does not


@dataclass(frozen=True)
class Plan:
    """The expected cost of a run; printed, it is a table.

    Attributes
    ----------
    measures : list of PlannedMeasure
        The cost of each measure.
    samples : int
        How many samples there are.
    parameters : int
        How many parameters may move.
    gradient_passes : float
        The cost in gradients of the mean loss, with what every report shows.
    seconds : float
        About how long it will take.
    passes_range : pair of float
        The fewest and the most gradient passes.
    seconds_range : pair of float
        The shortest and the longest time.
    memory : MemoryPlan
        What is held beside the model, what there is, and whether it fits.
    reduced_bytes : float
        Bytes that all ranks add up together, where there are several.
    ranks : int
        How many processes share the data.
    notes : tuple of str
        What must be known beside the numbers.
    sampled : bool
        Whether part of the curvature will be sampled.
    limit : float
        The seconds that were given, infinite where none were.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> found = sl.plan(problem, "cheap")
    >>> found.samples, found.parameters, found.measures[0].name
    (100, 3466, 'weight_norm')
    """

    measures: list[PlannedMeasure]
    samples: int
    parameters: int
    gradient_passes: float  # with what every report shows
    seconds: float
    passes_range: tuple[float, float]
    seconds_range: tuple[float, float]
    memory: MemoryPlan
    reduced_bytes: float
    ranks: int = 1
    notes: tuple[str, ...] = ()
    sampled: bool = False
    limit: float = math.inf

    @property
    def memory_bytes(self) -> int:
        """Bytes held at most beside the model."""
        return self.memory.peak

    @property
    def refusal(self) -> str:
        """Why this cannot be measured on the device and what to do, in a sentence; nothing where it can."""
        return self.memory.refusal

    def __str__(self) -> str:
        least, most = map(duration_in_words, self.seconds_range)
        between = f" ({least} to {most})" if least != most else ""
        passes = f"{self.passes_range[0]:.0f} to {self.passes_range[1]:.0f} gradient passes"
        lines = [
            f"{self.samples:,} samples, {self.parameters:,} parameters: {about(self.seconds)}{between}, "
            f"{passes}, {self.memory}",
        ]
        if self.ranks > 1:
            sent = ring_bytes(self.reduced_bytes, self.ranks)
            lines.append(
                f"{self.ranks} ranks share the passes and add up about {bytes_text(self.reduced_bytes)}: each sends "
                f"{bytes_text(sent)}"
            )
        for planned in self.measures:
            sweeps = passes_in_words(planned.sweeps) or "shared"
            lines.append(f"  {planned.name:32} {sweeps:44} {duration_in_words(planned.seconds)}")
        return "\n".join([*lines, *self.notes])


def about(seconds: float) -> str:
    """Return a time as an estimate is said."""
    return duration_in_words(seconds) if seconds < 1 else f"about {duration_in_words(seconds)}"


def duration_in_words(seconds: float) -> str:
    """Return a time as it is said."""
    if seconds < 1:
        return "under a second"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@documented_like(measure)
def plan(
    problem: Measurable,
    measures: Measures = "default",
    *,
    settings: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    ranks: int | None = None,
) -> Plan:
    """Estimate passes, seconds and memory of ``measure(problem, measures)``, before it is done.

    One batch is timed, and memory counted while parts of a batch are measured.  What is sampled is found out on a few
    samples.  Sampling and searches stop by their own errors, so there is a range beside what is usual.

    Parameters
    ----------
    problem : Problem
        What would be measured.
    seconds : float
        The time that `measure` would be given: it is the end of the range.
    ranks : int
        How many processes share the data, each on a device of its own; by default those that `over_ranks` joined.

    Returns
    -------
    Plan
        The cost of each measure and of all.

    Raises
    ------
    UsageError
        A measure or a setting does not exist, ``seconds`` is no time, or there are no ranks.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> for planned in sl.plan(problem, ["hessian_trace", "keskar_sharpness"]).measures:
    ...     print(planned.name, planned.sweeps)
    hessian_trace {'forward': 1.0, 'column': 9.0}
    keskar_sharpness {'forward': 10.0, 'gradient': 30.0}
    """
    deadline_of(seconds)  # which refuses what is no time
    ranks = present_ranks().size if ranks is None else ranks
    if ranks < 1:
        raise UsageError(f"ranks must be at least 1, not {ranks}")
    chosen = select(measures)
    values = chosen_settings(chosen, settings or {})
    problem = open_problem(problem)
    columns, gradient_seconds, batch = _probe(problem)
    shared: set[str] = set()
    planned, sampled = [], False
    count, size = problem.survey.count, problem.size
    outputs = math.prod(problem.survey.output_shape)
    reduced = float(reported_numbers(samples=count, outputs=outputs, parameters=size))
    wants = frozenset().union(*(own.wants for own in chosen)) if chosen else frozenset()
    for own in chosen:
        sweeps = _sweeps(own, values[own.name], problem, columns, shared)
        least = most = _passes(sweeps)
        searched = _searched(own, values[own.name], problem, columns) if sweeps else 0.0
        least, most = least - (1 - LEAST_OF_SEARCH) * searched, most + (MOST_OF_SEARCH - 1) * searched
        if "blocks" in own.needs and "blocks" not in shared:
            sampling = plan_sampling(problem, wants)
            sampled = any(sampling.most.values())
            least, most = least + _passes(sampling.least), most + _passes(sampling.most)
            sweeps = {
                kind: sweeps.get(kind, 0.0) + sampling.usual.get(kind, 0.0)
                for kind in WEIGHT
                if sweeps.get(kind) or sampling.usual.get(kind)
            }
        passes = _passes(sweeps)
        planned.append(PlannedMeasure(own.name, sweeps, passes, passes * gradient_seconds, (least, max(most, passes))))
        reduced += reduced_numbers(own, sweeps, samples=count, parameters=size, weights=len(problem.weights))
        shared.update(own.needs)
    base = 1.35  # the first sweep and the gradient that every report shows
    passes = base + sum(each.gradient_passes for each in planned)
    least, most = (base + sum(each.passes_range[end] for each in planned) for end in (0, 1))
    notes = ["Times are for the usual case; eigenvalues and sampled parts stop by their own error."]
    limit = math.inf if seconds is None else seconds
    if least * gradient_seconds > limit:
        notes.append(f"{limit:g} seconds are not enough for a first look at everything: some rows will say so.")
    return Plan(
        measures=planned,
        samples=count,
        parameters=size,
        gradient_passes=passes,
        seconds=min(passes * gradient_seconds, limit),
        passes_range=(least, most),
        seconds_range=(min(least * gradient_seconds, limit), min(most * gradient_seconds, limit)),
        memory=plan_memory(problem, chosen, values, batch),
        reduced_bytes=FLOAT64_BYTES * reduced,
        ranks=ranks,
        notes=tuple(notes),
        sampled=sampled,
        limit=limit,
    )


def _passes(sweeps: Mapping[str, float]) -> float:
    return sum(WEIGHT[kind] * count for kind, count in sweeps.items())


def _searched(own: Measure, settings: Mapping[str, Any], problem: OpenProblem, columns: int) -> float:
    """Return the gradient passes that a measure's search usually takes, where it stops by its residual."""
    if not {"eigen", "layer_eigen"} & set(own.needs):
        return 0.0
    return WEIGHT["product"] * own.cost.sweeps(Extent(columns, len(problem.weights), settings)).get("product", 0.0)


def _probe(problem: OpenProblem) -> tuple[int, float, int]:
    """Return the number of factor columns, the seconds of a gradient pass over the data, and the samples of a batch."""
    survey = problem.survey
    with problem.session():
        batch = next(iter(problem.batches()))
        outputs = problem.outputs(batch.content)
        columns = (
            COLUMN_LIMIT if survey.coupled else len(gauss_newton_columns(problem, batch, outputs.detach()).columns)
        )
        start = time.perf_counter()
        losses, _ = problem.loss.per_sample(problem.outputs(batch.content), batch.content)
        torch.autograd.grad(losses.sum(), problem.tensors, allow_unused=True)
        seconds = (time.perf_counter() - start) * survey.count / batch.count
    return columns, seconds, batch.count


def _sweeps(
    own: Measure, settings: Mapping[str, Any], problem: OpenProblem, columns: int, shared: set[str]
) -> dict[str, float]:
    """Fill in the declared cost: words stand for what the problem and the settings decide."""
    needs = set(own.needs) - {"problem", "seed"}
    if "perturbed" in needs:  # losses elsewhere than at the network's parameters are nobody else's
        needs.add(own.name)
    if needs and needs <= shared:
        return {}
    return own.cost.sweeps(Extent(columns, len(problem.weights), settings))
