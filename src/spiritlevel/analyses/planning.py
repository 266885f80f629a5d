"""What a run will cost, before it is made: passes by kind, and seconds and memory from timing one batch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from spiritlevel.analyses.measuring import Measures, chosen_settings
from spiritlevel.engine.passes.curvature import COLUMN_LIMIT, gauss_newton_columns
from spiritlevel.inputs.open_problem import Measurable, OpenProblem, open_problem
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import select

# Typical lengths of the adaptive parts, for the estimate only: each stops by its own error or residual.
TYPICAL_LANCZOS_STEPS = 20
TYPICAL_EIGEN_PRODUCTS = 40
# Cost of one sweep of each kind in gradient passes, about.
WEIGHT = {"forward": 0.35, "gradient": 1.0, "column": 0.7, "product": 1.3}


@dataclass(frozen=True)
class PlannedMeasure:
    """The expected cost of one measure on its own; shared sweeps are counted with the first that needs them."""

    name: str
    sweeps: dict[str, float]  # by kind
    gradient_passes: float
    seconds: float


@dataclass(frozen=True)
class Plan:
    """The expected cost of a run."""

    measures: list[PlannedMeasure]
    samples: int
    parameters: int
    seconds: float
    memory_bytes: int
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{self.samples:,} samples, {self.parameters:,} parameters: about {_duration(self.seconds)}, "
            f"about {self.memory_bytes / 2**20:,.0f} MiB beside the model",
        ]
        for planned in self.measures:
            sweeps = ", ".join(f"{count:g} {kind}" for kind, count in planned.sweeps.items() if count) or "shared"
            lines.append(f"  {planned.name:32} {sweeps:44} {_duration(planned.seconds)}")
        return "\n".join([*lines, *self.notes])


def _duration(seconds: float) -> str:
    if seconds < 1:
        return "under a second"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def plan(problem: Measurable, measures: Measures = "default", *, settings: Mapping[str, Any] | None = None) -> Plan:
    """Estimate passes, seconds and memory of ``measure(problem, measures)``: one sweep is timed, nothing measured."""
    chosen = select(measures)
    values = chosen_settings(chosen, settings or {})
    problem = open_problem(problem)
    columns, gradient_seconds, numbers = _probe(problem)
    shared: set[str] = set()
    planned = []
    for own in chosen:
        sweeps = _sweeps(own, values[own.name], problem, columns, shared)
        passes = sum(WEIGHT[kind] * count for kind, count in sweeps.items())
        planned.append(PlannedMeasure(own.name, sweeps, passes, passes * gradient_seconds))
        shared.update(own.needs)
    wants_diagonal = any("diagonal" in own.wants for own in chosen)
    basis = max((_basis_vectors(own) for own in chosen), default=0)
    size = problem.tensors[0].element_size()
    memory = numbers * size * 3 + problem.size * (size * (2 + basis) + (8 if wants_diagonal else 0))
    base = 1.35 * gradient_seconds  # the first sweep and the gradient that every report shows
    return Plan(
        measures=planned,
        samples=problem.survey.count,
        parameters=problem.size,
        seconds=base + sum(p.seconds for p in planned),
        memory_bytes=int(memory),
        notes=("Times are for the usual case; eigenvalues and sampled parts stop by their own error.",),
    )


def _probe(problem: OpenProblem) -> tuple[int, float, int]:
    """Return the number of factor columns, the seconds of a gradient pass over the data, and a batch's activations."""
    survey = problem.survey
    activations = 0

    def count(module: Any, args: Any, output: Any) -> None:
        nonlocal activations
        if isinstance(output, torch.Tensor):
            activations += output.numel()

    with problem.session():
        batch = next(iter(problem.batches()))
        handles = [module.register_forward_hook(count) for module in problem.model.modules()]
        try:
            outputs = problem.outputs(batch.content)
        finally:
            for handle in handles:
                handle.remove()
        columns = (
            COLUMN_LIMIT if survey.coupled else len(gauss_newton_columns(problem, batch, outputs.detach()).columns)
        )
        start = time.perf_counter()
        losses, _ = problem.loss.per_sample(problem.outputs(batch.content), batch.content)
        torch.autograd.grad(losses.sum(), problem.tensors, allow_unused=True)
        seconds = (time.perf_counter() - start) * survey.count / batch.count
    return columns, seconds, activations


def _sweeps(
    own: Measure, settings: Mapping[str, Any], problem: OpenProblem, columns: int, shared: set[str]
) -> dict[str, float]:
    """Fill in the declared cost: words stand for what the problem and the settings decide."""
    needs = set(own.needs) - {"problem", "seed"}
    if "perturbed" in needs:  # losses elsewhere than at the network's parameters are nobody else's
        needs.add(own.name)
    if needs and needs <= shared:
        return {}
    words = {
        "outputs - 1": float(columns),
        "layers × Lanczos steps": float(len(problem.weights) * TYPICAL_LANCZOS_STEPS),
        "the top pairs and probes": float(TYPICAL_EIGEN_PRODUCTS + settings.get("probes", 8)),
    }
    found = {}
    for kind in WEIGHT:
        declared = getattr(own.cost, kind)
        if isinstance(declared, str):
            declared = words.get(declared, float(settings.get(declared, TYPICAL_EIGEN_PRODUCTS)))
        if declared:
            found[kind] = float(declared)
    return found


def _basis_vectors(own: Measure) -> int:
    return 36 if "eigen" in own.needs else 0
