"""Tensors of every layout, and files of torch that are damaged, truncated or of no checkpoint at all."""

from __future__ import annotations

import collections
import copy
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from spiritlevel.inputs.weights.checkpoints import load_weights, read_tensors
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.inputs.weights.saved_networks import Net, Runs, assert_loads, assert_refused, assert_same, training_state


@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_of_every_layout(tmp_path: Path, zipped: bool) -> None:
    base = torch.arange(24, dtype=torch.float64)
    noted = nn.Parameter(torch.randn(3))
    noted.note = "kept by torch"  # type: ignore[attr-defined]
    tensors = {
        "slice": base[3:9],
        "transposed": base.view(4, 6).t(),
        "strided": base[1::5],
        "expanded": base[:1].expand(4),
        "bfloat16": torch.randn(5).bfloat16(),
        "half": torch.randn(5).half(),
        "bool": torch.tensor([True, False]),
        "int8": torch.tensor([-1, 5], dtype=torch.int8),
        "complex": torch.randn(3, dtype=torch.complex64),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "parameter": nn.Parameter(torch.randn(2, 2)),
        "noted": noted,
        "subclass": torch.randn(3).as_subclass(Labelled),
        "channels last": torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    }
    if zipped:
        tensors["float8"] = torch.randn(4).to(torch.float8_e4m3fn)
        tensors["uint16"] = torch.tensor([1, 65535]).to(torch.uint16)
    path = tmp_path / "t.pt"
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    found = read_tensors(path)
    for name, tensor in tensors.items():
        assert type(found[name]) is Tensor
        assert found[name].dtype == tensor.dtype
        raw = [t.detach().as_subclass(Tensor).resolve_conj().resolve_neg().contiguous() for t in (found[name], tensor)]
        assert raw[0].shape == raw[1].shape
        assert bytes(raw[0].reshape(-1).view(torch.uint8)) == bytes(raw[1].reshape(-1).view(torch.uint8)), name
    assert found["transposed"].stride() == (1, 6)
    found["slice"][0] = 100.0
    assert found["transposed"][3, 0] == 100.0


class Labelled(torch.Tensor):
    pass


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_unreadable_tensors_are_named_only_when_wanted(tmp_path: Path, net: Net) -> None:
    for kind, tensor in (
        ("quantised", torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
        ("sparse", torch.eye(3).to_sparse()),
        ("meta", torch.zeros(3, device="meta")),
    ):
        torch.save({"model": {**net.state_dict(), "w": tensor}}, tmp_path / "w.pt")
        assert_refused(tmp_path / "w.pt", f"w in .* not read \\({kind}")
        torch.save({"model": net.state_dict(), "other": tensor}, tmp_path / "w.pt")
        assert_loads(tmp_path / "w.pt", net)


def test_numpy_arrays_are_weights_too(tmp_path: Path, net: Net) -> None:
    arrays = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    torch.save({"model": arrays}, tmp_path / "w.pt")
    assert_loads(tmp_path / "w.pt", net)


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [
        (0, (7,), (1,)),
        (1, (6,), (1,)),
        (0, (2, 3), (4, 1)),
        (-1, (2,), (1,)),
        (0, (-1,), (1,)),
        (3, (2,), (-1,)),
        (0, (2,), (2**61,)),
        (2**70, (1,), (1,)),
        (0, (2, 2), (1,)),
        (0, (2.0,), (1,)),
        (0, ("2",), (1,)),
        (0, (2**40, 2**40), (0, 0)),
        (0, None, None),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_tensors_outside_their_storage(tmp_path: Path, offset: Any, size: Any, stride: Any, zipped: bool) -> None:
    storage = torch.arange(6.0)._typed_storage()
    forged = Runs(torch._utils._rebuild_tensor_v2, storage, offset, size, stride, False, collections.OrderedDict())
    torch.save({"head.weight": forged}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    assert "head.weight" in assert_refused(tmp_path / "w.pt", "damaged")


def test_a_storage_shorter_than_it_says(tmp_path: Path, net: Net) -> None:
    torch.save(net.state_dict(), tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as source, zipfile.ZipFile(tmp_path / "short.pt", "w") as target:
        for name in source.namelist():
            target.writestr(name, source.read(name)[: 3 if "/data/" in name else None])
    assert_refused(tmp_path / "short.pt", "needs .* bytes where the file has 3")
    with zipfile.ZipFile(tmp_path / "w.pt") as source, zipfile.ZipFile(tmp_path / "none.pt", "w") as target:
        for name in source.namelist():
            if "/data/" not in name:
                target.writestr(name, source.read(name))
    assert_refused(tmp_path / "none.pt", "no record w/data/0")
    with zipfile.ZipFile(tmp_path / "big.pt", "w") as target, zipfile.ZipFile(tmp_path / "w.pt") as source:
        for name in source.namelist():
            target.writestr(name, b"big" if name.endswith("byteorder") else source.read(name))
    assert_refused(tmp_path / "big.pt", "big-endian")


@pytest.mark.parametrize("zipped", [True, False])
def test_truncated_and_altered_files(tmp_path: Path, net: Net, zipped: bool) -> None:
    torch.save({"model": net.state_dict()}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped)
    whole = (tmp_path / "w.pt").read_bytes()
    cut = tmp_path / "cut.pt"
    for length in (1, 3, 30, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:length])
        assert_refused(cut, "cut.pt")
    if zipped:
        place = whole.index(net.head.weight.detach().numpy().tobytes())
        cut.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert_refused(cut, "damaged .*CRC")


def test_altered_pickles_never_do_worse_than_refuse(tmp_path: Path, net: Net) -> None:
    torch.save({**training_state(net), "model": net.state_dict()}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt") as source:
        records = {name: source.read(name) for name in source.namelist()}
    generator = np.random.default_rng(0)
    for _ in range(60):
        program = bytearray(records["w/data.pkl"])
        for place in generator.integers(0, len(program), 4):
            program[place] = generator.integers(0, 256)
        with zipfile.ZipFile(tmp_path / "altered.pt", "w") as target:
            for name, content in records.items():
                target.writestr(name, bytes(program) if name == "w/data.pkl" else content)
        model = Net(seed=1)
        before = copy.deepcopy(model.state_dict())
        try:
            load_weights(model, tmp_path / "altered.pt")
        except SpiritlevelError:
            assert_same(model, before)


def test_files_written_without_checksums(tmp_path: Path, net: Net) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(net.state_dict(), tmp_path / "w.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    assert_loads(tmp_path / "w.pt", net)


def test_files_that_are_no_checkpoints(tmp_path: Path, net: Net) -> None:
    def file(name: str, content: bytes) -> Path:
        (tmp_path / name).write_bytes(content)
        return tmp_path / name

    assert_refused(file("empty.pt", b""), "empty.pt is empty")
    assert_refused(file("text.pt", b"<html>not found</html>"), "not a weights file")
    assert_refused(file("lfs.bin", b"version https://git-lfs.github.com/spec/v1\noid"), "git lfs pull")
    assert_refused(file("old.tar", bytes(257) + b"ustar" + bytes(300)), "tar archive")
    assert_refused(file("plain.pkl", pickle.dumps({"a": 1})), "not one of torch.save")
    np.savez(tmp_path / "arrays.npz", a=np.ones(3))
    assert_refused(tmp_path / "arrays.npz", "not one of torch.save")
    with zipfile.ZipFile(tmp_path / "script.pt", "w") as archive:
        archive.writestr("script/data.pkl", b"N.")
        archive.writestr("script/constants.pkl", b"N.")
    assert_refused(tmp_path / "script.pt", "TorchScript")
    for content in ({}, [1, 2], 3, None, {"epoch": 3}, torch.ones(3)):
        torch.save(content, tmp_path / "nothing.pt")
        assert_refused(tmp_path / "nothing.pt", "holds no weights")
    torch.save(net.state_dict(), tmp_path / "epoch_10.pt")
    assert_refused(tmp_path / "epoch10.pt", "no file or folder .*; did you mean epoch_10.pt", error=UsageError)
    assert_refused(tmp_path / "no" / "where.pt", "no file or folder", error=UsageError)
    with pytest.raises(UsageError, match=r"torch.nn.Module"):
        load_weights(net.state_dict(), tmp_path / "epoch_10.pt")  # type: ignore[arg-type]
