"""What processes that share the data add up with each other, from what a measure declares to cost."""

from __future__ import annotations

from collections.abc import Mapping

from spiritlevel.measures.declaration import Measure

FLOAT64_BYTES = 8
# Sums that the gradient every report shows takes: of the pieces' gradients, plain and weighted.
GRADIENT_SUMS = 2


def reduced_numbers(own: Measure, sweeps: Mapping[str, float], *, samples: int, parameters: int, weights: int) -> float:
    """Return how many numbers are added up over all ranks for these sweeps of a measure, in float64.

    A forward pass leaves a number a sample, a gradient or a product one a parameter (of one weight, where it is that
    weight's alone), and a curvature sweep, whatever its columns, one a sample and the diagonal where that is wanted.
    """
    alone = max(weights, 1) if "layer_eigen" in own.needs else 1
    found = samples * sweeps.get("forward", 0.0)
    found += parameters * (sweeps.get("gradient", 0.0) + sweeps.get("product", 0.0) / alone)
    if sweeps.get("column"):
        found += samples + (parameters if "diagonal" in own.wants else 0)
    return found


def ring_bytes(reduced: float, ranks: int) -> float:
    """Return the bytes that each of so many ranks sends where all add up so many, in a ring: 2 (R - 1) / R of them."""
    return 2 * (ranks - 1) / ranks * reduced
