"""Miniature files in the published formats of the data sets."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pytest

from spiritlevel.lab.datasets import idx

RNG = np.random.default_rng(0)


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(root: Path, monkeypatch: pytest.MonkeyPatch, *, gzipped: bool) -> dict[str, np.ndarray]:
    """Write twelve small images with labels as both splits of MNIST, and make their sums the published ones."""
    arrays = {}
    for split, files in idx.FILES.items():
        pixels = RNG.integers(0, 256, (12, 5, 5), dtype=np.uint8)
        labels = np.arange(12, dtype=np.uint8) % 10
        for file, array in zip(files, (pixels, labels), strict=True):
            content = gzip.compress(idx_bytes(array)) if gzipped else idx_bytes(array)
            path = root / "MNIST/raw" / (f"{file}.gz" if gzipped else file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            monkeypatch.setitem(idx.MD5, f"MNIST/raw/{path.name}", hashlib.md5(content).hexdigest())
            arrays[f"{split}/{array.ndim}"] = array
    return arrays


def add_member(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
