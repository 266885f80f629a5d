"""The batch size on a GPU, where launches count: as large as a small share of its memory allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spiritlevel.data import DEFAULT_BATCH_SIZE, count_of, map_tensors, slice_batch

if TYPE_CHECKING:
    from spiritlevel.problem import Problem

LARGEST = 16384
TRIED = 4  # samples
# Of the memory built in, not of what is free at the moment: the same machine then takes the same batches.
SHARE = 1 / 32


def memory_share(device: torch.device) -> int:
    """Return the bytes that one batch, or the gradients of its columns, may take on a GPU."""
    return int(SHARE * torch.cuda.get_device_properties(device).total_memory)


def batch_size_on_gpu(problem: Problem) -> int:
    """Return the batch size, a power of two, by what the graph of a few samples takes."""
    device, dtype = problem.device, problem.dtype
    content = slice_batch(next(iter(problem.source.read())), 0, TRIED)
    content = map_tensors(content, lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype))
    with problem.session():
        before = torch.cuda.memory_allocated(device)
        try:
            outputs = problem.outputs(content)
        except Exception:  # the first batch will say what is wrong
            return DEFAULT_BATCH_SIZE
        taken = torch.cuda.memory_allocated(device) - before
        del outputs
    fitting = memory_share(device) * count_of(content) // max(taken, 1)
    return min(LARGEST, 1 << max(fitting, 1).bit_length() - 1)
