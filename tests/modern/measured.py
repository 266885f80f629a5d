"""One network measured: its values beside the truth, and what they cost in gradient passes over the same samples."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spiritlevel as sl
from spiritlevel.engine.tensor_estimate import TensorEstimate
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.workbench import Workbench
from spiritlevel.values.errors import SpiritlevelError
from tests.modern.network import ModernNetwork, Trained, outputs_of
from tests.modern.truth import Truth, truth_of
from tests.modern.verdict import Verdict, judge, layer_errors, sample_errors

REPEATS = 9  # of one gradient, whose median counts


WITH_SAMPLES = {"hessian_trace.samples": True}


@dataclass
class Measured:
    """A network's line in the record; lists have one entry a seed."""

    name: str
    parameters: int
    outputs: tuple[int, ...]
    losses: tuple[float, float]  # before and after training
    samples: int
    gradient: float  # CPU seconds of one pass: forward and backward over all samples, in the measurement's batches
    truth: Truth = field(repr=False)
    passes: list[float] = field(
        default_factory=list
    )  # CPU seconds of the default group and all samples' traces over it
    spent: list[dict[str, float]] = field(default_factory=list)  # as the instrument counts them
    verdicts: list[list[Verdict]] = field(default_factory=list)
    layers: list[dict[str, float]] = field(default_factory=list)  # z of traces
    sample_traces: list[list[float]] = field(default_factory=list)  # z of a few
    refused: str = ""

    @property
    def wrong(self) -> list[Verdict]:
        return [verdict for of_seed in self.verdicts for verdict in of_seed if not verdict.right]


def measured(
    network: ModernNetwork, count: int, seeds: int, dtype: str = "float64", cache: Path | None = None
) -> Measured:
    """Train, find the truth, and measure with every seed."""
    trained = network.train()
    truth = truth_of(trained, count, cache)
    problem = trained.problem(count, dtype=dtype)
    with torch.no_grad():
        shape = tuple(outputs_of(trained.model, network.data(1)).shape[1:])
    found = Measured(
        network.name,
        truth.parameters,
        shape,
        (trained.before, trained.after),
        count,
        gradient_cost(trained, problem),
        truth,
    )
    try:
        for seed in range(seeds):
            start = time.process_time()
            report = sl.measure(problem, "default", seed=seed, settings=WITH_SAMPLES)
            found.passes.append((time.process_time() - start) / found.gradient)
            found.spent.append({kind: float(number) for kind, number in (report.header.passes or {}).items()})
            found.verdicts.append([judge(name, one, truth.values.get(name), dtype) for name, one in report.items()])
            found.layers.append(layer_errors(report, truth.layers, dtype))
            found.sample_traces.append(sample_errors(*traces_of(report), truth.samples, dtype))
    except SpiritlevelError as error:
        found.refused = str(error)
    return found


def traces_of(report: sl.Report) -> tuple[Tensor, Tensor]:
    """Every sample's trace in a report, with its error."""
    exact = report.per_sample.get("hessian_trace")
    if exact is not None:
        return exact, torch.zeros_like(exact)
    return report.per_sample["hessian_trace_estimate"], report.per_sample["hessian_trace_stderr"]


def sample_traces(problem: sl.Problem, seed: int = 0) -> TensorEstimate:
    """What ``sl.per_sample(problem, "hessian_trace")`` returns, with its errors."""
    opened = OpenProblem(problem)
    bench = Workbench(opened, seed=seed)
    with opened.session():
        return bench.blocks.sample_traces()


def gradient_cost(trained: Trained, problem: sl.Problem) -> float:
    """CPU seconds of one gradient of the mean loss, plain, in the batches that the measurement takes; the median."""
    opened = OpenProblem(problem)
    batches: list[Any] = [batch.content for batch in opened.batches()]
    moving = [p for p in opened.model.parameters() if p.requires_grad]
    seconds = []
    for _ in range(REPEATS):
        start = time.process_time()
        for batch in batches:
            total, weight = trained.network.total_loss(outputs_of(opened.model, batch), batch)
            torch.autograd.grad(total / weight, moving)
        seconds.append(time.process_time() - start)
    return statistics.median(seconds)
