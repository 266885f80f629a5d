"""What a measurement holds at most beside the model: its work is done on a few samples, twice, and the memory counted.

The bytes held are taken as a fixed part, of the order of the parameters, and one that grows with the samples at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from spiritlevel.analyses.measuring import estimates_of
from spiritlevel.engine.estimators.eigenvalues import GROWTH, USUAL_WIDTH, basis_limit
from spiritlevel.engine.operators.matrices import HessianOperator
from spiritlevel.engine.operators.memory import room_for_graphs
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.memory_limit import free_bytes
from spiritlevel.inputs.process.memory_use import memory_use
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results.numerals import bytes_text
from spiritlevel.values.errors import SpiritlevelError

# Shares of a batch that the work is tried on.
TRIED = (1 / 4, 1 / 2)
FLOAT64_BYTES = 8
# Vectors of the parameters' size that any gradient takes beside the model: its sum and its spread, in float64, and the
# gradients themselves.
GRADIENT_VECTORS = 2
OnSamples = Callable[[OpenProblem], Any]


@dataclass(frozen=True)
class Growing:
    """Bytes that grow with the number of samples."""

    fixed: float = 0.0
    each: float = 0.0

    def of(self, samples: float) -> float:
        """Return the bytes for so many samples."""
        return self.fixed + self.each * samples


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes beside the model.

    Attributes
    ----------
    peak : int
        What is held at most, what speeds up and could be done without (graphs kept between sweeps) included.
    needed : int
        What is held at least in batches as they are.
    fixed : int
        The part that no smaller batch makes less.
    each_sample : float
        What every further sample of a batch takes.
    batch : int
        The samples of a batch.
    free : int
        What there is on the device.
    device : str
        The device.
    reason : str
        Why nothing is known of a part, where that is so.
    """

    peak: int
    needed: int
    fixed: int
    each_sample: float
    batch: int
    free: int
    device: str
    reason: str = ""

    def __str__(self) -> str:
        if self.reason and not self.peak:
            return f"memory not known ({self.reason})"
        return f"about {bytes_text(self.peak)} beside the model, {bytes_text(self.free)} free on {self.device}"

    @property
    def refusal(self) -> str:
        """Why this cannot fit and what to do, in a sentence; nothing where it fits."""
        if self.needed <= self.free:
            return ""
        has = f"about {bytes_text(self.needed)} beside the model, and {bytes_text(self.free)} are free on {self.device}"
        room = self.free - self.fixed
        # Half of what the line says: pieces of a large batch are worked on in turn, and it takes less than its share.
        fitting = int(room / self.each_sample / 2) if self.each_sample > 0 and room > 0 else 0
        if fitting >= 1:
            return f"a batch of {self.batch:,} samples needs {has}; use batch_size={fitting}, or as few samples in all"
        return (
            f"this needs {has}; {bytes_text(self.fixed)} of it go with the parameters, whatever the batch: "
            "choose fewer of them by a pattern as parameters='head.*', leave out measures of single weights and "
            "eigenvalues, or shard the model over several devices"
        )


def plan_memory(
    problem: OpenProblem, chosen: list[Measure], values: Mapping[str, Mapping[str, Any]], batch: int
) -> MemoryPlan:
    """Return what measuring takes in batches of so many samples."""
    size, itemsize, free = problem.size, problem.dtype.itemsize, free_bytes(problem.device)
    least = size * (GRADIENT_VECTORS * FLOAT64_BYTES + itemsize)
    wants = frozenset().union(*(own.wants for own in chosen)) if chosen else frozenset()
    if "diagonal" in wants:
        least += size * FLOAT64_BYTES
    device = str(problem.device)
    if least > free:  # nothing can be tried
        return MemoryPlan(least, least, least, 0.0, batch, free, device)
    samples = problem.survey.count
    plain = [own for own in chosen if not _searches(own)]
    sweeps, sums, reason = _tried(problem, batch, lambda few: _measured(few, plain, values, wants))
    needed, peak, fixed, each = sweeps.of(batch), sweeps.of(batch), sweeps.fixed, sweeps.each
    if len(plain) < len(chosen):
        width = max((int(values[own.name].get("probes", 0)) for own in chosen if _searches(own)), default=0)
        products, graphs, other = _tried(problem, batch, partial(_product, width=max(width, USUAL_WIDTH)))
        reason = reason or other
        pairs = max((int(values[own.name].get("k", 1)) for own in chosen if "eigen" in own.needs), default=1)
        basis = itemsize * size * _basis(problem, chosen, pairs)
        held = sums.of(samples) + basis + products.of(batch)
        kept = min(graphs.each * samples, room_for_graphs(problem)[1])
        needed, peak = max(needed, held), max(peak, held + max(kept - graphs.each * batch, 0.0))
        fixed = max(fixed, sums.fixed + basis + products.fixed)
        each = max(each, products.each)
    return MemoryPlan(int(peak), int(needed), int(fixed), each, batch, free, device, reason)


def _searches(own: Measure) -> bool:
    return bool({"eigen", "layer_eigen"} & set(own.needs))


def _basis(problem: OpenProblem, chosen: list[Measure], pairs: int) -> float:
    """Return how many vectors of all parameters' size the bases of searches and their images hold while they grow."""
    found = 0.0
    if any("eigen" in own.needs for own in chosen):
        found = basis_vectors(basis_limit(problem.size, pairs, pairs, problem.dtype.itemsize, problem.device))
    if any("layer_eigen" in own.needs for own in chosen):
        largest = max((problem.chosen_parameters[name].numel() for name in problem.weights.values()), default=0)
        limit = basis_limit(max(largest, 1), 1, 1, problem.dtype.itemsize, problem.device)
        found = max(found, basis_vectors(limit) * largest / problem.size)
    return found


def basis_vectors(limit: int) -> int:
    """Return the vectors of a basis and of its images when the last of both grows, which takes a copy."""
    return 2 * limit + max(limit - GROWTH, 0)


def _measured(
    few: OpenProblem, plain: list[Measure], values: Mapping[str, Mapping[str, Any]], wants: frozenset[str]
) -> Workbench:
    """Measure on a few samples all that no eigenvalue is sought for."""
    bench = Workbench(few, wants, seed=0)
    estimates_of(bench, plain, values)
    with few.session():
        bench.gradient  # noqa: B018
    return bench


def _product(few: OpenProblem, width: int) -> HessianOperator:
    """Multiply a block of vectors, as a search does."""
    matrix = HessianOperator(few, keep_graphs=None)
    matrix.matvec(torch.ones(few.size, min(width, few.size), dtype=few.dtype, device=few.device))
    return matrix


def _tried(problem: OpenProblem, batch: int, work: OnSamples) -> tuple[Growing, Growing, str]:
    """Return the bytes held at most and at the end of some work, by samples; and why they are not known."""
    found: list[tuple[int, int, int]] = []
    for share in TRIED:
        few = problem.on_few(max(1, round(share * batch)))
        try:
            with memory_use(problem.device) as use:
                made = work(few)
            del made
        except (SpiritlevelError, torch.OutOfMemoryError) as error:
            return Growing(), Growing(), str(error).splitlines()[0]
        if use.peak is None or use.left is None:
            return Growing(), Growing(), "this torch does not tell what operations make"
        found.append((few.survey.count, use.peak, use.left))
    return _line([(n, peak) for n, peak, _ in found]), _line([(n, left) for n, _, left in found]), ""


def _line(points: list[tuple[int, int]]) -> Growing:
    (few, low), (more, high) = points
    each = max((high - low) / (more - few), 0.0) if more > few else 0.0
    return Growing(max(high - each * more, 0.0), each)
