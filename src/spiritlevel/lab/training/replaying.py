"""A training step recorded once and replayed: on a GPU small networks spend their time in launching, not computing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Calls made as they are before the recording: libraries choose their algorithms and take their workspaces in these.
FIRST_CALLS = 3
# Recording takes about as long as this many steps do.
WORTH_RECORDING = 300


class Replayed:
    """A function of tensors that from its fourth call on is replayed from a CUDA graph, where there is a GPU.

    The function may update tensors in place; what it returns is overwritten by the next call. Inputs of another shape
    than the first ones (an uneven last batch), and all inputs where recording fails, take the function itself.
    """

    def __init__(self, function: Callable[..., tuple[Any, ...]], device: torch.device, calls: int) -> None:
        """``calls`` says how many are to come: few are not worth a recording, 0 asks for none."""
        self.function = function
        self.enabled = calls >= WORTH_RECORDING and device.type == "cuda"
        self.calls = 0
        self.shapes: tuple[torch.Size, ...] | None = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.inputs: tuple[Tensor, ...] = ()
        self.outputs: tuple[Any, ...] = ()

    def __call__(self, *inputs: Tensor) -> tuple[Any, ...]:
        """Return what the function returns."""
        shapes = tuple(tensor.shape for tensor in inputs)
        self.shapes = self.shapes or shapes
        if not self.enabled or shapes != self.shapes:
            return self.function(*inputs)
        self.calls += 1
        if self.calls <= FIRST_CALLS:
            return self._beside(inputs)
        if self.graph is None and not self._record(inputs):
            return self.function(*inputs)
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)
        assert self.graph is not None
        self.graph.replay()
        return self.outputs

    def _beside(self, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
        """Call the function on a stream of its own, as the recording will be made on one."""
        current, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            outputs = self.function(*inputs)
        current.wait_stream(side)
        return outputs

    def _record(self, inputs: tuple[Tensor, ...]) -> bool:
        """Record the function without running it; say whether that worked."""
        self.inputs = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self.outputs = self.function(*self.inputs)
        except RuntimeError:  # an operation that waits for the GPU cannot be recorded
            self.enabled = False
            return False
        self.graph = graph
        return True
