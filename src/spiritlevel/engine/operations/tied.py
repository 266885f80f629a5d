"""A weight that meets activations which depend on it: tied, recurrent, or a layer called twice.

The remainder of any parameter W is Σ_k J_kᵀ M_k J_k over *all* operations k of the graph, with J_k the total derivative
of an operation's inputs by W, through every use of it.  Where a use y = B(W, a) is bilinear, and a depends on W through
a use before it, it is itself such an operation: its inputs are W, by the identity, and a, by J_a, and with g the
gradient at y its second derivative is M = [[0, g], [gᵀ, 0]], so that

    R_WW = Σ over curved activations above any use  +  Σ over uses of  2 sym(∂/∂W g·B(W, J_a ·)).

For signs ε at the activation let α = βε and w = ∂/∂W g·B(W, ε)/β, which is what the use makes of the gradient g where
the activation is ε.  As E[εεᵀ] is the identity E[w αᵀ] is the block of M between W and a for any lengths β > 0 of ε's
entries or rows, and

    s± = (w, ±α)/√2  has  E[s₊s₊ᵀ - s₋s₋ᵀ] = E[w αᵀ + α wᵀ] = M.

α goes into the graph with the columns of all other operations; what comes back to the uses gives each sample's gradient
of W as everywhere, and w is added to it *before* anything is squared: (±J_aᵀα + w)/√2 is one column of R's for W.  Its
square is a sample's trace, its entries' squares the diagonal, and so on for every form.  The sign stands with w below,
which is the same column times ±1.  β makes both parts of a row about equally long: in a sum with the columns of
other operations neither may dwarf them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.engine.operations.local_curvature import (
    HALF_ROOT,
    LocalCurvature,
    MatrixProduct,
    SignedColumns,
    TwoByTwo,
)


@dataclass(frozen=True)
class Tied(LocalCurvature):
    """The second derivative of one use, with the gradient g at its output."""

    gradient: Tensor
    shapes: tuple[torch.Size, torch.Size]  # of the activation and of the weight, as they come in

    def sign_shapes(self) -> list[torch.Size]:
        return [self.shapes[0]]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        """Return α/√2 on both sides: the weight's part has the sign."""
        column = signs[0] * self.lengths() * HALF_ROOT
        return [column], [column]

    def factors(self, signs: Tensor) -> Tensor:
        """Return what stands for the activation where g gives the weight's part w/√2, for any number of draws."""
        lengths = self.lengths()
        return signs * torch.where(lengths > 0, HALF_ROOT / lengths, 0.0)

    @abstractmethod
    def lengths(self) -> Tensor:
        """β for entries or rows of the activation."""


class TiedMatrixProduct(Tied):
    """Rows of activations times a weight: one length for a row, √‖g_t‖."""

    def lengths(self) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(self.gradient, dim=-1, keepdim=True).sqrt()
        return lengths

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        return MatrixProduct(self.gradient, self.shapes[0][-1]).product(tangents)


class TiedProduct(Tied):
    """Entry by entry: √|g|, summed over what the activation was spread over."""

    def lengths(self) -> Tensor:
        lengths: Tensor = self.gradient.abs().sum_to_size(self.shapes[0]).sqrt()
        return lengths

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        return TwoByTwo(self.gradient, torch.zeros_like(self.gradient), self.shapes).product(tangents)
