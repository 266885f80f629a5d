"""How an audit tries each symmetry: the changes it makes to a network, each named with its strength."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
import torch

from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.inputs.open_problem import OpenProblem

Ranges = Mapping[str, tuple[float, float]]  # strength -> the range from which its factors are drawn
Change = tuple[
    str, str, Callable[[], OpenProblem]
]  # the symmetry's name, the strength, and what makes the changed problem


def rescalings(equivalents: Equivalents, ranges: Ranges, seed: int) -> Iterator[Change]:
    """Rescale whole layers, then single neurons, by factors of every strength."""
    found = equivalents.found
    for position, (strength, (low, high)) in enumerate(ranges.items()):
        rng = np.random.default_rng([seed, position])
        if equivalents.names("layers"):
            # Up or down at random, so that the factors of a deep chain do not pile up in its last layer.
            drawn = np.exp(rng.uniform(math.log(low), math.log(high), len(equivalents.names("layers"))))
            signs = rng.choice([-1.0, 1.0], len(drawn))
            factors = dict(zip(equivalents.names("layers"), (drawn**signs).tolist()))
            yield "layer_rescaling", strength, partial(equivalents.layers_rescaled, factors)
        if equivalents.names("neurons"):
            draw = {
                each.name: torch.from_numpy(
                    np.exp(rng.uniform(math.log(low), math.log(high), each.factors))
                    ** rng.choice([-1.0, 1.0], each.factors)
                )
                for each in found.of_kind("neurons")
            }
            yield "neuron_rescaling", strength, partial(equivalents.neurons_rescaled, factors=draw)


def permutations(equivalents: Equivalents, ranges: Ranges, seed: int) -> Iterator[Change]:
    """Put hidden units into another order, once."""
    if equivalents.found.of_kind("permutation"):
        yield "permutation", "", lambda: equivalents.permuted(seed)


# What keeps the outputs; scaling them is a sweep of its own.
TRIALS = (rescalings, permutations)
