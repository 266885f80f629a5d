"""CIFAR-10 and CIFAR-100 from their Python pickles, read as plain data: in a folder, or in memory from an archive."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spiritlevel.inputs.weights.safe_pickle import safe_unpickle
from spiritlevel.lab.datasets.files import data_roots, md5, read_from_folder_or_archive
from spiritlevel.lab.datasets.labelled import LabelledData
from spiritlevel.values.errors import SpiritlevelError

FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVE_STEMS = {"cifar10": ("cifar-10-python", "cifar-10-batches-py"), "cifar100": ("cifar-100-python",)}
LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
FILES = {
    ("cifar10", "train"): tuple(f"data_batch_{number}" for number in range(1, 6)),
    ("cifar10", "test"): ("test_batch",),
    ("cifar100", "train"): ("train",),
    ("cifar100", "test"): ("test",),
}
MD5: dict[str, str] = {
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
}
# sha256 of the pixels followed by one byte a label: a batch rebuilt from another copy of the images is the same data in
# a pickle whose own md5 differs.
CONTENT: dict[str, str] = {
    "cifar-10-batches-py/data_batch_1": "ba52cb2d72c412975d7556bb26bd094956f1c002d1937053f6f1252f2ac17114",
    "cifar-10-batches-py/data_batch_2": "350ff9000489d02f2568c0dcf4912ffdbae9e50932147905fb1b8159ad54f0ac",
    "cifar-10-batches-py/data_batch_3": "a2b8653fc457df407af6c38b7e0d1a12530f3b5f81fce9f81516efd065daf722",
    "cifar-10-batches-py/data_batch_4": "133e6292c377755074c305db8a684d48d5397372cb0aba34f52b4335eab35d97",
    "cifar-10-batches-py/data_batch_5": "eb08cdc11fd1267ef871cf4790f193684b3f556d13317be68f4eb374a078ea87",
    "cifar-10-batches-py/test_batch": "9a4c74f5c8b6f2c4e13d3a1dfb43a5a8cda8a9da515e99fd620d2013a1a6287a",
}


def cifar_images(name: str, split: str, root: Path | None) -> LabelledData | None:
    """Return one split of CIFAR-10 or CIFAR-100 (the fine labels), or None where its files are not there."""
    pixels, labels = [], []
    for file in FILES[name, split]:
        found = read_from_folder_or_archive(data_roots(root), FOLDERS[name], file, ARCHIVE_STEMS[name])
        if found is None:
            return None
        batch_pixels, batch_labels = read_batch(name, file, *found)
        pixels.append(batch_pixels)
        labels.append(batch_labels)
    # Rows are 1,024 red, 1,024 green, 1,024 blue values, each plane row by row.
    images = torch.from_numpy(np.concatenate(pixels)).reshape(-1, 3, 32, 32)
    y = torch.from_numpy(np.concatenate(labels).astype(np.int64))
    return LabelledData(images.float().div_(255.0), y, name, split, 10 if name == "cifar10" else 100)


def read_batch(name: str, file: str, content: bytes, where: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (N, 3072) and labels (N,) of one pickle after proving that they are the published ones."""
    key = f"{FOLDERS[name]}/{file}"
    found = md5(content)
    published = found == MD5[key]
    if not published and key not in CONTENT:
        raise SpiritlevelError(_not_published(where, found, MD5[key]))
    try:
        batch: Any = safe_unpickle(io.BytesIO(content))
    except SpiritlevelError as error:
        raise SpiritlevelError(f"{where} cannot be read: {error}") from error
    labels = batch.get(LABELS[name]) if isinstance(batch, dict) else None
    pixels = batch.get("data") if isinstance(batch, dict) else None
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != 3072:
        raise SpiritlevelError(f"{where} holds no array 'data' of bytes with 3,072 columns: it is not a CIFAR batch.")
    if not isinstance(labels, list) or len(labels) != len(pixels) or not all(l in range(100) for l in labels):
        raise SpiritlevelError(
            f"{where} holds no list {LABELS[name]!r} of one class an image: it is not a CIFAR batch."
        )
    array = np.asarray(labels, dtype=np.uint8)
    if not published and content_digest(pixels, array) != CONTENT[key]:
        raise SpiritlevelError(_not_published(where, found, MD5[key]))
    return pixels, array


def content_digest(pixels: np.ndarray, labels: np.ndarray) -> str:
    """Return the sha256 of pixels and labels, which does not depend on how they were pickled."""
    return hashlib.sha256(pixels.astype(np.uint8).tobytes() + labels.astype(np.uint8).tobytes()).hexdigest()


def _not_published(where: str, found: str, expected: str) -> str:
    return (
        f"{where} has md5 {found} where the published file has {expected}, and its images differ too: it is damaged or "
        "another file, so remove it and fetch it again."
    )
