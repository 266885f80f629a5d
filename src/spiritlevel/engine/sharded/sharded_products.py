"""Gradients and products with the Hessian of a sharded model, one sweep over the data of all ranks each.

By differentiating twice where a look at a few samples finds that right, and otherwise by differences of gradients of
the whole data, extrapolated from two steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spiritlevel.engine.operators.batch_sums import BatchSums
from spiritlevel.engine.operators.derivative_check import GRADIENT, DerivativePath
from spiritlevel.engine.operators.differences import RADII
from spiritlevel.engine.operators.differentiation import gradient_graph, hessian_vectors
from spiritlevel.engine.operators.extrapolation import best_step, difference_along
from spiritlevel.engine.sharded.open_sharded import JointBatch, ShardedProblem
from spiritlevel.engine.sharded.second_derivatives import checked_path
from spiritlevel.engine.sharded.vectors import join, local_signs, norm, split

KIND = (GRADIENT, 0)


class ShardedHessian:
    """The Hessian of the mean loss over the data of all ranks, by its products with columns (local, K)."""

    def __init__(self, problem: ShardedProblem) -> None:
        self.problem = problem
        if problem.derivatives is None:
            problem.derivatives = checked_path(problem)
        self.path: DerivativePath = problem.derivatives

    def matvec(self, columns: Tensor) -> Tensor:
        """Return the products, in the columns' dtype."""
        problem = self.problem
        blocks = split(problem, columns)
        with problem.session(), problem.gathering.keeping_parts():
            found = self._by_differences(blocks) if self.path.differences else self._twice(blocks)
        problem.spent["hessian product"] += columns.shape[1]
        return join(found).to(columns.dtype)

    def _twice(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        problem, sums = self.problem, BatchSums(blocks)
        for joint in problem.joint_batches("products"):
            loss = batch_loss(problem, joint)
            sums.add(hessian_vectors(gradient_graph(loss, problem.tensors), problem.tensors, blocks))
        return sums.found()

    def _by_differences(self, blocks: Sequence[Tensor]) -> list[Tensor]:
        problem, path = self.problem, self.path
        measure = functools.partial(norm, problem)
        if path.radius is None:
            path.radius = self._chosen_radius()
        rows = []
        for k in range(len(blocks[0])):
            vector = [block[k] for block in blocks]
            length = measure(vector)
            if length == 0:
                rows.append([torch.zeros_like(part) for part in vector])
                continue
            along = functools.partial(self._gradient_at, vector)
            found = difference_along(along, path.radius / length, measure, path.negligible(KIND) * length)
            path.compare(KIND, found.gap / length, found.size / length)
            rows.append(found.parts)
        return [torch.stack(parts) for parts in zip(*rows)]

    def _gradient_at(self, vector: Sequence[Tensor], step: float) -> list[Tensor]:
        return gradient_of(self.problem, parameters_along(self.problem, vector, step))

    def _chosen_radius(self) -> float:
        """Return the radius whose two steps agree best along a vector of random signs, by the first batches alone."""
        problem = self.problem
        vector = [part[0] for part in split(problem, local_signs(problem, 1, seed=problem.seed))]
        unit, size = math.sqrt(problem.size), norm(problem, problem.tensors) or 1.0

        def along(step: float) -> list[Tensor]:
            return gradient_of(problem, parameters_along(problem, vector, step), first_only=True)

        steps = [radius * size / unit for radius in RADII[problem.dtype]]
        best = best_step(along, steps, functools.partial(norm, problem))
        return best * unit


def batch_loss(problem: ShardedProblem, joint: JointBatch, parameters: dict[str, Tensor] | None = None) -> Tensor:
    """Return this rank's part of the mean loss, of one batch."""
    losses, weights = problem.loss.per_sample(problem.outputs(joint.batch.content, parameters), joint.batch.content)
    return (problem.shares(joint, weights) * losses).sum()


def parameters_along(problem: ShardedProblem, vector: Sequence[Tensor], step: float) -> dict[str, Tensor]:
    """Return the parameters a step along a vector, as leaves."""
    return {
        name: (part.detach() + step * along.to(part.dtype)).requires_grad_()
        for (name, part), along in zip(problem.chosen_parameters.items(), vector)
    }


def gradient_of(problem: ShardedProblem, parameters: dict[str, Tensor], *, first_only: bool = False) -> list[Tensor]:
    """Return the gradient of the mean loss at some parameters, over all batches or over the first ones."""
    leaves = list(parameters.values())
    total = [torch.zeros_like(leaf, dtype=torch.float64) for leaf in leaves]
    with problem.session(), problem.gathering.keeping_parts():
        for joint in problem.joint_batches("gradients"):
            loss = batch_loss(problem, joint, parameters)
            for sum_, part in zip(total, torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)):
                sum_ += part
            if first_only:
                break
    problem.spent["gradient"] += not first_only
    return [sum_.to(leaf.dtype) for sum_, leaf in zip(total, leaves)]
