"""Products with one batch's part of H and G: from a retained graph, by forward mode over reverse, or by differences.

All give the same answer; they differ in time and memory.  A batch's part carries its share of the mean loss, so that
the parts of all batches add up to the product itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from spiritlevel.engine.operators.convolutions import LinearConvolutions
from spiritlevel.engine.operators.differentiation import (
    Parts,
    gradient_graph,
    hessian_vectors,
    push_forward,
    vector_jacobian,
)
from spiritlevel.engine.operators.every_sample import vet
from spiritlevel.engine.operators.piecewise_linear import PiecewiseLinear
from spiritlevel.engine.passes.graph import look_at
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.open_problem import OpenProblem


class BatchProducts(Protocol):
    """What a batch can be multiplied with: blocks hold one tensor (K, *shape) for each parameter."""

    share: float  # the batch's part of the mean loss

    def hessian(self, blocks: Sequence[Tensor]) -> Parts:
        """Return the batch's part of H v."""

    def ggn(self, blocks: Sequence[Tensor]) -> Parts:
        """Return the batch's part of G v."""

    def own_block(self, position: int, vector: Tensor) -> Tensor:
        """Return the batch's part of H_pp v for one parameter's own block."""


class RetainedGraph:
    """Products from one graph, built once: every vector costs one more backward pass through the gradient's graph.

    ``together`` vectors at most go through it in one pass.
    """

    def __init__(self, problem: OpenProblem, batch: Batch, names: Sequence[str], *, together: int = 1) -> None:
        self.problem, self.batch, self.together = problem, batch, together
        self.tensors = [problem.chosen_parameters[name] for name in names]
        # Buffers written in place later (running statistics, their restoring) would invalidate this batch's graph.
        own = {name: buffer.clone() for name, buffer in problem.model.named_buffers()} or None
        problem.watch.values_left_the_graph = False
        with LinearConvolutions(), PiecewiseLinear():
            self.outputs = problem.outputs(batch.content, own)
        graph = look_at(self.outputs)
        vet(problem, batch, graph, order=2 if self._differentiates_twice() else 1)
        losses, weights = problem.loss.per_sample(self.outputs, batch.content)
        problem.agrees(batch, losses)
        self.shares = weights.detach() / problem.survey.total_weight
        self.share = float(self.shares.double().sum())
        self.loss = (self.shares * losses).sum()
        self._gradients: list[Tensor | None] | None = None

    def _differentiates_twice(self) -> bool:
        return True

    @property
    def gradients(self) -> list[Tensor | None]:
        """The gradient with the graph of its computation."""
        if self._gradients is None:
            self._gradients = gradient_graph(self.loss, self.tensors)
        return self._gradients

    def hessian(self, blocks: Sequence[Tensor]) -> Parts:
        """Return the batch's part of H v."""
        return hessian_vectors(self.gradients, self.tensors, blocks, together=self.together)

    def push(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return J v, (K, *outputs)."""
        return push_forward(self.outputs, self.tensors, blocks, together=self.together)

    def ggn(self, blocks: Sequence[Tensor]) -> Parts:
        """Return the batch's part of G v = Jᵀ Λ J v."""
        if not self.outputs.requires_grad:
            return [torch.zeros_like(block) for block in blocks]
        curved = curved_outputs(self.problem, self.batch, self.outputs, self.push(blocks), self.shares)
        return vector_jacobian([self.outputs], self.tensors, [curved], together=self.together)

    def own_block(self, position: int, vector: Tensor) -> Tensor:
        """Return the batch's part of H_pp v for one parameter's own block."""
        pair = slice(position, position + 1)
        return hessian_vectors(self.gradients[pair], self.tensors[pair], [vector[None]])[0][0]


class ForwardOverReverse:
    """Products as the forward derivative of the gradient: no graph is retained, so the least memory.

    Nested forward mode would be silently wrong through normalisation layers; forward over reverse is not.
    """

    def __init__(self, problem: OpenProblem, batch: Batch, names: Sequence[str], *, function: Any = None) -> None:
        self.problem, self.batch, self.names = problem, batch, list(names)
        self.point = {name: problem.chosen_parameters[name].detach() for name in names}
        with torch.no_grad():
            self.outputs = problem.outputs(batch.content)
            losses, weights = problem.loss.per_sample(self.outputs, batch.content)
        problem.agrees(batch, losses)
        self.shares = weights / problem.survey.total_weight
        self.share = float(self.shares.double().sum())
        self._product = function or hessian_by_forward

    def hessian(self, blocks: Sequence[Tensor]) -> Parts:
        """Return the batch's part of H v."""
        rows = [
            self._product(
                self.problem, self.point, {n: b[k] for n, b in zip(self.names, blocks)}, self.batch.content, self.shares
            )
            for k in range(len(blocks[0]))
        ]
        return [torch.stack([row[name] for row in rows]) for name in self.names]

    def ggn(self, blocks: Sequence[Tensor]) -> Parts:
        """Return the batch's part of G v = Jᵀ Λ J v."""

        def outputs(point: dict[str, Tensor]) -> Tensor:
            return self.problem.outputs(self.batch.content, point)

        forward = torch.stack(
            [
                torch.func.jvp(outputs, (self.point,), ({n: b[k] for n, b in zip(self.names, blocks)},))[1]
                for k in range(len(blocks[0]))
            ]
        )
        curved = curved_outputs(self.problem, self.batch, self.outputs, forward, self.shares)
        pull = torch.func.vjp(outputs, self.point)[1]
        rows = [pull(column)[0] for column in curved]
        return [torch.stack([row[name] for row in rows]) for name in self.names]

    def own_block(self, position: int, vector: Tensor) -> Tensor:
        """Return the batch's part of H_pp v for one parameter's own block."""
        name = self.names[position]
        point = {name: self.point[name]}
        return self._product(self.problem, point, {name: vector}, self.batch.content, self.shares)[name]


def hessian_by_forward(
    problem: OpenProblem, point: dict[str, Tensor], tangent: dict[str, Tensor], content: Any, shares: Tensor
) -> dict[str, Tensor]:
    """Return the forward derivative of the gradient along ``tangent``."""

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        losses, _ = problem.loss.per_sample(problem.outputs(content, parameters), content)
        return (shares * losses).sum()

    derivative: dict[str, Tensor] = torch.func.jvp(torch.func.grad(loss), (point,), (tangent,))[1]
    return derivative


def curved_outputs(problem: OpenProblem, batch: Batch, outputs: Tensor, forward: Tensor, shares: Tensor) -> Tensor:
    """Return Λ J v, each sample with its share of the mean loss."""
    curved = problem.loss.hessian_product(outputs.detach(), batch.content, forward.detach())
    return curved * shares.reshape(1, -1, *([1] * (outputs.ndim - 1)))
