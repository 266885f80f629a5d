"""How much memory is free, and how much of it measurements may take: a card of 16 GB can be tried on a larger one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

from spiritlevel.inputs.process.ranks import ranks
from spiritlevel.values.errors import UsageError

VARIABLE = "SPIRITLEVEL_MEMORY"
_CGROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def memory_limit() -> int | None:
    """Return the bytes that ``SPIRITLEVEL_MEMORY`` allows ("16 GB", "500MiB", bytes), None where it is not set."""
    given = os.environ.get(VARIABLE, "").strip()
    if not given:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", given.lower())
    if found is None or found[2] not in _UNITS:
        raise UsageError(
            f"{VARIABLE} is {given!r}, which is no amount of memory; give bytes, or a number with MB or GiB"
        )
    return int(float(found[1]) * _UNITS[found[2]])


def free_bytes(device: torch.device) -> int:
    """Return the memory that may still be used on a device, at most what the user allows.

    Where several ranks decide together it is the least that one of them had when their last sweep ended.
    """
    group = ranks()
    if group.meets and device.type in group.free:
        return group.free[device.type]
    return free_bytes_here(device)


def free_bytes_here(device: torch.device) -> int:
    """Return the same of this process alone.

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
