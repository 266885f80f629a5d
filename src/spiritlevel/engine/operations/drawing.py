"""One batch's curved operations under way: their second derivatives, and random columns of them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.operations.finding import CurvedOperation, Edge
from spiritlevel.engine.operations.local_curvature import LocalCurvature
from spiritlevel.engine.operations.tied import Tied
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.losses.signs import index_signs_in_parts
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.splitmix import splitmix64
from spiritlevel.inputs.torch_internals import nodes
from spiritlevel.inputs.torch_internals.backward import vjp


def loss_gradient(problem: OpenProblem, batch: Batch, outputs: Tensor) -> Tensor:
    """Return the gradient of each sample's own loss in its outputs."""
    leaf = outputs.detach().requires_grad_()
    losses, _ = problem.loss.per_sample(leaf, batch.content)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return gradient


@dataclass(frozen=True)
class TiedPart:
    """A use of a tied weight: its samples' parts of columns are what the use gives for g and signs as activations."""

    node: Any
    place: int  # of the weight among the node's inputs
    gradient: Tensor  # g
    factors: Tensor  # (draws, …) in place of the activations


@dataclass(frozen=True)
class DrawnColumns:
    """Columns (2·draws, …) by where they go in, and what belongs to them at weights that are tied."""

    entries: dict[Edge, Tensor]
    tied: list[TiedPart]


def columns_of(operations: Sequence[CurvedOperation]) -> int:
    """Return how many numbers one column of all operations has."""
    return sum(math.prod(nodes.shape_of(*edge)) for operation in operations for edge in operation.entries)


class CurvedBatch:
    """The operations' second derivatives on one batch of outputs, weighted by a gradient at these (slope·outputs)."""

    def __init__(self, batch: Batch, outputs: Tensor, slope: Tensor, operations: Sequence[CurvedOperation]) -> None:
        self.batch, self.slope, self.operations = batch, slope, operations
        self.dtype, self.device = outputs.dtype, outputs.device
        ends = [GradientEdge(operation.node, 0) for operation in operations]
        gradients = vjp(outputs, ends, slope, retain_graph=True) if ends else []
        self.curvatures: list[LocalCurvature] = [
            operation.curvature(gradient) for operation, gradient in zip(operations, gradients)
        ]

    @property
    def numbers(self) -> int:
        """Numbers in one draw's columns of one sign."""
        return columns_of(self.operations)

    def columns(self, seed: int, draws: range) -> DrawnColumns:
        """Return the columns of some draws, s₊ and s₋ of each in turn."""
        found: dict[Edge, Tensor] = {}
        tied = []
        for operation, curvature, signs in zip(self.operations, self.curvatures, self._signs(seed, draws)):
            if operation.of_parameters:
                continue
            for edge, *sides in zip(operation.entries, *curvature.columns(signs)):
                column = torch.stack(sides, 1).flatten(0, 1)
                found[edge] = found[edge] + column if edge in found else column
            if isinstance(curvature, Tied):
                assert operation.tied is not None
                tied.append(TiedPart(operation.node, operation.tied, curvature.gradient, curvature.factors(signs[0])))
        return DrawnColumns(found, tied)

    def _signs(self, seed: int, draws: range) -> Iterator[list[Tensor]]:
        """Yield the signs of each operation, one tensor (draws, *shape) for every part of its second derivative.

        All of them are cut from one row of bits a sample: hashes of their own for each operation would take longer than
        pulling the columns back.
        """
        count = self.batch.count
        both = zip(self.operations, self.curvatures)
        shapes = [[] if operation.of_parameters else curvature.sign_shapes() for operation, curvature in both]
        every = [shape for parts in shapes for shape in parts]
        own = [shape.numel() // count for shape in every if _place_of_samples(shape, count) is not None]
        shared = [shape.numel() for shape in every if _place_of_samples(shape, count) is None]
        signs = partial(index_signs_in_parts, draws=len(draws), first_draw=draws.start, dtype=self.dtype)
        indices = self.batch.indices.to(self.device)
        # Rows that are no sample's own, by routing, take the batch's; neither are those of the loss's own sketches.
        keys = splitmix64(seed, torch.arange(2, device="cpu")).tolist()
        of_samples = signs(keys[0], indices=indices, counts=own)
        of_batch = signs(keys[1], indices=indices[:1], counts=shared)
        for parts in shapes:
            found = []
            for shape in parts:
                place = _place_of_samples(shape, count)
                if place is None:
                    found.append(next(of_batch).reshape(len(draws), *shape))
                else:
                    first = (count, *shape[:place], *shape[place + 1 :]) if place else shape
                    found.append(next(of_samples).reshape(len(draws), *first).movedim(1, 1 + place))
            yield found


def _place_of_samples(shape: torch.Size, count: int) -> int | None:
    """Return the dimension that counts the samples, or multiples of them, if there is one."""
    if len(shape) and shape.numel() and shape[0] % count == 0:
        return 0
    return 1 if len(shape) > 1 and shape.numel() and shape[1] == count else None
