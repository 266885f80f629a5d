"""One batch's curved operations under way: their second derivatives, and columns of them pulled back to layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.operations.finding import CurvedOperation, Edge
from spiritlevel.engine.operations.local_curvature import LocalCurvature
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.losses.signs import index_signs
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.splitmix import splitmix64

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
        self.batch, self.dtype, self.operations = batch, outputs.dtype, operations
        ends = [GradientEdge(operation.node, 0) for operation in operations]
        gradients = torch.autograd.grad(outputs, ends, slope, retain_graph=True) if ends else []
        self.curvatures: list[LocalCurvature] = [
            operation.curvature(gradient) for operation, gradient in zip(operations, gradients)
        ]

    def pulled_back(
        self, recorder: Recorder, names: list[str], seed: int, draw: int
    ) -> tuple[dict[str, list[Tensor | None]], dict[str, list[Tensor | None]]]:
        """Return the gradients of one draw's columns, those of s₊ and those of s₋, behind each named layer's stop."""
        plus: dict[Edge, Tensor] = {}
        minus: dict[Edge, Tensor] = {}
        for number, (operation, curvature) in enumerate(zip(self.operations, self.curvatures)):
            signs = [
                self._signs(shape, seed, number * MOST_PARTS + place, draw)
                for place, shape in enumerate(curvature.sign_shapes())
            ]
            for into, side in zip((plus, minus), curvature.columns(signs)):
                for edge, column in zip(operation.inputs, side):
                    into[edge] = into[edge] + column if edge in into else column
        return recorder.pull_back_from(plus, names), recorder.pull_back_from(minus, names)

    def _signs(self, shape: torch.Size, seed: int, place: int, draw: int) -> Tensor:
        """Return signs that belong to the samples, where a dimension counts them, whatever batch they came in."""
        indices, count = self.batch.indices, self.batch.count
        key = int(splitmix64(seed, torch.tensor(place)))
        if len(shape) and shape[0] % count == 0:
            signs = index_signs(key, 1, indices, shape.numel() // count, first_draw=draw)
            return signs[0].to(self.dtype).reshape(shape)
        if len(shape) > 1 and shape[1] == count:
            signs = index_signs(key, 1, indices, shape.numel() // count, first_draw=draw)
            return signs[0].to(self.dtype).reshape(count, shape[0], *shape[2:]).transpose(0, 1)
        # Rows that are no sample's own, by routing: theirs are the batch's.
        signs = index_signs(key, 1, indices[:1], shape.numel(), first_draw=draw)
        return signs[0, 0].to(self.dtype).reshape(shape)
