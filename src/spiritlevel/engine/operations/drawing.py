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
        for operation, curvature, signs in zip(self.operations, self.curvatures, self._signs(seed, draws)):
            for edge, *sides in zip(operation.inputs, *curvature.columns(signs)):
                column = torch.stack(sides, 1).flatten(0, 1)
                found[edge] = found[edge] + column if edge in found else column
        return found

    def _signs(self, seed: int, draws: range) -> list[list[Tensor]]:
        """Return every operation's signs, (draws, …) each; a sample's are its own in any batch."""
        shapes = [shape for curvature in self.curvatures for shape in curvature.sign_shapes()]
        count, indices = self.batch.count, self.batch.indices.to(self.device)
        made = partial(index_signs, draws=len(draws), first_draw=draws.start, dtype=self.dtype)
        # Making signs takes many small steps, so all that are a sample's own are made at once.
        each = [shape.numel() // count if _counts_samples(shape, count) else 0 for shape in shapes]
        together = iter(made(_key(seed, 0), indices=indices, count=sum(each)).split(each, 2))
        found = []
        for number, (shape, own) in enumerate(zip(shapes, together)):
            if not shape.numel():  # nothing was routed here
                signs = own.new_ones(len(draws), *shape)
            elif not own.shape[2]:  # rows that are no sample's own, by routing: theirs are the batch's
                signs = made(_key(seed, 1 + number), indices=indices[:1], count=shape.numel()).reshape(-1, *shape)
            elif shape[0] % count == 0:
                signs = own.reshape(-1, *shape)
            else:
                signs = own.reshape(-1, count, shape[0], *shape[2:]).transpose(1, 2)
            found.append(signs)
        left = iter(found)
        return [[next(left) for _ in curvature.sign_shapes()] for curvature in self.curvatures]


def _counts_samples(shape: torch.Size, count: int) -> bool:
    """Whether samples stand first, or second, in a shape."""
    return bool(len(shape) and (shape[0] % count == 0 or (len(shape) > 1 and shape[1] == count)))


def _key(seed: int, place: int) -> int:
    return int(splitmix64(seed, torch.tensor(place)))
