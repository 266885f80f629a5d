"""Each sample's gradient of a parameter that several operations take in: what they give, added up before squaring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spiritlevel.engine.layers.sample_gradients import DirectGradients, SampleGradients
from spiritlevel.inputs.weight_matrices import WeightView


class SummedGradients(SampleGradients):
    """Several gradients of one parameter, formed for a few samples at a time."""

    def __init__(self, parts: Sequence[SampleGradients], shape: torch.Size) -> None:
        self.parts, self.shape = parts, shape
        self.samples = parts[0].samples

    def formed(self) -> DirectGradients:
        """Return the sum as it is."""
        first, *rest = (part.formed() for part in self.parts)
        return DirectGradients(sum((part.values for part in rest), first.values))

    def squared_norms(self) -> Tensor:
        return self.formed().squared_norms()

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        self.formed().add_squares(into, coefficients)

    def row_products(self, view: WeightView) -> Tensor:
        return self.formed().row_products(view)

    def column_products(self, view: WeightView) -> Tensor:
        return self.formed().column_products(view)

    def transposed_norms(self, view: WeightView) -> Tensor:
        return self.formed().transposed_norms(view)

    def combine(self, coefficients: Tensor) -> Tensor:
        first, *rest = (part.combine(coefficients) for part in self.parts)
        return sum(rest, first)

    def part(self, part: slice) -> SummedGradients:
        return SummedGradients([one.part(part) for one in self.parts], self.shape)

    def chunks(self, numbers: int) -> Iterator[tuple[slice, SampleGradients]]:
        step = max(1, numbers // max(1, self.shape.numel()))
        for start in range(0, self.samples, step):
            part = slice(start, start + step)
            yield part, self.part(part).formed()
