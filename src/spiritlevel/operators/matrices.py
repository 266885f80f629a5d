"""The matrices as objects to multiply with: H and G of all parameters, and the block of one layer's parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spiritlevel.errors import UsageError
from spiritlevel.operators.products import sweep_products
from spiritlevel.problem import Problem


class Operator:
    """A symmetric matrix known by its products; ``operator @ v`` takes (P,) or (P, K), one sweep over the data each."""

    def __init__(self, problem: Problem, names: Sequence[str], *, ggn: bool) -> None:
        self.problem = problem
        self.names = list(names)
        self._ggn = ggn
        self.size = sum(problem.chosen_parameters[name].numel() for name in self.names)

    @property
    def shape(self) -> tuple[int, int]:
        """The matrix's shape (P, P)."""
        return self.size, self.size

    def __matmul__(self, vectors: Tensor) -> Tensor:
        if vectors.ndim not in (1, 2) or len(vectors) != self.size:
            raise UsageError(
                f"a vector of shape {tuple(vectors.shape)} cannot be multiplied: the matrix has order {self.size:,}, "
                "so give (P,) or (P, K)"
            )
        block = vectors[:, None] if vectors.ndim == 1 else vectors
        product = self.matvec(block)
        return product[:, 0] if vectors.ndim == 1 else product

    def matvec(self, block: Tensor) -> Tensor:
        """Return the product with a block (P, K) in its own dtype; sums over batches are taken in float64."""
        parts = {}
        for name, piece in zip(self.names, block.split([self._numel(name) for name in self.names])):
            parts[name] = piece.T.reshape(-1, *self.problem.chosen_parameters[name].shape)
        by_hessian, by_ggn = sweep_products(self.problem, parts, hessian=not self._ggn, ggn=self._ggn)
        found = by_ggn if self._ggn else by_hessian
        joined = torch.cat([found[name].reshape(block.shape[1], -1) for name in self.names], dim=1)
        return joined.T.to(block.dtype)

    def _numel(self, name: str) -> int:
        return self.problem.chosen_parameters[name].numel()


class HessianOperator(Operator):
    """The Hessian of the mean loss over all chosen parameters."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, problem.parameters, ggn=False)


class GGNOperator(Operator):
    """The Gauss–Newton matrix of the mean loss over all chosen parameters."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, problem.parameters, ggn=True)


class LayerBlock(Operator):
    """The block of the Hessian (or, with ``ggn``, of G) that belongs to some parameters alone."""

    def __init__(self, problem: Problem, names: Sequence[str], *, ggn: bool = False) -> None:
        unknown = [name for name in names if name not in problem.chosen_parameters]
        if unknown:
            raise UsageError(f"no parameter is named {unknown[0]!r} among those of the problem")
        super().__init__(problem, names, ggn=ggn)
