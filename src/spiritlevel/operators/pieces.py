"""Rectifiers and max-poolings whose second derivative is nothing at all, rather than a tensor of zeros.

torch gives the derivative of a ReLU's backward by the ReLU's input as zeros, as large as the layer, which are then
added to what other operations pass back.  In a small convolutional network that is a quarter of a product with the
Hessian.  Both operations only choose which numbers to pass on, and choose the same ones in every derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_RELUS = (torch.relu, F.relu, Tensor.relu)
_POOLINGS = (torch.max_pool2d, F.max_pool2d)
Window = tuple[Any, Any, Any, Any, bool]  # kernel size, stride, padding, dilation, ceil mode


class LinearPieces(TorchFunctionMode):
    """While entered, ReLUs and max-poolings are recorded so that no zeros are made of their second derivatives."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = None
        if func in _RELUS:
            found = _rectified(*args, **(kwargs or {}))
        elif func in _POOLINGS:
            found = _pooled(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {})) if found is None else found


def _plain(values: Any) -> bool:
    return type(values) in (Tensor, torch.nn.Parameter) and values.requires_grad and values.is_floating_point()


def _rectified(values: Any, inplace: bool = False, **others: Any) -> Tensor | None:
    # In place the values themselves change, which others may read.
    return None if inplace or others or not _plain(values) else _Rectified.apply(values)


def _pooled(
    values: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Tensor | None:
    if return_indices or not _plain(values) or values.ndim != 4:
        return None
    window = (_pair(kernel_size), _pair(stride or kernel_size), _pair(padding), _pair(dilation), ceil_mode)
    return _Pooled.apply(values, window)


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _Rectified(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        found = values.relu()
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (found,) = ctx.saved_tensors
        # Once no further derivative is wanted the kernel alone does, which vmap knows how to batch.
        return _Gated.apply(gradient, found.detach()) if torch.is_grad_enabled() else _gate(gradient, found)


def _gate(gradient: Tensor, found: Tensor) -> Tensor:
    return torch.ops.aten.threshold_backward(gradient, found, 0)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, found: Tensor) -> Tensor:
        ctx.save_for_backward(found)
        return _gate(gradient, found)

    @staticmethod
    def backward(ctx: Any, pushed: Tensor) -> tuple[Tensor, None]:
        return _gate(pushed, *ctx.saved_tensors), None


class _Pooled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, window: Window) -> Tensor:
        found, places = torch.ops.aten.max_pool2d_with_indices(values, *window)
        ctx.save_for_backward(values, places)
        ctx.window = window
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        values, places = ctx.saved_tensors
        spread = _Spread.apply if torch.is_grad_enabled() else _spread
        return spread(gradient, values.detach(), places, ctx.window), None


def _spread(gradient: Tensor, values: Tensor, places: Tensor, window: Window) -> Tensor:
    if values.is_cuda and _apart(window):
        return _placed(gradient, values, places)
    return torch.ops.aten.max_pool2d_with_indices_backward(gradient, values, *window, places)


def _apart(window: Window) -> bool:
    """Whether no position belongs to two windows."""
    size, stride, _, dilation, _ = window
    return all(d * (n - 1) < s for n, s, d in zip(size, stride, dilation))


def _placed(gradient: Tensor, values: Tensor, places: Tensor) -> Tensor:
    """The same for windows that lie apart: a GPU's own kernel looks at every position for the windows around it."""
    zeros = gradient.new_zeros((*values.shape[:2], values.shape[2] * values.shape[3]))
    return zeros.scatter_add_(2, places.flatten(2), gradient.flatten(2)).reshape(values.shape)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, values: Tensor, places: Tensor, window: Window) -> Tensor:
        ctx.save_for_backward(places)
        return _spread(gradient, values, places, window)

    @staticmethod
    def backward(ctx: Any, pushed: Tensor) -> tuple[Tensor, None, None, None]:
        (places,) = ctx.saved_tensors
        return pushed.flatten(2).gather(2, places.flatten(2)).reshape(places.shape), None, None, None
