"""The batch size where nobody chose one, by how much the graph of a few samples holds.

On a GPU launches count: a batch is as large as a small share of the memory allows.  On a CPU a batch of twice the usual
size is quicker while it stays in the caches, and slower once it does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from spiritlevel.inputs.contents import count_of, map_tensors, slice_batch
from spiritlevel.inputs.data import DEFAULT_BATCH_SIZE
from spiritlevel.inputs.graph_size import saved_bytes
from spiritlevel.inputs.process.memory_limit import memory_limit

if TYPE_CHECKING:
    from spiritlevel.inputs.open_problem import OpenProblem

LARGEST = 16384
TRIED = 4  # samples
# Of the memory built in, not of what is free at the moment: the same machine then takes the same batches.
SHARE, SHARE_OF_GRAPH = 1 / 32, 1 / 16
CACHED = 32 * 2**20  # bytes: about what the caches of a processor hold


def memory_share(device: torch.device, share: float = SHARE) -> int:
    """Return the bytes that the gradients of a batch's columns, or with its own share the graph, may take on a GPU."""
    total, limit = torch.cuda.get_device_properties(device).total_memory, memory_limit()
    return int(share * (total if limit is None else min(total, limit)))


def batch_size_for(problem: OpenProblem) -> int:
    """Return the batch size for a problem's model and device."""
    device, dtype = problem.device, problem.dtype
    content = slice_batch(next(iter(problem.source.read())), 0, TRIED)
    content = map_tensors(content, lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype))
    with problem.session():
        try:
            taken = saved_bytes(problem, lambda: problem.outputs(content))
        except Exception:  # the first batch will say what is wrong
            return DEFAULT_BATCH_SIZE
    each = max(taken / count_of(content), 1.0)
    if device.type != "cuda":
        return 2 * DEFAULT_BATCH_SIZE if 2 * DEFAULT_BATCH_SIZE * each <= CACHED else DEFAULT_BATCH_SIZE
    return min(LARGEST, 1 << max(int(memory_share(device, SHARE_OF_GRAPH) / each), 1).bit_length() - 1)
