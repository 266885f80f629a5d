"""MNIST and Fashion-MNIST from their idx files, gzipped or unpacked, in torchvision's folders."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch

from spiritlevel.lab.datasets.files import check_md5, data_roots, read_plain_or_gzipped, unzip
from spiritlevel.lab.datasets.labelled import LabelledData
from spiritlevel.values.errors import SpiritlevelError

FOLDERS = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
# Of the published files: gzipped, and unpacked. Fashion-MNIST's unpacked files are judged by their header alone.
MD5: dict[str, str] = {
    "MNIST/raw/train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "MNIST/raw/train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
    "MNIST/raw/t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
    "MNIST/raw/t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    "MNIST/raw/train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
    "MNIST/raw/train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
    "MNIST/raw/t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
    "MNIST/raw/t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    "FashionMNIST/raw/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "FashionMNIST/raw/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "FashionMNIST/raw/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def idx_images(name: str, split: str, root: Path | None) -> LabelledData | None:
    """Return one split of MNIST or Fashion-MNIST, or None where its files are not there."""
    arrays, notes = [], []
    for file in FILES[split]:
        relative = f"{FOLDERS[name]}/{file}"
        found = read_plain_or_gzipped(data_roots(root), relative)
        if found is None:
            return None
        content, where, gzipped = found
        expected = MD5.get(f"{relative}.gz" if gzipped else relative)
        if expected is not None:
            check_md5(content, where, expected)
        else:
            notes.append(f"no checksum is known for {file}: only its header was checked")
        arrays.append(parse_idx(unzip(content, where) if gzipped else content, where))
    pixels, labels = arrays
    if pixels.ndim != 3 or labels.ndim != 1 or len(pixels) != len(labels):
        raise SpiritlevelError(
            f"The {split} files of {name} hold arrays of shapes {pixels.shape} and {labels.shape}, which are not "
            "images with one label each: fetch them again."
        )
    x = torch.from_numpy(pixels.copy()).unsqueeze(1).float().div_(255.0)
    return LabelledData(x, torch.from_numpy(labels.astype(np.int64)), name, split, 10, tuple(notes))


def parse_idx(content: bytes, where: str | Path) -> np.ndarray:
    """Return the array of bytes that an idx file holds: two zero bytes, type, rank, big-endian sizes, then the data."""
    unsigned_bytes = 0x08
    if len(content) < 4 or content[:3] != bytes((0, 0, unsigned_bytes)):
        raise SpiritlevelError(f"{where} does not begin like an idx file of bytes: it is another file or damaged.")
    rank = content[3]
    start = 4 + 4 * rank
    if len(content) < start:
        raise SpiritlevelError(f"{where} ends within its idx header: it is damaged, fetch it again.")
    shape = struct.unpack(f">{rank}I", content[4:start])
    if len(content) - start != int(np.prod(shape, dtype=np.int64)):
        raise SpiritlevelError(f"{where} holds {len(content) - start} bytes for shape {shape}: it is damaged.")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
