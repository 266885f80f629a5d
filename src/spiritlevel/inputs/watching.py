"""Watching a forward pass for what would make its derivatives those of another function.

A hook on a tensor changes gradients and not the function: it is left out.  Autocast inside the model changes the
arithmetic that results are labelled with: it is switched off.  A fused attention kernel that the model asks for has no
second derivative: the mathematical one runs in its place.  Values that leave the graph (detach, ``.item()``,
``no_grad``) may or may not matter: they are noticed, and every sample's derivatives are then held against differences.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from spiritlevel.inputs.process.attention_kernels import fused_kernels_allowed, mathematical_attention
from spiritlevel.inputs.process.precision import autocast_kinds, without_autocast

HOOKS = "Hooks on tensors inside the model's forward were left out: they change gradients, not the function measured."
AUTOCAST = "Autocast inside the model's forward was switched off: numbers are those of the model in its own precision."
ATTENTION = (
    "Attention ran by its mathematical kernel: the fused ones that the model's forward asks for (flash, "
    "memory-efficient) have no second derivative."
)
_ATTENDING = {functional.scaled_dot_product_attention, functional.multi_head_attention_forward}

# Numbers that Python or another library goes on with; what stays a tensor is known by taking no gradient any more.
_LEAVING = {
    Tensor.item,
    Tensor.tolist,
    Tensor.numpy,
    Tensor.__array__,
    Tensor.__dlpack__,
    Tensor.__float__,
}


class Watch(TorchFunctionMode):
    """While entered, forward passes are watched; what was seen is kept until it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.left_out: set[str] = set()  # notes on what was left out or switched off
        self.values_left_the_graph = False
        self.dtypes: set[torch.dtype] = set()  # of all floating-point results
        self._differentiated = False
        self._coarse = False

    @contextlib.contextmanager
    def coarse_forward(self, device: torch.device) -> Iterator[None]:
        """Run what follows in bfloat16 where autocast takes that to be safe, and learn nothing of the model by it."""
        known = self.values_left_the_graph
        self._coarse = True
        try:
            # Weights are cast anew each time: a copy that is kept would be one weight's of another pass.
            with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False):
                yield
        finally:
            self._coarse, self.values_left_the_graph = False, known

    def __enter__(self) -> Watch:
        self._differentiated = torch.is_grad_enabled()  # otherwise there is no graph to leave
        super().__enter__()  # type: ignore[no-untyped-call]  # torch gives it no types
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.register_hook:
            self.left_out.add(HOOKS)
            return RemovableHandle(OrderedDict())
        with contextlib.ExitStack() as around:
            if not self._coarse and autocast_kinds():
                self.left_out.add(AUTOCAST)
                around.enter_context(without_autocast())
            if func in _ATTENDING and fused_kernels_allowed():
                self.left_out.add(ATTENTION)
                around.enter_context(mathematical_attention())
            found = func(*args, **kwargs)
        if not self._coarse and isinstance(found, Tensor) and found.is_floating_point():
            self.dtypes.add(found.dtype)
        if self._differentiated and not self.values_left_the_graph and _is_cut_off(found, func):
            self.values_left_the_graph = any(map(_takes_gradients, (*args, *kwargs.values())))
        return found


def _is_cut_off(found: Any, func: Callable[..., Any]) -> bool:
    """Whether a result is made of numbers that no gradient is passed back to."""
    if isinstance(found, Tensor):
        return not found.requires_grad and (found.is_floating_point() or found.is_complex())
    if isinstance(found, (tuple, list)):
        return any(_is_cut_off(one, func) for one in found)
    return func in _LEAVING


def _takes_gradients(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_takes_gradients, value))
    return isinstance(value, Tensor) and value.requires_grad
