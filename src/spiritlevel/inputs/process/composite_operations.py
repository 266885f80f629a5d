"""Fused operations whose second derivative is missing or wrong, composed of single ones while a problem is measured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from spiritlevel.inputs.process.activation_checkpointing import without_checkpointing
from spiritlevel.inputs.process.attention_kernels import mathematical_attention
from spiritlevel.inputs.process.scope import hold, process_scope
from spiritlevel.inputs.torch_internals.weight_norms import fused_weight_norm, may_normalise_weights


@contextlib.contextmanager
def composite_operations(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Run attention, recurrence, weight normalisation and checkpoints in forms that can be differentiated twice."""
    modules = list(modules)
    with process_scope(), contextlib.ExitStack() as stack:
        hold("mathematical attention", mathematical_attention)
        hold("no encoder fast path", without_encoder_fast_path)
        hold("no checkpointing", without_checkpointing)
        if any(isinstance(module, nn.RNNBase) for module in modules) and torch.backends.cudnn.enabled:
            hold("no cuDNN", lambda: torch.backends.cudnn.flags(enabled=False))
        if any(may_normalise_weights(module) for module in modules):
            stack.enter_context(_ComposedWeightNorm())
        if any(isinstance(module, nn.LSTM) for module in modules) and torch.backends.mkldnn.enabled:
            stack.enter_context(_ComposedLSTM())
        yield


@contextlib.contextmanager
def without_encoder_fast_path() -> Iterator[None]:
    """torch's encoder layers take another path without gradients, which writes zeros at padded positions."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class ComposedLayerNorm(TorchFunctionMode):
    """Layer normalisation from single operations, while it is entered.

    torch's own is right when differentiated twice. A third time, which pushing a probe forward twice needs, it is
    wrong without a word: along the same direction 0.111 where differences and two backward passes give 0.207.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in (functional.layer_norm, torch.layer_norm):
            return _layer_norm(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Tensor:
    dims = tuple(range(-len(normalized_shape), 0))
    centred = input - input.mean(dims, keepdim=True)
    found = centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


class _ComposedWeightNorm(TorchFunctionMode):
    """g·v/‖v‖ from single operations: differentiating torch's fused one twice gives a matrix that is not symmetric."""

    def __init__(self) -> None:
        super().__init__()
        self._fused = fused_weight_norm()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is self._fused:
            direction, length, *dim = args
            return direction * (length / torch.norm_except_dim(direction, 2, *dim))
        return func(*args, **(kwargs or {}))


class _ComposedLSTM(TorchFunctionMode):
    """Long short-term memory from single operations: oneDNN's fused layer, on a CPU, hides where its weights are used.

    Where the uses are seen, each sample's gradients come from them and the remainder from the operations behind them.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.lstm:
            # One switch alone: torch's own scope for it writes the precision too, after which asking for that raises.
            before = torch.backends.mkldnn.enabled
            torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # torch declares what makes the switch
            try:
                return func(*args, **(kwargs or {}))
            finally:
                torch.backends.mkldnn.enabled = before
        return func(*args, **(kwargs or {}))
