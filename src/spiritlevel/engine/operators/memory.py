"""How much memory there is, and how much a batch's graph takes: what the choice of a strategy rests on."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from spiritlevel.inputs.graph_size import saved_bytes
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.memory_limit import memory_limit

# The graph of a gradient holds about as much again for the gradient's own computation, and once more while it is used.
GRAPH_FACTOR = 3.0
_CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def free_bytes(device: torch.device) -> int:
    """Return the memory that may still be used on a device, at most what the user allows.

    On a GPU what torch holds already counts against that; on a CPU it is for what a measurement takes beside the rest.
    """
    limit = memory_limit()
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds but does not use can be used again.
        allocated = torch.cuda.memory_allocated(device)
        free += torch.cuda.memory_reserved(device) - allocated
        return free if limit is None else min(free, max(limit - allocated, 0))
    found = _available_from_kernel()
    for limit_file, used_file in _CGROUP:
        most, used = _number_in(limit_file), _number_in(used_file)
        if most is not None and used is not None:
            found = min(found, max(most - used, 0))
    return found if limit is None else min(found, limit)


def graph_bytes(problem: OpenProblem) -> tuple[int, int]:
    """Return (bytes of the retained graph of the first batch, number of batches); measured once, by a forward pass."""
    if problem.graph_bytes is None:
        with problem.session():
            batch = next(iter(problem.batches()))
            held = saved_bytes(problem, lambda: problem.loss.per_sample(problem.outputs(batch.content), batch.content))
        batches = -(-problem.survey.count // batch.count)
        problem.graph_bytes = (int(GRAPH_FACTOR * held), batches)
    return problem.graph_bytes


def _available_from_kernel() -> int:
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # half of what is built in


def _number_in(file: str) -> int | None:
    try:
        return int(Path(file).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such group, or "max"
        return None
