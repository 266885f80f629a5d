"""Products by central differences, where an operation has no second derivative: the curvature at a finite radius.

H v ≈ (∇L(θ + r v) - ∇L(θ - r v)) / 2r and J v alike from the outputs.  On piecewise-linear networks this sees kinks
that the almost-everywhere Hessian does not have, so every result is labelled with its radius, and two radii are
compared on the first vector of every block: where they disagree the path says ``not converged``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spiritlevel.engine.operators.batch_products import RetainedGraph
from spiritlevel.engine.operators.derivative_check import Path
from spiritlevel.engine.operators.differentiation import Parts
from spiritlevel.engine.operators.generic_point import padding_rows
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.open_problem import OpenProblem

# Radii tried, relative to the length of the parameters; too large sees higher derivatives, too small only rounding.
RADII = {torch.float64: (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7), torch.float32: (3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4)}
SECOND_STEP = 0.5

Evaluate = Callable[[Sequence[str], list[Tensor], float], list[Tensor]]  # (names, vector, step) -> gradient or outputs


class Differences(RetainedGraph):
    """Products of one batch by differences for whatever the path says autograd cannot give."""

    def __init__(self, problem: OpenProblem, batch: Batch, names: Sequence[str], path: Path) -> None:
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

    def _by_vector(self, names: Sequence[str], blocks: Sequence[Tensor], evaluate: Evaluate) -> Parts:
        assert self.path.radius is not None
        rows = []
        for k in range(len(blocks[0])):
            vector = [block[k] for block in blocks]
            row = self._difference(names, vector, self.path.radius, evaluate)
            if k == 0:
                second = self._difference(names, vector, SECOND_STEP * self.path.radius, evaluate)
                length = _length(vector) or 1.0
                self.path.compare(evaluate.__name__, _gap(row, second) / length, _length(second) / length)
            rows.append(row)
        return [torch.stack(parts) for parts in zip(*rows)]

    def _difference(
        self, names: Sequence[str], vector: list[Tensor], radius: float, evaluate: Evaluate
    ) -> list[Tensor]:
        length = _length(vector)
        if length == 0:
            return [torch.zeros_like(part) for part in evaluate(names, vector, 0.0)]
        step = radius / length
        ahead = evaluate(names, vector, step)
        behind = evaluate(names, vector, -step)
        return [(a.double() - b.double()).div(2 * step).to(a.dtype) for a, b in zip(ahead, behind)]

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
        evaluate = self._gradient if self.path.hessian == "finite differences" else self._outputs
        gaps = {}
        for radius in RADII[self.problem.dtype]:
            first, second = (
                self._difference(self.names, vector, size * length, evaluate) for size in (radius, SECOND_STEP * radius)
            )
            gaps[radius] = _gap(first, second) / (_length(second) or 1.0)
        return min(gaps, key=lambda radius: gaps[radius]) * length


def _length(parts: Sequence[Tensor]) -> float:
    return float(torch.stack([part.double().norm() for part in parts]).norm())


def _gap(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    return _length([a.double() - b.double() for a, b in zip(first, second)])
