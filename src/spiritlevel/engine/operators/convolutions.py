"""Convolutions whose second derivatives are convolutions again.

torch differentiates a convolution's backward by convolving transposed copies with kernels as large as the images,
which takes two thirds of a product with the Hessian.  A convolution B(x, w) + b is linear in both arguments, so
with its adjoints, gx = Bₓ*(g, w), gw = B_w*(g, x) and gb = Σ g, and cotangents (u, v, c) of (gx, gw, gb),

    ∂/∂g = B(u, w) + B(x, v) + c,    ∂/∂x = Bₓ*(g, v),    ∂/∂w = B_w*(g, u):

first-order kernels all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from spiritlevel.engine.operators.convolution_blocks import Options, convolve, pull_to_input, pull_to_weight
from spiritlevel.inputs.torch_internals import aten

_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}


class LinearConvolutions(TorchFunctionMode):
    """While entered, convolutions are recorded so that they can be differentiated twice without the detour."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _DIMENSIONS and aten.convolutions_are_offered():
            found = _linear(_DIMENSIONS[func], *args, **(kwargs or {}))
            if found is not None:
                return found
        return func(*args, **(kwargs or {}))


def _linear(
    dimensions: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | str | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return the convolution, or None where it is not the plain one of two tensors of one dtype."""
    plain = all(type(tensor) in (Tensor, torch.nn.Parameter) for tensor in (input, weight))
    if not plain or not input.ndim == weight.ndim == dimensions + 2 or isinstance(padding, str):
        return None
    if input.dtype != weight.dtype or torch.is_autocast_enabled(input.device.type):
        return None
    options = (_each(stride, dimensions), _each(padding, dimensions), _each(dilation, dimensions), groups)
    found: Tensor = _Convolution.apply(input, weight, bias, options)
    return found


def _each(value: int | Sequence[int], dimensions: int) -> list[int]:
    listed = [value] if isinstance(value, int) else list(value)
    return listed * dimensions if len(listed) == 1 else listed


class _Convolution(torch.autograd.Function):
    """B(x, w) + b."""

    apply: ClassVar[Callable[..., Tensor]]

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None, options: Options) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.options = options
        return convolve(input, weight, bias, options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[:3])
        # Once no further derivative is wanted the kernels alone do, which know how to take a block of vectors.
        pull = _Adjoints.apply if torch.is_grad_enabled() else _adjoints
        return *pull(gradient, input, weight, ctx.options, wanted), None


def _adjoints(
    gradient: Tensor, input: Tensor, weight: Tensor, options: Options, wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    return (
        pull_to_input(gradient, weight, list(input.shape[1:]), options) if wanted[0] else None,
        pull_to_weight(gradient, input, list(weight.shape[2:]), options) if wanted[1] else None,
        gradient.sum([0, *range(2, gradient.ndim)]) if wanted[2] else None,
    )


class _Adjoints(torch.autograd.Function):
    """(Bₓ*(g, w), B_w*(g, x), Σ g), None where not wanted."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, input: Tensor, weight: Tensor, options: Options, wanted: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        ctx.save_for_backward(gradient, input, weight)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return _adjoints(gradient, input, weight, options, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None, c: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, input, weight = ctx.saved_tensors
        options = ctx.options
        by_gradient = by_input = by_weight = None
        if ctx.needs_input_grad[0]:
            if v is not None:
                by_gradient = convolve(input, v, c, options)
            elif c is not None:
                by_gradient = c.reshape(-1, *([1] * (gradient.ndim - 2))).expand_as(gradient)
            if u is not None:
                along = convolve(u, weight, None, options)
                by_gradient = along if by_gradient is None else by_gradient + along
        if v is not None and ctx.needs_input_grad[1]:
            by_input = pull_to_input(gradient, v, list(input.shape[1:]), options)
        if u is not None and ctx.needs_input_grad[2]:
            by_weight = pull_to_weight(gradient, u, list(weight.shape[2:]), options)
        return by_gradient, by_input, by_weight, None, None
