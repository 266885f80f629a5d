"""Data sets: miniature files in the published formats, damaged files, and the real sets where found."""

from __future__ import annotations

import hashlib
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch

from spiritlevel.lab import datasets
from spiritlevel.lab.datasets import cifar, idx
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.lab.miniature import RNG, add_member, write_idx


def cifar_batch(count: int, key: str) -> dict[str, object]:
    labels = [int(label) for label in RNG.integers(0, 10, count)]
    return {"data": RNG.integers(0, 256, (count, 3072), dtype=np.uint8), key: labels, "filenames": ["a.png"] * count}


def write_cifar100(root: Path, monkeypatch: pytest.MonkeyPatch, archive: str | None) -> dict[str, dict[str, object]]:
    batches = {file: cifar_batch(6, "fine_labels") for file in ("train", "test")}
    contents = {file: pickle.dumps(batch, protocol=2) for file, batch in batches.items()}
    for file, content in contents.items():
        monkeypatch.setitem(cifar.MD5, f"cifar-100-python/{file}", hashlib.md5(content).hexdigest())
    if archive is None:
        (root / "cifar-100-python").mkdir()
        for file, content in contents.items():
            (root / "cifar-100-python" / file).write_bytes(content)
    else:
        mode = {".xz": "w:xz", ".gz": "w:gz", ".tar": "w"}[Path(archive).suffix]
        with tarfile.open(root / archive, mode) as tar:  # type: ignore[call-overload]
            for file, content in contents.items():
                add_member(tar, f"cifar-100-python/{file}", content)
    return batches


def test_digits_have_one_fixed_stratified_split() -> None:
    train, test = datasets.load("digits"), datasets.load("digits", "test")
    assert (train.x.shape, test.x.shape) == ((1437, 1, 8, 8), (360, 1, 8, 8))
    assert (train.x.dtype, train.y.dtype) == (torch.float32, torch.int64)
    assert (float(train.x.min()), float(train.x.max())) == (0.0, 1.0)
    shares = [torch.bincount(d.y).double() / len(d) for d in (train, test)]
    assert float((shares[0] - shares[1]).abs().max()) < 0.003
    together = torch.cat([train.x, test.x]).flatten(1)
    assert len(torch.unique(together, dim=0)) == len(together) == 1797  # no digit is in both
    assert torch.equal(datasets.load("digits").x, train.x)
    assert (train.channels, train.size, train.classes, len(train)) == (1, 8, 10, 1437)


@pytest.mark.parametrize("gzipped", [True, False])
def test_mnist_is_read_from_either_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gzipped: bool) -> None:
    arrays = write_idx(tmp_path, monkeypatch, gzipped=gzipped)
    for split in ("train", "test"):
        data = datasets.load("mnist", split, root=tmp_path)
        assert torch.equal((data.x[:, 0] * 255).round().byte(), torch.from_numpy(arrays[f"{split}/3"]))
        assert data.y.tolist() == arrays[f"{split}/1"].tolist()
        assert data.x.shape == (12, 1, 5, 5)
        assert (data.name, data.split, data.notes) == ("mnist", split, ())


def test_the_root_comes_from_the_argument_the_environment_or_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_idx(tmp_path / "a", monkeypatch, gzipped=True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPIRITLEVEL_DATA", raising=False)
    with pytest.raises(SpiritlevelError, match=r"data get mnist.*MNIST/raw.*SPIRITLEVEL_DATA"):
        datasets.load("mnist")
    with pytest.raises(SpiritlevelError) as missing:
        datasets.load("cifar100")
    assert "data get" not in str(missing.value)  # nothing to fetch it from
    monkeypatch.setenv("SPIRITLEVEL_DATA", str(tmp_path / "a"))
    assert len(datasets.load("mnist")) == 12
    (tmp_path / "cache").mkdir()
    (tmp_path / "a").rename(datasets.cache_folder())
    assert len(datasets.open_data("mnist:test")) == 12


def test_damaged_idx_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path, monkeypatch, gzipped=False)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(SpiritlevelError, match="md5"):
        datasets.load("mnist", root=tmp_path)
    monkeypatch.delitem(idx.MD5, "MNIST/raw/train-images-idx3-ubyte")
    assert "only its header" in datasets.load("mnist", root=tmp_path).notes[0]
    for broken, words in ((whole[:-1], "bytes for shape"), (whole[:9], "header"), (b"hello", "does not begin")):
        path.write_bytes(broken)
        with pytest.raises(SpiritlevelError, match=words):
            datasets.load("mnist", root=tmp_path)


def test_a_truncated_gzip_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path, monkeypatch, gzipped=True)
    path = tmp_path / "MNIST/raw/train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])
    monkeypatch.setitem(idx.MD5, f"MNIST/raw/{path.name}", hashlib.md5(path.read_bytes()).hexdigest())
    with pytest.raises(SpiritlevelError, match="decompressed"):
        datasets.load("mnist", root=tmp_path)


@pytest.mark.parametrize(
    "archive", [None, "cifar-100-python.tar.xz", "cifar-100-python.tar.gz", "cifar-100-python.tar"]
)
def test_cifar_is_read_from_a_folder_or_within_an_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archive: str | None
) -> None:
    batches = write_cifar100(tmp_path, monkeypatch, archive)
    before = sorted(tmp_path.rglob("*"))
    for split in ("train", "test"):
        data = datasets.load("cifar100", split, root=tmp_path)
        expected = batches[split]["data"]
        assert isinstance(expected, np.ndarray)
        pixels = torch.from_numpy(expected.reshape(6, 3, 32, 32))
        assert torch.equal((data.x * 255).round().byte(), pixels)
        assert data.y.tolist() == batches[split]["fine_labels"]
        assert data.classes == 100
    assert sorted(tmp_path.rglob("*")) == before  # nothing was unpacked


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "ran"),)

    write_cifar100(tmp_path, monkeypatch, None)
    content = pickle.dumps({"data": Hostile(), "fine_labels": []})
    (tmp_path / "cifar-100-python/train").write_bytes(content)
    with pytest.raises(SpiritlevelError, match="md5"):
        datasets.load("cifar100", root=tmp_path)
    monkeypatch.setitem(cifar.MD5, "cifar-100-python/train", hashlib.md5(content).hexdigest())
    with pytest.raises(SpiritlevelError, match="only arrays"):
        datasets.load("cifar100", root=tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ([1, 2], "no array"),
        ({"data": np.zeros((2, 3), np.uint8), "fine_labels": [0, 1]}, "3,072"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0]}, "fine_labels"),
        ({"data": np.zeros((2, 3072), np.uint8), "fine_labels": [0, 300]}, "fine_labels"),
    ],
)
def test_pickles_of_another_shape_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: object, words: str
) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    content = pickle.dumps(batch)
    (tmp_path / "cifar-100-python/train").write_bytes(content)
    monkeypatch.setitem(cifar.MD5, "cifar-100-python/train", hashlib.md5(content).hexdigest())
    with pytest.raises(SpiritlevelError, match=words):
        datasets.load("cifar100", root=tmp_path)


def test_names_and_splits_are_parsed_and_misspellings_answered() -> None:
    assert datasets.parse("mnist:test") == ("mnist", "test")
    assert datasets.parse("cifar10") == ("cifar10", "train")
    with pytest.raises(UsageError, match="train and test"):
        datasets.parse("mnist:valid")
    with pytest.raises(UsageError, match="did you mean mnist"):
        datasets.load("mnits")
    with pytest.raises(UsageError, match="split"):
        datasets.load("digits", "valid")


def test_npz_keeps_shapes_scales_bytes_and_refuses_pickles(tmp_path: Path) -> None:
    file = tmp_path / "own.npz"
    np.savez(file, x=np.full((3, 2, 2), 255, np.uint8), y=np.array([0, 2, 1], np.int32))
    data = datasets.open_data(str(file))
    assert (data.x.shape, float(data.x.max()), data.classes) == ((3, 2, 2), 1.0, 3)
    assert (data.x.dtype, data.y.dtype) == (torch.float32, torch.int64)
    assert datasets.fit_images(data, 4).x.shape == (3, 1, 4, 4)
    np.savez(file, x=np.ones((3, 2)), y=np.ones(3))
    assert datasets.from_npz(file).y.dtype == torch.float32  # real targets stay real
    np.savez(file, x=np.ones((3, 2), np.int64), y=np.ones(3, np.int64))
    assert datasets.from_npz(file).x.dtype == torch.int64  # tokens stay integers
    for arrays, words in (
        ({"x": np.ones((3, 2))}, "no array 'y'"),
        ({"x": np.ones((3, 2)), "y": np.ones(4)}, "same samples"),
        ({"x": np.array([[1.0, np.nan]]), "y": np.ones(1)}, "not finite"),
        ({"x": np.array([["a"]]), "y": np.ones(1)}, "real numbers"),
        ({"x": np.array([[{}]]), "y": np.ones(1)}, "plain arrays"),
    ):
        np.savez(file, **arrays)
        with pytest.raises(SpiritlevelError, match=words):
            datasets.from_npz(file)
    file.write_bytes(b"no archive")
    with pytest.raises(SpiritlevelError, match="npz"):
        datasets.from_npz(file)
    with pytest.raises(UsageError, match="no file"):
        datasets.from_npz(tmp_path / "absent.npz")


def toy(count: int = 2000, channels: int = 3) -> datasets.LabelledData:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, channels, 4, 4, generator=generator)
    return datasets.LabelledData(x, torch.arange(count) % 10, "toy", "train", 10)


def test_random_labels_change_the_share_they_say() -> None:
    data = toy()
    noisy = datasets.with_random_labels(data, 0.5, seed=1)
    changed = float((noisy.y != data.y).double().mean())
    assert changed == pytest.approx(0.45, abs=0.03)  # one in ten of the redrawn labels stays right by chance
    assert f"1000 of 2000 labels drawn at random (uniform, seed 1), {round(2000 * changed)}" in noisy.notes[-1]
    assert torch.equal(datasets.with_random_labels(data, 0.5, seed=1).y, noisy.y)
    assert not torch.equal(datasets.with_random_labels(data, 0.5, seed=2).y, noisy.y)
    shuffled = datasets.with_random_labels(data, 1.0, seed=1, mode="shuffle")
    assert torch.equal(shuffled.y.bincount(), data.y.bincount())
    assert float((shuffled.y != data.y).double().mean()) == pytest.approx(0.9, abs=0.03)
    assert datasets.with_random_labels(data, 0.0, seed=1) is data
    assert torch.equal(data.y, toy().y)
    for arguments in ({"fraction": 1.5}, {"fraction": 0.5, "mode": "flip"}):
        with pytest.raises(UsageError, match=r"random labels|share"):
            datasets.with_random_labels(data, seed=0, **arguments)


def test_grey_subset_and_fitted_images() -> None:
    data = toy(10)
    grey = datasets.to_grey(data)
    r, g, b = data.x.unbind(1)
    torch.testing.assert_close(grey.x[:, 0], 0.299 * r + 0.587 * g + 0.114 * b, rtol=0, atol=1.01 / 255)
    assert datasets.to_grey(grey) is grey
    with pytest.raises(UsageError, match="2 channels"):
        datasets.to_grey(toy(10, channels=2))
    assert data.subset(slice(2, 4)).y.tolist() == [2, 3]
    assert data.subset([5, 1], "two of ten").notes == ("two of ten",)
    assert torch.equal(data[3][0], data.x[3])
    assert data.tensors == (data.x, data.y)
    larger = datasets.fit_images(data, 8)
    assert larger.x.shape == (10, 3, 8, 8)
    assert larger.notes == ("images resized from 4x4 to 8x8 (bilinear)",)
    torch.testing.assert_close(larger.x.mean(), data.x.mean(), rtol=0.02, atol=0.0)
    assert torch.equal(datasets.fit_images(data, 3).x, data.x)
    flat = datasets.LabelledData(torch.ones(3, 2), torch.zeros(3), "flat", "", 1)
    with pytest.raises(UsageError, match="not images"):
        datasets.fit_images(flat, 8)


def test_every_set_that_is_there_agrees_with_its_declaration() -> None:
    """Read the small split of each real set found through the environment; the built-in digits are always found."""
    found = 0
    for name, spec in datasets.DATASETS.items():
        try:
            data = datasets.load(name, "test")
        except SpiritlevelError as error:
            assert "was not found" in str(error)  # noqa: PT017
            continue
        found += 1
        assert data.x.shape == (spec.samples[1], *spec.shape)
        assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
        assert data.y.unique().tolist() == list(range(spec.classes))
    assert found >= 1


def test_a_damaged_npz_is_refused_in_one_sentence(tmp_path: Path) -> None:
    whole, file = tmp_path / "whole.npz", tmp_path / "damaged.npz"
    np.savez_compressed(whole, x=np.random.default_rng(0).random((50, 3)), y=np.zeros(50, int))
    content = whole.read_bytes()
    damaged = [b"", b"P", content[:40], content[: len(content) // 2], content[:-1]]
    # Within the packed numbers of x, and in how they are packed.
    damaged += [content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :] for at in (78, 102, 126, 300)]
    damaged += [content.replace(content[8:10], b"\x63\x00")]
    for wrong in damaged:
        file.write_bytes(wrong)
        with pytest.raises(SpiritlevelError, match=r"damaged\.npz (is empty|cannot be read)") as caught:
            datasets.from_npz(file)
        assert "\n" not in str(caught.value)
    np.savez(file, x=np.zeros((2, 3)), y=np.zeros((2, 0), int))
    with pytest.raises(UsageError, match=r"y of shape \(2, 0\)"):
        datasets.from_npz(file)
