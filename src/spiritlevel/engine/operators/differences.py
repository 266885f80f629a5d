"""Products by central differences, where an operation has no second derivative: the curvature at a finite radius.

H v ≈ (∇L(θ + r v) - ∇L(θ - r v)) / 2r, extrapolated from r and r/2, and J v alike from the outputs.  How far the two
lie apart is the error of every product; where they disagree the path says ``not converged``.  On piecewise-linear
networks this sees kinks that the almost-everywhere Hessian does not have, so every result is labelled with its radius.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from spiritlevel.engine.operators.batch_products import RetainedGraph
from spiritlevel.engine.operators.derivative_check import GRADIENT, DerivativePath
from spiritlevel.engine.operators.differentiation import Parts
from spiritlevel.engine.operators.extrapolation import best_step, difference_along
from spiritlevel.engine.operators.generic_point import padding_rows
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.open_problem import OpenProblem

# Radii tried, relative to the length of the parameters; too large sees higher derivatives, too small only rounding.
RADII = {torch.float64: (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7), torch.float32: (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)}

Along = Callable[[Sequence[str], list[Tensor], float], list[Tensor]]  # (names, vector, step) -> gradient or outputs


class Differences(RetainedGraph):
    """Products of one batch by differences for whatever the path says autograd cannot give."""

    def __init__(self, problem: OpenProblem, batch: Batch, names: Sequence[str], path: DerivativePath) -> None:
        self.path = path
        super().__init__(problem, batch, names)
        self.names, self.padding = list(names), padding_rows(problem)
        if path.radius is None:
            path.radius = self._chosen_radius()

    def _differentiates_twice(self) -> bool:
        return self.path.hessian == "double backward"

    def hessian(self, blocks: Sequence[Tensor]) -> Parts:
        """Return the batch's part of H v."""
        if self.path.hessian == "double backward":
            return super().hessian(blocks)
        return self._by_vector(self.names, blocks, self._gradient)

    def push(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return J v, (K, *outputs)."""
        if self.path.push == "double backward":
            return super().push(blocks)
        return self._by_vector(self.names, blocks, self._outputs)[0]

    def own_block(self, position: int, vector: Tensor) -> Tensor:
        """Return the batch's part of H_pp v for one parameter's own block."""
        if self.path.hessian == "double backward":
            return super().own_block(position, vector)
        return self._by_vector([self.names[position]], [vector[None]], self._gradient)[0][0]

    def _by_vector(self, names: Sequence[str], blocks: Sequence[Tensor], evaluate: Along) -> Parts:
        assert self.path.radius is not None
        rows, kind = [], (GRADIENT if evaluate == self._gradient else "outputs", self.batch.start)
        for k in range(len(blocks[0])):
            vector = [block[k] for block in blocks]
            along, length = partial(evaluate, names, vector), _length(vector)
            if length == 0:
                rows.append([torch.zeros_like(part) for part in along(0.0)])
                continue
            found = difference_along(along, self.path.radius / length, _length, self.path.negligible(kind) * length)
            self.path.compare(kind, found.gap / length, found.size / length)
            rows.append([part.to(self.problem.dtype) for part in found.parts])
        return [torch.stack(parts) for parts in zip(*rows)]

    def _gradient(self, names: Sequence[str], vector: list[Tensor], step: float) -> list[Tensor]:
        leaves = self._moved(names, vector, step)
        losses, _ = self.problem.loss.per_sample(self.problem.outputs(self.batch.content, leaves), self.batch.content)
        return list(
            torch.autograd.grad(
                (self.shares * losses).sum(), list(leaves.values()), allow_unused=True, materialize_grads=True
            )
        )

    def _outputs(self, names: Sequence[str], vector: list[Tensor], step: float) -> list[Tensor]:
        with torch.no_grad():
            return [self.problem.outputs(self.batch.content, self._moved(names, vector, step))]

    def _moved(self, names: Sequence[str], vector: list[Tensor], step: float) -> dict[str, Tensor]:
        """Return the parameters moved along a vector, the others as they are."""
        moved = {}
        for name, part in zip(names, vector):
            tensor = self.problem.chosen_parameters[name].detach()
            leaf = tensor + step * part
            if name in self.padding:
                leaf[self.padding[name]] = tensor[self.padding[name]]
            moved[name] = leaf.requires_grad_()
        return moved

    def _chosen_radius(self) -> float:
        """Return the radius at which one more halving changes the product of a generic vector least."""
        length = _length([tensor.detach() for tensor in self.problem.tensors]) or 1.0
        generator = torch.Generator().manual_seed(0)
        vector = [torch.randn(tensor.shape, generator=generator).to(tensor) for tensor in self.tensors]
        unit = length / _length(vector)
        evaluate = self._gradient if self.path.hessian == "finite differences" else self._outputs
        along = partial(evaluate, self.names, vector)
        return best_step(along, [radius * unit for radius in RADII[self.problem.dtype]], _length) * _length(vector)


def _length(parts: Sequence[Tensor]) -> float:
    return float(torch.stack([part.double().norm() for part in parts]).norm())
