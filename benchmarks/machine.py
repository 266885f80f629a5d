"""Which machine and which versions a table was made with."""

from __future__ import annotations

import platform
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
