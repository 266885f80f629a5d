"""Where to look for the top eigenvectors of a Hessian over many samples: where those over few of them point."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spiritlevel.engine.estimators.eigenvalues import Which, top_eigenpairs
from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.operators.derivative_check import path_of
from spiritlevel.inputs.open_problem import OpenProblem

# Every so many samples, and at least so many: enough that the guess is near, few enough that it costs next to nothing.
STEP, FEWEST = 20, 500
# A search for one pair is plain Lanczos: a guess, and the random direction beside it, cost it more than they save.
FEWEST_PAIRS = 2
# Length of the random part of a start that was found on another network, beside its own length of 1.
RANDOM_PART = 0.1


def mixed(vectors: Tensor, seed: int) -> Tensor:
    """Return vectors (P, k) with something random in each, so that a search from them misses no eigenvector."""
    drawn = torch.randn(vectors.shape, generator=seeded_generator(seed, 0), dtype=torch.float64).to(vectors)
    found: Tensor = vectors / vectors.norm(dim=0) + RANDOM_PART * drawn / drawn.norm(dim=0)
    return found


def warm_start(problem: OpenProblem, k: int, which: Which, tolerance: float, seed: int) -> Tensor | None:
    """Return approximate eigenvectors (P, k) from a twentieth of the data; None where that would not pay.

    They only start a search, which adds a random direction and certifies what it finds on all of the data.
    """
    count = problem.source.count
    step = min(STEP, (count or 0) // FEWEST)
    if k < FEWEST_PAIRS or step < 4 or problem.survey.coupled or path_of(problem).differences:
        return None
    few = problem.on_every(step)
    matrix = HessianOperator(few, keep_graphs=None)
    try:
        found = top_eigenpairs(
            matrix.matvec,
            problem.size,
            k,
            which,
            tolerance=tolerance,
            seed=seed,
            dtype=problem.dtype,
            device=problem.device,
        )
    finally:
        matrix.release()
    problem.spent["hessian product"] += math.ceil(found.products / step)
    return found.vectors
