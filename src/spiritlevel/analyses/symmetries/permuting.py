"""Copies of a network whose hidden units have changed places."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from spiritlevel.analyses.symmetries.found import Symmetries
from spiritlevel.analyses.symmetries.proof import prove
from spiritlevel.analyses.symmetries.scales import Labels
from spiritlevel.analyses.symmetries.search import found_before
from spiritlevel.analyses.symmetries.tracing import copied, unwrapped
from spiritlevel.analyses.symmetries.unit_rules import exchangeable
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import SpiritlevelError


@documented_like(found_before)
def permute_neurons(
    model: nn.Module, example: Any, *, seed: int = 0, mode: str = "eval", found: Symmetries | None = None
) -> nn.Module:
    """Return a copy in which hidden units have changed places at random and the function is the same.

    Rows of the layers that produce a unit and columns of those that read it move together; channels of a residual
    stream move in every layer of it.

    Parameters
    ----------
    seed : int
        Seed of the order.

    Returns
    -------
    torch.nn.Module
        The copy.

    Raises
    ------
    SpiritlevelError
        The network cannot be traced, or the copy does not compute the same.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> x = sl.datasets.load("digits").x[:50]
    >>> copy = sl.symmetries.permute_neurons(model, x)
    >>> bool(torch.allclose(copy(x), model(x), atol=1e-5))
    True
    >>> bool(torch.equal(copy[1].weight, model[1].weight))
    False
    """
    found = found_before(model, example, mode, found)
    changed = permuted_copy(model, found, seed)
    prove(unwrapped(model), changed, example, mode=found.mode)
    return changed


def permuted_copy(model: nn.Module, found: Symmetries, seed: int) -> nn.Module:
    """Return a copy with hidden units in another order, unproven: whatever stands in the parameters' places moves."""
    if found.analysis is None:
        raise SpiritlevelError(f"no units can change places: {found.reason}")
    state = found.analysis.units
    classes = state.equations.settled()
    generator = torch.Generator().manual_seed(seed)
    source: dict[int, int] = {}  # the unit whose place in the original a unit of the copy is read from
    for units in exchangeable(state, classes):
        order = torch.randperm(len(units), generator=generator).tolist()
        source.update((unit, units[i]) for unit, i in zip(units, order))
    changed = copied(unwrapped(model))
    tensors = {**dict(changed.named_parameters()), **dict(changed.named_buffers())}
    with torch.no_grad():
        for name, terms in state.uses.items():
            tensor = tensors[name]
            for _, labels in terms:
                of_axis = classes.of_label[labels]
                axis = int(np.argmax(labels.shape)) if labels.ndim else 0
                if of_axis.size == 1:
                    continue
                if of_axis.size == labels.shape[axis]:
                    index = torch.from_numpy(_order(of_axis.ravel(), source)).to(tensor.device)
                    tensor.copy_(tensor.index_select(axis + tensor.dim() - labels.ndim, index))
                else:  # labels entry by entry
                    full = np.broadcast_to(of_axis, tuple(tensor.shape))
                    index = torch.from_numpy(_order(full.ravel(), source)).to(tensor.device)
                    tensor.copy_(tensor.flatten()[index].view_as(tensor))
    return changed


def _order(units: Labels, source: dict[int, int]) -> Labels:
    """Return where each entry is read from: the k-th place of a unit takes the k-th place of its source."""
    places: dict[int, list[int]] = {}
    for place, unit in enumerate(units.tolist()):
        places.setdefault(unit, []).append(place)
    order = np.empty(len(units), dtype=np.int64)
    for unit, own in places.items():
        order[own] = places[source.get(unit, unit)]
    return order
