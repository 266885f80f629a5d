"""One batch's curved operations under way: their second derivatives, and random columns of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.operations.finding import CurvedOperation, Edge
from spiritlevel.engine.operations.local_curvature import LocalCurvature
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.losses.signs import index_signs
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.splitmix import splitmix64
from spiritlevel.inputs.torch_internals import nodes

# Signs that one operation may take, in tensors of their own.
MOST_PARTS = 8


def loss_gradient(problem: OpenProblem, batch: Batch, outputs: Tensor) -> Tensor:
    """Return the gradient of each sample's own loss in its outputs."""
    leaf = outputs.detach().requires_grad_()
    losses, _ = problem.loss.per_sample(leaf, batch.content)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return gradient


class CurvedBatch:
    """The operations' second derivatives on one batch of outputs, weighted by a gradient at these (slope·outputs)."""

    def __init__(self, batch: Batch, outputs: Tensor, slope: Tensor, operations: Sequence[CurvedOperation]) -> None:
        self.batch, self.operations = batch, operations
        self.dtype, self.device = outputs.dtype, outputs.device
        ends = [GradientEdge(operation.node, 0) for operation in operations]
        gradients = torch.autograd.grad(outputs, ends, slope, retain_graph=True) if ends else []
        self.curvatures: list[LocalCurvature] = [
            operation.curvature(gradient) for operation, gradient in zip(operations, gradients)
        ]

    @property
    def numbers(self) -> int:
        """Numbers in one draw's columns of one sign."""
        return sum(math.prod(nodes.shape_of(*edge)) for operation in self.operations for edge in operation.inputs)

    def columns(self, seed: int, draws: range) -> dict[Edge, Tensor]:
        """Return the columns of some draws, s₊ and s₋ of each in turn, (2·draws, …) by where they go in."""
        found: dict[Edge, Tensor] = {}
        for number, (operation, curvature) in enumerate(zip(self.operations, self.curvatures)):
            signs = [
                self._signs(shape, seed, number * MOST_PARTS + place, draws)
                for place, shape in enumerate(curvature.sign_shapes())
            ]
            sides = [curvature.columns([part[k] for part in signs]) for k in range(len(draws))]
            for place, edge in enumerate(operation.inputs):
                column = torch.stack([side[place] for both in sides for side in both])
                found[edge] = found[edge] + column if edge in found else column
        return found

    def _signs(self, shape: torch.Size, seed: int, place: int, draws: range) -> Tensor:
        """Return signs (draws, *shape) that belong to the samples, where a dimension counts them, in any batch."""
        indices, count = self.batch.indices.to(self.device), self.batch.count
        key = int(splitmix64(seed, torch.tensor(place)))
        signs = partial(index_signs, key, len(draws), first_draw=draws.start, dtype=self.dtype)
        if not shape.numel():  # nothing was routed here
            return torch.ones((len(draws), *shape), dtype=self.dtype, device=self.device)
        if len(shape) and shape[0] % count == 0:
            return signs(indices, shape.numel() // count).reshape(-1, *shape)
        if len(shape) > 1 and shape[1] == count:
            return signs(indices, shape.numel() // count).reshape(-1, count, shape[0], *shape[2:]).transpose(1, 2)
        # Rows that are no sample's own, by routing: theirs are the batch's.
        return signs(indices[:1], shape.numel()).reshape(-1, *shape)
