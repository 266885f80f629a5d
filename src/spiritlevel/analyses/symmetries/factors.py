"""By what a rescaling multiplies each tensor: from factors of layers or neurons to those of single entries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spiritlevel.analyses.symmetries.found import Analysis, Symmetries
from spiritlevel.analyses.symmetries.scales import Classes, Conflict
from spiritlevel.analyses.symmetries.search import groups, layer_labels
from spiritlevel.analyses.symmetries.walking import Walk
from spiritlevel.values.errors import UsageError, near_names


def entry_factors(
    found: Symmetries, *, layers: Mapping[str, float] | None = None, neurons: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return by what ``rescale_layers`` or ``rescale_neurons`` multiplies each parameter, float64, by exact symmetries.

    A parameter that is not named keeps its entries; a factor's shape broadcasts to its parameter's.
    """
    analysis = found.analysis
    assert analysis is not None
    state, classes = analysis.walk, analysis.exact
    given = given_layers(state, classes, layers or {})
    given.update(given_neurons(free_neurons(analysis), neurons or {}))
    return {name: torch.from_numpy(factor) for name, factor in tensor_factors(state, classes.solve(given))}


def given_layers(state: Walk, classes: Classes, factors: Mapping[str, float]) -> dict[int, float]:
    """Return the scales that layers' factors fix, by class; a conflict where two contradict each other."""
    given: dict[int, float] = {}
    for layer, factor in factors.items():
        for each in set(classes.of_label[layer_labels(state, layer)].tolist()):
            if each in (classes.fixed, classes.output) and factor != 1:
                raise Conflict({each})
            if given.setdefault(each, float(factor)) != factor:
                raise Conflict({each})
    return given


def free_neurons(analysis: Analysis) -> dict[str, list[int]]:
    """Return the independent scales of every group of neurons, by its name."""
    found = groups(analysis.walk, analysis.exact)
    return {name: list(independent) for name, (_, independent) in found.items() if independent}


def given_neurons(free: Mapping[str, list[int]], factors: Mapping[str, Tensor]) -> dict[int, float]:
    """Return the scales that neurons' factors fix, by class."""
    given: dict[int, float] = {}
    for name, values in factors.items():
        if name not in free:
            raise UsageError(f"no neuron symmetry is named {name!r}{near_names(name, free)}")
        flat = torch.as_tensor(values, dtype=torch.float64).flatten().tolist()
        if len(flat) != len(free[name]):
            raise UsageError(f"factors[{name!r}] has {len(flat)} entries; the group has {len(free[name])} factors")
        for value in flat:
            check_factor(value, f"an entry of factors[{name!r}]")
        given.update(zip(free[name], flat))
    return given


def check_factor(factor: float, what: str) -> None:
    """Refuse a factor that would not keep the function; ``what`` names it."""
    if not isinstance(factor, int | float) or not math.isfinite(factor) or factor <= 0:
        raise UsageError(f"{what} is {factor!r}; only positive finite factors keep the function")


def tensor_factors(state: Walk, scales: NDArray[np.float64]) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Yield every stored tensor's name with its factor Π s^sign, where that is not 1 throughout."""
    for name, terms in state.uses.items():
        factor = np.ones(())
        for sign, labels in terms:
            factor = factor * scales[labels] ** float(sign)
        if (factor != 1).any():
            yield name, np.asarray(factor)
