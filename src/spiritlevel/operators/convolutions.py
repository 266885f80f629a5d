"""Convolutions whose second derivatives are convolutions again.

torch differentiates a convolution's backward by convolving transposed copies with kernels as large as the images,
which takes two thirds of a product with the Hessian.  A convolution B(x, w) is linear in both arguments, so
with its two adjoints, gx = Bₓ*(g, w) and gw = B_w*(g, x), and cotangents (u, v) of (gx, gw),

    ∂/∂g = B(u, w) + B(x, v),    ∂/∂x = Bₓ*(g, v),    ∂/∂w = B_w*(g, u):

first-order kernels all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
Options = tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


class LinearConvolutions(TorchFunctionMode):
    """While entered, convolutions are recorded so that they can be differentiated twice without the detour."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _DIMENSIONS:
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
    found = _Convolution.apply(input, weight, options)
    return found if bias is None else found + bias.reshape(-1, *([1] * dimensions))


def _each(value: int | Sequence[int], dimensions: int) -> list[int]:
    listed = [value] if isinstance(value, int) else list(value)
    return listed * dimensions if len(listed) == 1 else listed


def _convolve(input: Tensor, weight: Tensor, options: Options) -> Tensor:
    stride, padding, dilation, groups = options
    return torch.ops.aten.convolution(input, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def _adjoints(
    gradient: Tensor, input: Tensor, weight: Tensor, options: Options, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    if not any(wanted):
        return None, None
    stride, padding, dilation, groups = options
    by_input, by_weight, _ = torch.ops.aten.convolution_backward(
        gradient, input, weight, None, stride, padding, dilation, False, [0] * len(stride), groups, [*wanted, False]
    )
    return by_input if wanted[0] else None, by_weight if wanted[1] else None


class _Convolution(torch.autograd.Function):
    """B(x, w)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, options: Options) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.options = options
        return _convolve(input, weight, options)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        input, weight = ctx.saved_tensors
        wanted = tuple(ctx.needs_input_grad[:2])
        # Once no further derivative is wanted the kernels alone do, which vmap knows how to batch.
        pull = _Adjoints.apply if torch.is_grad_enabled() else _adjoints
        return *pull(gradient, input, weight, ctx.options, wanted), None


class _Adjoints(torch.autograd.Function):
    """(Bₓ*(g, w), B_w*(g, x)), None where not wanted."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, input: Tensor, weight: Tensor, options: Options, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(gradient, input, weight)
        ctx.options = options
        ctx.set_materialize_grads(False)
        return _adjoints(gradient, input, weight, options, wanted)

    @staticmethod
    def backward(ctx: Any, u: Tensor | None, v: Tensor | None) -> tuple[Tensor | None, ...]:
        gradient, input, weight = ctx.saved_tensors
        options = ctx.options
        by_gradient = by_input = by_weight = None
        if ctx.needs_input_grad[0]:
            parts = [] if u is None else [_convolve(u, weight, options)]
            parts += [] if v is None else [_convolve(input, v, options)]
            by_gradient = sum(parts[1:], parts[0]) if parts else None
        # Apart, although the kernel could make both at once: vmap folds a block of v or of u into channels, not both.
        if v is not None and ctx.needs_input_grad[1]:
            by_input, _ = _adjoints(gradient, input, v, options, (True, False))
        if u is not None and ctx.needs_input_grad[2]:
            _, by_weight = _adjoints(gradient, u, weight, options, (False, True))
        return by_gradient, by_input, by_weight, None, None
