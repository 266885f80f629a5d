"""How an audit tries each symmetry: the changes it makes to a network, each named with its strength."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.parameter_maps import ParameterMap
from spiritlevel.inputs.open_problem import OpenProblem

Ranges = Mapping[str, tuple[float, float]]  # strength -> the range from which its factors are drawn


USUAL = "usual"  # the strength that is shown


class Change(NamedTuple):
    """One way to try a symmetry: its name, the strength, and what makes the changed problem."""

    symmetry: str
    strength: str
    make: Callable[[], OpenProblem]
    map: ParameterMap | None = None  # what it does to the parameters, where values can follow from that


def rescalings(equivalents: Equivalents, ranges: Ranges, seed: int) -> Iterator[Change]:
    """Rescale whole layers, then single neurons, by factors of every strength."""
    found = equivalents.found
    # The usual ones first: they are shown, and what changes under them needs no search under the others.
    places = sorted(enumerate(ranges.items()), key=lambda place: place[1][0] != USUAL)
    for position, (strength, (low, high)) in places:
        rng = np.random.default_rng([seed, position])
        if equivalents.names("layers"):
            # Up or down at random, so that the factors of a deep chain do not pile up in its last layer.
            drawn = np.exp(rng.uniform(math.log(low), math.log(high), len(equivalents.names("layers"))))
            signs = rng.choice([-1.0, 1.0], len(drawn))
            layers = dict(zip(equivalents.names("layers"), (drawn**signs).tolist()))
            make, map = partial(equivalents.layers_rescaled, layers), equivalents.rescaling(layers=layers)
            yield Change("layer_rescaling", strength, make, map)
        if equivalents.names("neurons"):
            draw = {
                each.name: torch.from_numpy(
                    np.exp(rng.uniform(math.log(low), math.log(high), each.factors))
                    ** rng.choice([-1.0, 1.0], each.factors)
                )
                for each in found.of_kind("neurons")
            }
            make, map = partial(equivalents.neurons_rescaled, factors=draw), equivalents.rescaling(neurons=draw)
            yield Change("neuron_rescaling", strength, make, map)


def permutations(equivalents: Equivalents, ranges: Ranges, seed: int) -> Iterator[Change]:
    """Put hidden units into another order, once."""
    if equivalents.found.of_kind("permutation"):
        yield Change("permutation", "", lambda: equivalents.permuted(seed), equivalents.permutation(seed))


# What keeps the outputs; scaling them is a sweep of its own.
TRIALS = (rescalings, permutations)
