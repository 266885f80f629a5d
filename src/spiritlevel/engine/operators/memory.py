"""How much memory a batch's graph takes: what the choice of a strategy rests on, with how much there is."""

from __future__ import annotations

from spiritlevel.inputs.graph_size import saved_bytes
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.memory_limit import free_bytes

__all__ = ["free_bytes", "graph_bytes"]

# The graph of a gradient holds about as much again for the gradient's own computation, and once more while it is used.
GRAPH_FACTOR = 3.0


def graph_bytes(problem: OpenProblem) -> tuple[int, int]:
    """Return (bytes of the retained graph of the first batch, number of batches); measured once, by a forward pass."""
    if problem.graph_bytes is None:
        with problem.session():
            batch = next(iter(problem.batches()))
            held = saved_bytes(problem, lambda: problem.loss.per_sample(problem.outputs(batch.content), batch.content))
        batches = -(-problem.survey.count // batch.count)
        problem.graph_bytes = (int(GRAPH_FACTOR * held), batches)
    return problem.graph_bytes
