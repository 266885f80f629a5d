"""What processes that share the data add up with each other, from what a measure declares to cost."""

from __future__ import annotations

from collections.abc import Mapping

from spiritlevel.measures.declaration import Measure

FLOAT64_BYTES = 8
# Sums that the gradient every report shows takes: of the pieces' gradients, plain and weighted.
GRADIENT_SUMS = 2
# Numbers of a sample that the first sweep leaves beside its outputs: loss, weight, whether it is right and finite, and
# the digits of the data's fingerprint.
SURVEY_NUMBERS = 8


def reduced_numbers(own: Measure, sweeps: Mapping[str, float], *, samples: int, parameters: int, weights: int) -> float:
    """Return how many numbers, at most about, are added up over all ranks for these sweeps of a measure, in float64.

    A forward pass leaves a number a sample, a gradient or a product one a parameter (of one weight, where it is that
    weight's alone), and a curvature sweep, whatever its columns, two a sample and the diagonal where that is wanted.
    """
    alone = max(weights, 1) if "layer_eigen" in own.needs else 1
    found = samples * sweeps.get("forward", 0.0)
    found += parameters * (sweeps.get("gradient", 0.0) + sweeps.get("product", 0.0) / alone)
    if sweeps.get("column"):
        found += 2 * samples + (parameters if {"diagonal", "fisher"} & own.wants else 0)
    return found


def reported_numbers(*, samples: int, outputs: int, parameters: int) -> int:
    """Return how many numbers are added up for what every report shows, each sample with so many outputs."""
    return (SURVEY_NUMBERS + outputs) * samples + GRADIENT_SUMS * parameters


def ring_bytes(reduced: float, ranks: int) -> float:
    """Return the bytes that each of so many ranks sends where all add up so many, in a ring: 2 (R - 1) / R of them."""
    return 2 * (ranks - 1) / ranks * reduced
