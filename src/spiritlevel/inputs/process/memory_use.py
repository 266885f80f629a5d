"""How much memory a piece of work takes at most, and how much of it stays: what a plan is calibrated by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from spiritlevel.inputs.torch_internals.dispatching import TensorBytes


@dataclass
class MemoryUse:
    """Bytes beside those that were held before; None where nobody counted."""

    peak: int | None = None  # held at most
    left: int | None = None  # held at the end


@contextmanager
def memory_use(device: torch.device) -> Iterator[MemoryUse]:
    """Count within what is held: by torch's allocator on a GPU, elsewhere by the tensors that operations make.

    Buffers that an operation has for itself alone are not counted on a CPU.
    """
    use = MemoryUse()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        yield use
        torch.cuda.synchronize(device)
        use.peak = torch.cuda.max_memory_allocated(device) - before
        use.left = torch.cuda.memory_allocated(device) - before
        return
    with TensorBytes() as counted:
        yield use
    if counted.known:
        use.peak, use.left = counted.peak, counted.alive
