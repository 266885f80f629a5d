"""How much memory a batch's graph takes: what the choice of a strategy rests on, with how much there is."""

from __future__ import annotations

from spiritlevel.inputs.batch_sizes import SHARE_OF_GRAPH, memory_share
from spiritlevel.inputs.graph_size import saved_bytes
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.memory_limit import free_bytes

__all__ = ["free_bytes", "graph_bytes", "room_for_graphs"]

# The graph of a gradient holds about as much again for the gradient's own computation, and once more while it is used.
GRAPH_FACTOR = 3.0
# Shares of the free memory that the graph in use, and those that are kept, may take; and where that is more than a
# small part of a GPU, of the memory of a training step: its weights four times, and what a forward pass of so many of
# the samples keeps.
GRAPH_SHARE, KEPT_SHARE = 0.5, 0.4
GRAPH_STEPS, KEPT_STEPS, STEP_SAMPLES = 0.4, 0.6, 256
SAMPLING_STEPS = 1.5


def graph_bytes(problem: OpenProblem) -> tuple[int, int]:
    """Return (bytes of the retained graph of the first batch, number of batches); measured once, by a forward pass."""
    if problem.graph_bytes is None:
        with problem.session():
            batch = next(iter(problem.batches()))
            held = saved_bytes(problem, lambda: problem.loss.per_sample(problem.outputs(batch.content), batch.content))
        batches = -(-problem.survey.count // batch.count)
        problem.graph_bytes = (int(GRAPH_FACTOR * held), batches)
    return problem.graph_bytes


def room_for_graphs(problem: OpenProblem) -> tuple[float, float]:
    """Return how many bytes the graph in use, and those that are kept, may take."""
    free = free_bytes(problem.device)
    if problem.device.type != "cuda":
        return GRAPH_SHARE * free, KEPT_SHARE * free
    return within(free, step_bytes(problem), memory_share(problem.device, SHARE_OF_GRAPH))


def step_bytes(problem: OpenProblem) -> float:
    """Return what a training step on the samples at hand, or on so many of them, takes, about."""
    size, batches = graph_bytes(problem)
    samples = problem.survey.count
    kept_forward = size * batches / GRAPH_FACTOR / samples * min(samples, STEP_SAMPLES)
    return 4 * sum(tensor.numel() * tensor.element_size() for tensor in problem.tensors) + kept_forward


def samples_that_fit(problem: OpenProblem, numbers: float) -> int | None:
    """Return on how many samples a GPU works at once where each takes so many numbers beside its graph; None for all.

    Together they are to take no more than a training step and a half, unless that is little.
    """
    if problem.device.type != "cuda":
        return None
    size, batches = graph_bytes(problem)
    each = size * batches / GRAPH_FACTOR / problem.survey.count + numbers * problem.dtype.itemsize
    room = max(SAMPLING_STEPS * step_bytes(problem), memory_share(problem.device, SHARE_OF_GRAPH))
    return max(1, int(min(GRAPH_SHARE * free_bytes(problem.device), room) / each))


def within(free: float, step: float, small: float) -> tuple[float, float]:
    """Return the room for the graph in use and for those that are kept, by what a training step takes."""
    in_use, kept = max(GRAPH_STEPS * step, small), max(KEPT_STEPS * step, small)
    return min(GRAPH_SHARE * free, in_use), min(KEPT_SHARE * free, kept)
