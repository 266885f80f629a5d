"""Max-pooling for passes that need nothing but the values: the same numbers, several times as fast on a CPU.

Torch's own kernel looks for the place of each maximum too, element by element, and takes a third of a small
convolutional network's forward pass.  The largest of a few shifted views is found with vector instructions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from spiritlevel.inputs.torch_internals.forward_mode import in_forward_mode

_POOLINGS = (torch.max_pool2d, F.max_pool2d)


class FastMaxPool(TorchFunctionMode):
    """While it is entered, windows that lie side by side in two dimensions are reduced view by view."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _POOLINGS and not torch.is_grad_enabled():
            found = _pooled(MaxPoolCall(*args, **kwargs))
            if found is not None:
                return found
        return function(*args, **kwargs)


def fast_max_pool(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the mode where it helps and is safe: on a CPU, where no derivative is taken in either direction."""
    plain = device.type == "cpu" and not torch.is_grad_enabled() and not in_forward_mode()
    return FastMaxPool() if plain else contextlib.nullcontext()


@dataclass
class MaxPoolCall:
    """The arguments of a call of torch's ``max_pool2d``, by torch's own names: they may be given by them."""

    input: Any
    kernel_size: Any = None
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    ceil_mode: bool = False
    return_indices: bool = False


def _pooled(call: MaxPoolCall) -> Tensor | None:
    """Return the maxima where windows neither overlap nor leave gaps nor reach over an edge; else None."""
    values, size = call.input, _pair(call.kernel_size)
    usual = _pair(call.padding) == (0, 0) and _pair(call.dilation) == (1, 1)
    usual = usual and not call.ceil_mode and not call.return_indices
    if not isinstance(values, Tensor) or values.ndim < 3 or size is None or not usual:
        return None
    fits = values.shape[-2] >= size[0] and values.shape[-1] >= size[1]
    return _largest(values, size) if fits and size[0] * size[1] <= 16 and _pair(call.stride) in (None, size) else None


def _pair(value: Any) -> tuple[int, int] | None:
    if value is None or (isinstance(value, (tuple, list)) and not value):
        return None
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _largest(values: Tensor, size: tuple[int, int]) -> Tensor:
    rows, columns = (values.shape[dim] // window * window for dim, window in zip((-2, -1), size))
    # Torch leaves out what does not fill a window.
    values = reduce(torch.maximum, [values[..., first : rows : size[0], :] for first in range(size[0])])
    return reduce(torch.maximum, [values[..., first : columns : size[1]] for first in range(size[1])])
