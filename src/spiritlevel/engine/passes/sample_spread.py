"""How far draws lie apart within each sample: the standard error of sums whose signs are every sample's own.

The draws of two samples are independent, so the variances add up, and a few draws of many samples tell as much of the
error as many draws would.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


class SampleSpread:
    """Variances over draws, summed over samples: by form and parameter, and of traces by layer and in all."""

    def __init__(self, layer_of: Mapping[str, str]) -> None:
        self.layer_of = layer_of
        self.parameters: dict[tuple[str, str], Tensor] = {}
        self.layers: dict[str, Tensor] = {}
        self.network = torch.zeros((), dtype=torch.float64)
        self._draws: dict[tuple[str, str], Tensor] = {}  # (F, B) of the present batch
        self._size = (0, 0)

    def scaled(self, total_weight: float) -> SampleSpread:
        """Return the variances of one draw of means over all samples."""
        found = SampleSpread(self.layer_of)
        found.parameters = {key: value.cpu() / total_weight**2 for key, value in self.parameters.items()}
        found.layers = {layer: value.cpu() / total_weight**2 for layer, value in self.layers.items()}
        found.network = self.network.cpu() / total_weight**2
        return found

    def pooled(self, own: int, other: SampleSpread, others: int) -> SampleSpread:
        """Return the mean of two variances found with so many degrees of freedom each."""

        def mean(one: Tensor, two: Tensor) -> Tensor:
            return (own * one + others * two) / (own + others)

        found = SampleSpread(self.layer_of)
        found.parameters = {key: mean(value, other.parameters[key]) for key, value in self.parameters.items()}
        found.layers = {layer: mean(value, other.layers[layer]) for layer, value in self.layers.items()}
        found.network = mean(self.network, other.network)
        return found

    def begin(self, count: int, folds: int) -> None:
        """Begin a batch."""
        self._size = (folds, count)

    def add(self, form: str, full: str, folds: slice, place: slice, values: Tensor) -> None:
        """Add some columns' weighted values (F, b) of some draws."""
        draws = self._draws.get((form, full))
        if draws is None:
            draws = self._draws[form, full] = values.new_zeros(self._size)
        draws[folds, place] += values

    def end(self, weights: Tensor) -> None:
        """Take the batch's draws together."""
        by_layer: dict[str, Tensor] = {}
        for (form, full), draws in self._draws.items():
            self.parameters[form, full] = self.parameters.get((form, full), 0) + _variance(draws)
            if form == "trace":
                layer = self.layer_of[full]
                by_layer[layer] = by_layer[layer] + draws if layer in by_layer else draws
        for layer, draws in by_layer.items():
            self.layers[layer] = self.layers.get(layer, 0) + _variance(draws)
        if by_layer:
            total = torch.stack(list(by_layer.values())).sum(0)
            self.network = self.network.to(total.device) + _variance(total)
        self._draws = {}


def _variance(draws: Tensor) -> Tensor:
    """Return the variance over draws (F, B), summed over samples."""
    return draws.var(0).sum()
