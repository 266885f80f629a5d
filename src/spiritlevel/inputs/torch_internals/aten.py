"""Kernels and descriptions of ATen's operations, which torch's public functions wrap but do not offer one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Operations that export puts in place of public ones, by their names in a traced graph.  One that a release does not
# know is never met there.
COPY_OF_ANOTHER_TYPE = "_to_copy"
METADATA_CHECK = "_assert_tensor_metadata"
VIEW_UNCHECKED = "_unsafe_view"
ADAPTIVE_AVERAGE_POOL_2D = "_adaptive_avg_pool2d"
WEIGHT_NORM = "_weight_norm"

_kernels: Any = torch.ops.aten


def schema_of(operation: Any) -> Any | None:
    """Return the name and arguments of an operation in a traced graph, None where it does not tell them."""
    return getattr(operation, "_schema", None)


def operation_name(operation: Any) -> str:
    """Return the name of an operation in a traced graph without its library and overload: ``conv2d``."""
    return str(operation).removeprefix("aten.").partition(".")[0]


def convolutions_are_offered() -> bool:
    """Whether there are kernels of a convolution and of its adjoints; without them torch's own is to be called."""
    return hasattr(_kernels, "convolution") and hasattr(_kernels, "convolution_backward")


def convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return B(x, w) + b in any number of dimensions, past what intercepts ``torch.conv2d``."""
    found: Tensor = _kernels.convolution(
        input, weight, bias, stride, padding, dilation, False, [0] * len(stride), groups
    )
    return found


def convolution_adjoint(
    which: int,
    gradient: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Return the gradient by the input (``which`` 0) or the weight (1) alone, of which the shape alone counts."""
    wanted, nothing = [which == 0, which == 1, False], [0] * len(stride)
    found: tuple[Tensor, ...] = _kernels.convolution_backward(
        gradient, input, weight, None, stride, padding, dilation, False, nothing, groups, wanted
    )
    return found[which]


def rectifier_backward(gradient: Tensor, rectified: Tensor) -> Tensor:
    """Return the gradient where a ReLU gave something, zeros elsewhere, in one step that vmap knows how to batch."""
    kernel = getattr(_kernels, "threshold_backward", None)
    if kernel is None:
        return torch.where(rectified <= 0, torch.zeros_like(gradient), gradient)
    found: Tensor = kernel(gradient, rectified, 0)
    return found


def max_pool_2d(values: Tensor, *window: Any) -> tuple[Tensor, Tensor]:
    """Return maxima and their places, past what intercepts ``torch.nn.functional.max_pool2d``."""
    kernel = getattr(_kernels, "max_pool2d_with_indices", None)
    if kernel is None:
        found, places = F.max_pool2d(values, *window, return_indices=True)
        return found, places
    found, places = kernel(values, *window)
    return found, places


def max_pool_2d_backward(gradient: Tensor, size: Sequence[int], places: Tensor, *window: Any) -> Tensor:
    """Return (N, C, H, W) with the sums of what belongs to each place, in an order that is always the same.

    Without the kernel the sums are taken on the CPU, whose order does not change from run to run.
    """
    kernel = getattr(_kernels, "max_pool2d_with_indices_backward", None)
    if kernel is None:
        zeros = torch.zeros((*gradient.shape[:-2], size[0] * size[1]), dtype=gradient.dtype)
        sums = zeros.scatter_add(-1, places.flatten(-2).cpu(), gradient.flatten(-2).cpu())
        return sums.reshape(*gradient.shape[:-2], *size).to(gradient.device)
    inputs = gradient.new_empty((*gradient.shape[:-2], *size))  # its shape alone counts
    found: Tensor = kernel(gradient, inputs, *window, places)
    return found
