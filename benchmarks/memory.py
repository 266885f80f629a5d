"""The most memory that a piece of work held: by torch's count on a GPU, by the kernel's for a process on a CPU."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

import torch


def held_bytes(kind: str) -> int:
    """Return the bytes this process holds now (VmRSS) or held at most (VmHWM)."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{kind}:"):
                return 1024 * int(line.split()[1])
    except OSError:  # no such file outside Linux: the peak of the whole life, an upper bound
        pass
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def forget_peak(device: torch.device) -> None:
    """Let the peak start anew from what is held now, so that what came before does not hide the work's own."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):  # not allowed here: the peak then includes what came before
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes(device: torch.device) -> int:
    """Return the most that was held since the peak was forgotten, all tensors there included."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else held_bytes("VmHWM")
