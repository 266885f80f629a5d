"""Linear maps of the parameters that keep the function, and what they make of its derivatives.

Where L'(Mθ) = L(θ) for all θ near the network's, vectors go to Mv, gradients and products with the Hessian to M⁻ᵀ of
themselves: a rescaling has M = D, a new order of units M = P.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from spiritlevel.engine.changed_sums import permuted_sums, rescaled_sums
from spiritlevel.engine.estimators.eigenvalues import Eigenpairs, EigenpairSearch, Which
from spiritlevel.engine.passes.accumulating import CurvatureSums

ByName = dict[str, Tensor]


class OwnSpectrum(Protocol):
    """The network's own Hessian as it was looked at: its products, and searches for its eigenpairs."""

    def matvec(self, vectors: Tensor) -> Tensor:
        """Return the product with vectors (P, K)."""

    def search(self, matvec: Callable[[Tensor], Tensor], k: int, which: Which, tolerance: float) -> EigenpairSearch:
        """Return a search for eigenpairs of a matrix of the same order."""

    def pairs(self, k: int, which: Which, tolerance: float) -> Eigenpairs:
        """Return the network's own eigenpairs."""


@dataclass(frozen=True)
class Rescaling:
    """Each entry is multiplied by its factor; a parameter without one keeps its entries."""

    factors: Mapping[str, Tensor]

    def vector(self, parts: ByName) -> ByName:
        """Return where a vector over the parameters goes."""
        return {name: part * self._like(name, part) for name, part in parts.items()}

    def product(self, parts: ByName) -> ByName:
        """Return where a product with the Hessian goes."""
        return {name: part / self._like(name, part) for name, part in parts.items()}

    def _like(self, name: str, part: Tensor) -> Tensor | float:
        return self.factors[name].to(part) if name in self.factors else 1.0

    def sums(self, sums: CurvatureSums) -> CurvatureSums:
        """Return the changed network's curvature sums."""
        return rescaled_sums(sums, self.factors)

    def scale(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """Return the diagonal of D, in the order of the parameters."""
        ones = {name: torch.ones_like(tensor) for name, tensor in parameters.items()}
        return torch.cat([part.flatten() for part in self.vector(ones).values()])

    def eigenpairs(
        self, own: OwnSpectrum, parameters: Mapping[str, Tensor], k: int, which: Which, tolerance: float
    ) -> Eigenpairs:
        """Return eigenpairs of D⁻¹HD⁻¹, by products with H."""
        inverse = self.scale(parameters).reciprocal()[:, None]
        return own.search(lambda vectors: inverse * own.matvec(inverse * vectors), k, which, tolerance).run()


@dataclass(frozen=True)
class Permutation:
    """Entries change places, all of them as ``move`` moves a vector over the parameters."""

    move: Callable[[ByName], ByName]

    def vector(self, parts: ByName) -> ByName:
        """Return where a vector over the parameters goes."""
        return self.move(parts)

    def product(self, parts: ByName) -> ByName:
        """Return where a product with the Hessian goes: P is orthogonal."""
        return self.move(parts)

    def sums(self, sums: CurvatureSums) -> CurvatureSums:
        """Return the changed network's curvature sums."""
        return permuted_sums(
            sums,
            self.move({name: own.diagonal[0] for name, own in sums.parameters.items() if own.diagonal is not None}),
        )

    def eigenpairs(
        self, own: OwnSpectrum, parameters: Mapping[str, Tensor], k: int, which: Which, tolerance: float
    ) -> Eigenpairs:
        """Return the network's own eigenpairs, with their vectors in the new order."""
        pairs = own.pairs(k, which, tolerance)
        sizes = [tensor.numel() for tensor in parameters.values()]
        columns = []
        for column in pairs.vectors.T:
            parts = {
                name: part.view_as(tensor) for (name, tensor), part in zip(parameters.items(), column.split(sizes))
            }
            columns.append(torch.cat([part.flatten() for part in self.move(parts).values()]))
        return replace(pairs, vectors=torch.stack(columns, dim=1))


ParameterMap = Rescaling | Permutation
