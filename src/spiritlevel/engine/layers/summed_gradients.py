"""Each sample's gradient of a parameter that several operations take in: what they give, added up before squaring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spiritlevel.engine.layers.sample_gradients import (
    DirectGradients,
    OuterGradients,
    SampleGradients,
    concatenated,
)
from spiritlevel.inputs.weight_matrices import WeightView


class FormedGradients(SampleGradients):
    """Gradients whose squares need them formed, for a few samples at a time."""

    shape: torch.Size
    columns: int

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
        return self.formed().combine(coefficients)

    def chunks(self, numbers: int) -> Iterator[tuple[slice, SampleGradients]]:
        step = max(1, numbers // max(1, self.columns * self.shape.numel()))
        for start in range(0, self.samples, step):
            part = slice(start, start + step)
            yield part, self.part(part).formed()


class SummedGradients(FormedGradients):
    """Several gradients of one parameter."""

    def __init__(self, parts: Sequence[SampleGradients], shape: torch.Size, columns: int) -> None:
        self.parts, self.shape, self.columns = parts, shape, columns
        self.samples = parts[0].samples

    def formed(self) -> DirectGradients:
        """Return the sum as it is."""
        first, *rest = (part.formed() for part in self.parts)
        return DirectGradients(sum((part.values for part in rest), first.values))

    def combine(self, coefficients: Tensor) -> Tensor:
        first, *rest = (part.combine(coefficients) for part in self.parts)
        return sum(rest, first)

    def part(self, part: slice) -> SummedGradients:
        return SummedGradients([one.part(part) for one in self.parts], self.shape, self.columns)


class FactorGradients(FormedGradients):
    """Gradients M_k = Σ_t δ_t a_tᵀ whose inputs a (K, B, T, I) are each column's own, with one δ (B, T, O) for all."""

    def __init__(self, inputs: Tensor, deltas: Tensor, shape: torch.Size) -> None:
        self.inputs, self.deltas, self.shape = inputs, deltas, shape
        self.columns, self.samples = inputs.shape[:2]

    def formed(self) -> DirectGradients:
        return DirectGradients(self.deltas.mT @ self.inputs)

    def part(self, part: slice) -> FactorGradients:
        return FactorGradients(self.inputs[:, part], self.deltas[part], self.shape)


class SignedPairs(FormedGradients):
    """Every gradient M_k with both signs, M_k and -M_k side by side."""

    def __init__(self, whole: SampleGradients, shape: torch.Size, columns: int) -> None:
        self.whole, self.shape, self.columns = whole, shape, 2 * columns
        self.samples = whole.samples

    def formed(self) -> DirectGradients:
        values = self.whole.formed().values
        return DirectGradients(torch.stack([values, -values], 1).flatten(0, 1))

    def part(self, part: slice) -> SignedPairs:
        return SignedPairs(self.whole.part(part), self.shape, self.columns // 2)


def summed(parts: Sequence[SampleGradients], shape: torch.Size, columns: int) -> SampleGradients:
    """Return the sum of some gradients; those that are products of rows become one, with as many rows more."""
    outer = [part for part in parts if type(part) is OuterGradients]
    own = [part for part in parts if type(part) is FactorGradients]
    found = [part for part in parts if type(part) not in (OuterGradients, FactorGradients)]
    if outer:
        inputs = concatenated([part.inputs for part in outer], 2)
        found.append(OuterGradients(inputs, concatenated([part.deltas for part in outer], 3), shape))
    if own:
        inputs = concatenated([part.inputs for part in own], 2)
        found.append(FactorGradients(inputs, concatenated([part.deltas for part in own], 1), shape))
    return found[0] if len(found) == 1 else SummedGradients(found, shape, columns)
