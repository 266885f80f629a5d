"""Each layer's weight as a matrix: what rows, columns and products with it mean for measures defined on matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from spiritlevel.inputs.expert_stacks import stacking_order
from spiritlevel.inputs.input_first import is_input_first


def _inputs_stand_first(module: nn.Module, weight: Tensor) -> bool:
    if weight.ndim == 3:
        return stacking_order(module) == "inputs first"
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or is_input_first(module)


def matrix_shape(module: nn.Module, weight: Tensor) -> tuple[int, int, int, int]:
    """Return (groups, outputs, inputs, kernel positions) of a weight of two or more dimensions."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        groups = module.groups
        return groups, weight.shape[0] // groups, weight.shape[1], math.prod(weight.shape[2:])
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        groups = module.groups
        return groups, weight.shape[1], weight.shape[0] // groups, math.prod(weight.shape[2:])
    if weight.ndim == 3 and (order := stacking_order(module)):
        groups, *sides = weight.shape
        return (groups, *(sides if order == "outputs first" else reversed(sides)), 1)
    if _inputs_stand_first(module, weight):
        return 1, weight.shape[1], weight.shape[0], 1
    return 1, weight.shape[0], math.prod(weight.shape[1:]), 1


def as_matrix(module: nn.Module, tensor: Tensor, weight: Tensor) -> Tensor:
    """View a tensor shaped (..., *weight.shape) as (..., groups, outputs, inputs, kernel positions)."""
    lead = tensor.shape[: tensor.ndim - weight.ndim]
    groups, outputs, inputs, kernel = matrix_shape(module, weight)
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return tensor.reshape(*lead, groups, inputs, outputs, kernel).transpose(-3, -2)
    if _inputs_stand_first(module, weight):
        return tensor.transpose(-1, -2).reshape(*lead, groups, outputs, inputs, kernel)
    return tensor.reshape(*lead, groups, outputs, inputs, kernel)


def from_matrix(module: nn.Module, matrix: Tensor, weight: Tensor) -> Tensor:
    """Undo :func:`as_matrix`."""
    lead = matrix.shape[:-4]
    _, outputs, inputs, _ = matrix_shape(module, weight)
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return matrix.transpose(-3, -2).reshape(*lead, *weight.shape)
    if _inputs_stand_first(module, weight):
        return matrix.reshape(*lead, *weight.shape[:-2], outputs, inputs).transpose(-1, -2)
    return matrix.reshape(*lead, *weight.shape)


@dataclass(frozen=True)
class WeightView:
    """A weight as a matrix, with what the quadratic forms need of it computed once."""

    module: nn.Module
    weight: Tensor

    @cached_property
    def matrix(self) -> Tensor:  # (G, O, I, K)
        """The weight by groups, outputs, inputs and kernel positions."""
        return as_matrix(self.module, self.weight.detach(), self.weight)

    @cached_property
    def flat(self) -> Tensor:  # (G, O, I*K)
        """The weight with kernel positions unfolded into inputs."""
        return self.matrix.flatten(-2)

    @cached_property
    def gram(self) -> Tensor:  # (G, O, O)
        """W Wᵀ of each group."""
        return self.flat @ self.flat.transpose(-1, -2)
