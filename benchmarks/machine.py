"""Which machine and which versions a table was made with."""

from __future__ import annotations

import platform
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PEERS = {
    "PyHessian": "PyHessian",
    "curvlinops": "curvlinops-for-pytorch",
    "BackPACK": "backpack-for-pytorch",
    "nngeometry": "nngeometry",
}


def describe(device: torch.device) -> dict[str, Any]:
    """Return the machine in words and numbers."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "peers": {name: version_of(package) for name, package in PEERS.items()},
    }


def gain_of_threads() -> float:
    """Return how many times as fast a large matrix product is with all threads as with one."""
    matrix = torch.randn(1024, 1024)
    threads = torch.get_num_threads()

    def seconds() -> float:
        matrix @ matrix
        start = time.perf_counter()
        for _ in range(5):
            matrix @ matrix
        return time.perf_counter() - start

    try:
        torch.set_num_threads(1)
        alone = min(seconds() for _ in range(3))
    finally:
        torch.set_num_threads(threads)
    return alone / min(seconds() for _ in range(3))


def version_of(package: str) -> str | None:
    """Return a package's version, None where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
