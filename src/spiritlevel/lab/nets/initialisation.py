"""The four initialisations of Petzka et al. 2019, one in two readings, for weights of two or more dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from spiritlevel.values.errors import UsageError, near_names

INITIALISATIONS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "xavier_normal": lambda w, g: nn.init.xavier_normal_(w, generator=g),
    "kaiming_uniform": lambda w, g: nn.init.kaiming_uniform_(w, nonlinearity="relu", generator=g),
    "uniform": lambda w, g: nn.init.uniform_(w, -0.1, 0.1, generator=g),
    # N(0, σ² = 0.1): read literally the standard deviation is √0.1; torch's normal_(0, 0.1) takes it to be 0.1.
    "normal": lambda w, g: nn.init.normal_(w, 0.0, math.sqrt(0.1), generator=g),
    "normal_tenth": lambda w, g: nn.init.normal_(w, 0.0, 0.1, generator=g),
}


def initialise(model: nn.Module, how: str, seed: int) -> nn.Module:
    """Draw the weights anew and set the biases of the same layers to zero; normalisation layers stay as they are.

    Parameters
    ----------
    model : torch.nn.Module
        The network, which is changed in place.
    how : str
        One of `INITIALISATIONS`: xavier_normal, kaiming_uniform, uniform, normal or normal_tenth (Petzka et al. 2019).
    seed : int
        Seed of the weights.

    Returns
    -------
    torch.nn.Module
        The same network.

    Raises
    ------
    UsageError
        There is no such initialisation.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.initialise(sl.nets.build("digits_mlp"), "uniform", seed=0)
    >>> model[1].weight.abs().max().item() <= 0.1, model[1].bias.abs().max().item()
    (True, 0.0)
    """
    if how not in INITIALISATIONS:
        raise UsageError(
            f"No initialisation is called {how!r}{near_names(how, INITIALISATIONS) or '.'} "
            f"The names are {', '.join(INITIALISATIONS)}."
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            weight = getattr(module, "weight", None)
            if not isinstance(weight, nn.Parameter) or weight.dim() < 2:
                continue
            drawn = INITIALISATIONS[how](torch.empty(weight.shape, dtype=weight.dtype), generator)
            weight.copy_(drawn)
            bias = getattr(module, "bias", None)
            if isinstance(bias, nn.Parameter):
                bias.zero_()
    return model
