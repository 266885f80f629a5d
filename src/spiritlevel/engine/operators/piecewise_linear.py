"""Rectifiers and max-poolings whose second derivative is nothing at all, rather than a tensor of zeros.

torch gives the derivative of a ReLU's backward by the ReLU's input as zeros, as large as the layer, which are then
added to what other operations pass back.  In a small convolutional network that is a quarter of a product with the
Hessian.  Both operations only choose which numbers to pass on, and choose the same ones in every derivative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from spiritlevel.engine.operators.pooling_blocks import Window, gather_places, scatter_places
from spiritlevel.inputs.process.fast_max_pool import MaxPoolCall
from spiritlevel.inputs.torch_internals import aten
from spiritlevel.inputs.torch_internals.tensors import version_of

_RELUS = (torch.relu, F.relu, Tensor.relu)
_POOLINGS = (torch.max_pool2d, F.max_pool2d)


class PiecewiseLinear(TorchFunctionMode):
    """While entered, ReLUs and max-poolings are recorded so that no zeros are made of their second derivatives."""

    def __init__(self) -> None:
        super().__init__()
        # What ReLUs made, by identity: with what they made it of, and the versions of both at the time.
        self._made_by_relus: dict[int, tuple[Tensor, Tensor, tuple[object, object]]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = None
        if func in _RELUS:
            found = self._rectify(*args, **(kwargs or {}))
        elif func in _POOLINGS:
            found = self._pool(MaxPoolCall(*args, **(kwargs or {})))
        return func(*args, **(kwargs or {})) if found is None else found

    # Inputs have torch's own name, by which they may be given.

    def _rectify(self, input: Any, inplace: bool = False, **others: Any) -> Tensor | None:
        if inplace or others or not _plain(input):  # in place the values themselves change, which others may read
            return None
        found: Tensor = _Rectified.apply(input)
        self._made_by_relus[id(found)] = found, input, (version_of(found), version_of(input))
        return found

    def _pool(self, call: MaxPoolCall) -> Tensor | None:
        input, size = call.input, call.kernel_size
        if call.return_indices or not _plain(input) or input.ndim != 4:
            return None
        sizes = (size, call.stride or size, call.padding, call.dilation)
        kernel, stride, padding, dilation = map(_pair, sizes)
        window = (kernel, stride, padding, dilation, call.ceil_mode)
        # The largest of rectified values is the largest value, rectified: derivatives then pass the ReLU where there
        # are fewer numbers.  Not where what the ReLU made, or was made of, has been changed in place since.
        made, behind, versions = self._made_by_relus.get(id(input), (input, input, None))
        rectified = versions == (version_of(made), version_of(behind))
        found: Tensor = _Pooled.apply(behind if rectified else input, window, rectified)
        return found


def _plain(values: Any) -> bool:
    return type(values) in (Tensor, torch.nn.Parameter) and values.requires_grad and values.is_floating_point()


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


class _Rectified(torch.autograd.Function):
    apply: ClassVar[Callable[..., Tensor]]

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
    gated: Tensor = aten.rectifier_backward(gradient, found)
    return gated


class _Gated(torch.autograd.Function):
    apply: ClassVar[Callable[..., Tensor]]

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, found: Tensor) -> Tensor:
        ctx.save_for_backward(found)
        return _gate(gradient, found)

    @staticmethod
    def backward(ctx: Any, pushed: Tensor) -> tuple[Tensor, None]:
        return _gate(pushed, *ctx.saved_tensors), None


class _Pooled(torch.autograd.Function):
    """Max-pooling, and a ReLU of it where it is to be ``rectified``."""

    apply: ClassVar[Callable[..., Tensor]]

    @staticmethod
    def forward(ctx: Any, values: Tensor, window: Window, rectified: bool) -> Tensor:
        found: Tensor
        found, places = aten.max_pool_2d(values, *window)
        if rectified:
            found = found.relu_()
        ctx.save_for_backward(places, *([found] if rectified else []))
        ctx.size, ctx.window = list(values.shape[2:]), window
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        places, *gate = ctx.saved_tensors
        put_back = _Scattered.apply if torch.is_grad_enabled() else _scatter
        return put_back(gradient, places, gate[0].detach() if gate else None, ctx.size, ctx.window), None, None


class _Scattered(torch.autograd.Function):
    """Gradients of pooled values, put where the values came from."""

    @staticmethod
    def forward(
        ctx: Any, gradient: Tensor, places: Tensor, gate: Tensor | None, size: list[int], window: Window
    ) -> Tensor:
        ctx.save_for_backward(places, *([] if gate is None else [gate]))
        return _scatter(gradient, places, gate, size, window)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, pushed: Tensor) -> tuple[Tensor, None, None, None, None]:
        places, *gate = ctx.saved_tensors
        found = gather_places(pushed, places)
        return _gate(found, gate[0]) if gate else found, None, None, None, None


def _scatter(gradient: Tensor, places: Tensor, gate: Tensor | None, size: list[int], window: Window) -> Tensor:
    return scatter_places(gradient if gate is None else _gate(gradient, gate), places, size, window)
