"""Weights are read from every common form, nothing in a file runs, and a file that does not fit changes nothing."""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import io
import json
import os
import pathlib
import pickle
import sys
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from spiritlevel.inputs.weights.checkpoints import load_weights, read_tensors
from spiritlevel.inputs.weights.safe_pickle import safe_unpickle
from spiritlevel.values.errors import SpiritlevelError, UsageError


class Net(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.body = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU())
            self.head = nn.Linear(3, 2)
        self.register_buffer("scale", torch.tensor([2.0 + seed]))
        self.register_buffer("constant", torch.arange(3.0), persistent=False)


@dataclasses.dataclass
class Settings:
    width: int = 3
    path: pathlib.Path = pathlib.Path("runs")


class Runs:
    """Pickles as a call of any function on any arguments."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.call


def assert_same(model: nn.Module, wanted: dict[str, Tensor]) -> None:
    found = model.state_dict()
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name


def assert_loads(path: Path, wanted: nn.Module, key: str | None = None, **found: Any) -> None:
    model = Net(seed=1)
    loaded = load_weights(model, path, key)
    assert_same(model, wanted.state_dict())
    for name, value in found.items():
        assert getattr(loaded, name) == value


def assert_refused(
    path: Path, words: str, key: str | None = None, model: nn.Module | None = None, error: Any = SpiritlevelError
) -> str:
    model = Net(seed=1) if model is None else model
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=words) as caught:
        load_weights(model, path, key)
    assert_same(model, before)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def training_state(net: nn.Module) -> dict[str, Any]:
    """The rest of what training loops save: optimiser, NumPy numbers, options, paths, objects."""
    optimizer = torch.optim.Adam(net.parameters())
    torch.stack([p.sum() for p in net.parameters()]).sum().backward()
    optimizer.step()
    return {
        "optimizer": optimizer.state_dict(),
        "epoch": np.int64(3),
        "best": np.float64(0.5),
        "history": np.arange(6.0).reshape(2, 3),
        "names": np.array(["a", None], dtype=object),
        "rng": np.random.RandomState(0).get_state(),
        "args": argparse.Namespace(lr=0.1, path=pathlib.Path("/data"), shape=torch.Size([2, 3])),
        "out": pathlib.Path("/runs"),
        "settings": Settings(),
        "counts": collections.Counter("abca"),
        "meters": collections.defaultdict(list, {"loss": [1.0]}),
        "dtype": torch.float16,
        "device": torch.device("cpu"),
        "loss": nn.CrossEntropyLoss(),
        "seen": {1, 2},
        "mask": frozenset({"x"}),
    }


@pytest.fixture
def net() -> Net:
    return Net()


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".ckpt", ".bin", ""])
def test_a_plain_state_dict(tmp_path: Path, net: Net, suffix: str) -> None:
    path = tmp_path / f"weights{suffix}"
    torch.save(net.state_dict(), path)
    assert_loads(path, net, form="torch.save archive", prefixes=(), tensors=10, notes=())
    assert read_tensors(path).keys() == net.state_dict().keys()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("entry", ["state_dict", "model_state_dict", "model", "net"])
def test_a_training_checkpoint(tmp_path: Path, net: Net, entry: str, zipped: bool, protocol: int) -> None:
    weights = copy.deepcopy(net.state_dict())
    content = {**training_state(net), entry: weights}
    path = tmp_path / "last.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped, pickle_protocol=protocol)
    model = Net(seed=1)
    assert load_weights(model, path).key == entry
    assert_same(model, weights)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.filterwarnings("ignore:Couldn't retrieve source code")
def test_a_whole_module_whose_class_is_gone(
    tmp_path: Path, net: Net, zipped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    vanishing = types.ModuleType("vanishing")
    kind = type("Vanished", (Net,), {"__module__": "vanishing"})
    vanishing.Vanished = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vanishing", vanishing)
    torch.save(kind(), tmp_path / "whole.pt", _use_new_zipfile_serialization=zipped)
    torch.save({"model": nn.DataParallel(kind()), "ema": kind(seed=5)}, tmp_path / "entry.pt")
    monkeypatch.delitem(sys.modules, "vanishing")
    model = Net(seed=1)
    loaded = load_weights(model, tmp_path / "whole.pt")
    assert loaded.form.startswith("whole module in a torch.save")
    assert_same(model, net.state_dict())
    assert "vanishing" not in sys.modules
    assert_loads(tmp_path / "entry.pt", net, prefixes=("module.",))
    assert_loads(tmp_path / "entry.pt", Net(seed=5), "ema")
    assert "constant" not in read_tensors(tmp_path / "whole.pt")


def test_a_lightning_checkpoint(tmp_path: Path, net: Net) -> None:
    torch.save(
        {
            "epoch": 4,
            "global_step": 100,
            "pytorch-lightning_version": "2.2.0",
            "state_dict": collections.OrderedDict((f"model.{name}", t) for name, t in net.state_dict().items()),
            "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 5}}}},
            "callbacks": {
                "ModelCheckpoint{'monitor': None}": {"best": torch.tensor(0.5), "dirpath": pathlib.Path("x")}
            },
            "optimizer_states": [training_state(net)["optimizer"]],
            "hyper_parameters": argparse.Namespace(width=3, settings=Settings()),
        },
        tmp_path / "epoch=4.ckpt",
    )
    net_now = Net(seed=1)
    loaded = load_weights(net_now, tmp_path / "epoch=4.ckpt")
    assert (loaded.key, loaded.prefixes) == ("state_dict", ("model.",))
    assert_same(net_now, read_plain(tmp_path / "epoch=4.ckpt"))


def read_plain(path: Path) -> dict[str, Tensor]:
    """The model's entries as torch itself reads them, prefix off: the independent reader."""
    content = torch.load(path, weights_only=False)["state_dict"]
    return {name.removeprefix("model."): tensor for name, tensor in content.items()}


@pytest.mark.parametrize(
    "prefixes",
    [
        ("module.",),
        ("_orig_mod.",),
        ("module.", "_orig_mod."),
        ("_orig_mod.", "module."),
        ("net.", "model.", "module."),
    ],
)
def test_prefixes_come_off_repeatedly(tmp_path: Path, net: Net, prefixes: tuple[str, ...]) -> None:
    torch.save({"".join(prefixes) + name: t for name, t in net.state_dict().items()}, tmp_path / "w.pt")
    assert_loads(tmp_path / "w.pt", net, prefixes=prefixes)
    wrapped: Any = torch.compile(nn.DataParallel(Net(seed=1)).cpu())
    assert load_weights(wrapped, tmp_path / "w.pt").prefixes == prefixes
    assert_same(wrapped._orig_mod.module, net.state_dict())


def test_prefixes_stay_where_the_model_has_them_or_some_name_does_not(tmp_path: Path, net: Net) -> None:
    holder = nn.Module()
    holder.model = copy.deepcopy(net)
    torch.save(holder.state_dict(), tmp_path / "w.pt")
    target = nn.Module()
    target.model = Net(seed=1)
    assert load_weights(target, tmp_path / "w.pt").prefixes == ()
    assert_same(target, holder.state_dict())
    torch.save({**holder.state_dict(), "criterion.weight": torch.ones(2)}, tmp_path / "more.pt")
    assert_refused(tmp_path / "more.pt", r"missing .* unexpected")


def test_a_compiled_part_keeps_its_place(tmp_path: Path, net: Net) -> None:
    part = copy.deepcopy(net)
    part.body = torch.compile(part.body)  # type: ignore[assignment]
    torch.save(part.state_dict(), tmp_path / "w.pt")
    assert any("._orig_mod." in name for name in part.state_dict())
    assert_loads(tmp_path / "w.pt", net, prefixes=("_orig_mod.",))
    torch.save(net.state_dict(), tmp_path / "plain.pt")
    compiled = Net(seed=1)
    compiled.body = torch.compile(compiled.body)  # type: ignore[assignment]
    load_weights(compiled, tmp_path / "plain.pt")
    assert_same(compiled, part.state_dict())


def test_averaged_weights_only_by_key(tmp_path: Path, net: Net) -> None:
    averaged = Net(seed=7)
    torch.save({"state_dict": net.state_dict(), "ema": {"state_dict": averaged.state_dict()}}, tmp_path / "w.pt")
    assert_loads(tmp_path / "w.pt", net, notes=("the file also holds averaged weights (key='ema')",))
    for key in ("ema", "ema.state_dict"):
        model = Net(seed=1)
        assert load_weights(model, tmp_path / "w.pt", key).key == "ema.state_dict"
        assert_same(model, averaged.state_dict())
    torch.save({"epoch": 3, "ema": averaged.state_dict()}, tmp_path / "only.pt")
    assert_refused(tmp_path / "only.pt", "give one of ema as key")
    swa = torch.optim.swa_utils.AveragedModel(averaged)
    torch.save({"model": net.state_dict(), "model_ema": swa.state_dict()}, tmp_path / "swa.pt")
    assert_loads(tmp_path / "swa.pt", averaged, "model_ema")


def test_entries_inside_entries_lists_and_modules(tmp_path: Path, net: Net) -> None:
    torch.save({"model": {"net": {"state_dict": net.state_dict()}}, "runs": [Net(5), {"w": net}]}, tmp_path / "w.pt")
    model = Net(seed=1)
    assert load_weights(model, tmp_path / "w.pt").key == "model.net.state_dict"
    assert_same(model, net.state_dict())
    assert_loads(tmp_path / "w.pt", Net(5), "runs.0")
    assert_loads(tmp_path / "w.pt", net, "runs.1.w")
    assert read_tensors(tmp_path / "w.pt", "runs.0.head").keys() == {"weight", "bias"}


def test_a_key_that_is_not_there(tmp_path: Path, net: Net) -> None:
    torch.save({"generator": net.state_dict(), "epoch": 1, "a.b": net.state_dict()}, tmp_path / "w.pt")
    assert_refused(tmp_path / "w.pt", "no entry 'generatr'; did you mean generator", "generatr", error=UsageError)
    assert_refused(tmp_path / "w.pt", "entry 'epoch' of .* holds no weights", "epoch", error=UsageError)
    assert_refused(tmp_path / "w.pt", "give one of generator, a.b as key")
    for key in ("generator", "a.b"):
        model = Net(seed=1)
        load_weights(model, tmp_path / "w.pt", key)
        assert_same(model, net.state_dict())


def test_safetensors(tmp_path: Path, net: Net) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(net.state_dict(), path)
    assert_loads(path, net, form="safetensors file")
    assert_refused(path, "has no entries", "model", error=UsageError)
    path.rename(tmp_path / "w.bin")
    assert_loads(tmp_path / "w.bin", net)
    (tmp_path / "cut.safetensors").write_bytes((tmp_path / "w.bin").read_bytes()[:-5])
    assert_refused(tmp_path / "cut.safetensors", "not a readable safetensors file")
    (tmp_path / "other.safetensors").write_text("hello, these are not weights")
    assert_refused(tmp_path / "other.safetensors", "not a readable safetensors file")


def write_shards(folder: Path, weights: dict[str, Tensor], stem: str, suffix: str, save: Callable[..., None]) -> None:
    names = list(weights)
    index: dict[str, str] = {}
    for number, part in enumerate((names[:4], names[4:]), 1):
        shard = f"{stem}-{number:05d}-of-00002.{suffix}"
        save({name: weights[name] for name in part}, folder / shard)
        index |= dict.fromkeys(part, shard)
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


@pytest.mark.parametrize(
    ("stem", "suffix", "save"),
    [("model", "safetensors", safetensors.torch.save_file), ("pytorch_model", "bin", torch.save)],
)
def test_hugging_face_folders(tmp_path: Path, net: Net, stem: str, suffix: str, save: Callable[..., None]) -> None:
    assert_refused(tmp_path, "has none of model.safetensors")
    torch.save(argparse.Namespace(lr=1), tmp_path / "training_args.bin")
    write_shards(tmp_path, net.state_dict(), stem, suffix, save)
    assert_loads(tmp_path, net, form=f"Hugging Face folder ({stem}.{suffix}.index.json, 2 shards)")
    assert_refused(tmp_path, "no entries", "model", error=UsageError)
    index = tmp_path / f"{stem}.{suffix}.index.json"
    whole = index.read_text()
    index.write_text(whole.replace(f"{stem}-00002", f"../{stem}-00002"))
    assert_refused(tmp_path, "not a file in its folder")
    index.write_text(whole.replace("00001-of", "00003-of"))
    assert_refused(tmp_path, "lacks the shard")
    index.write_text(whole.replace("00001-of", "00002-of"))
    assert_refused(tmp_path, "which the index places there")
    index.write_text(whole[:30])
    assert_refused(tmp_path, "not a readable index")
    index.write_text("{}")
    assert_refused(tmp_path, "no weight_map")
    save(net.state_dict(), tmp_path / f"{stem}.{suffix}")
    assert_loads(tmp_path, net, form=f"Hugging Face folder ({stem}.{suffix})")


def dangerous(marker: Path) -> dict[str, object]:
    """Objects whose pickles run a command when read with an ordinary unpickler."""
    command = f"touch {marker}"
    text = f"open({str(marker)!r}, 'w')"
    return {
        "os.system": Runs(os.system, command),
        "eval": Runs(eval, text),
        "exec": Runs(exec, text),
        "chained getattr": Runs(getattr, Runs(__import__, "os"), "system"),
        "path": Runs(pathlib.Path.touch, marker),
        "load_from_bytes": Runs(torch.storage._load_from_bytes, pickle.dumps(Runs(os.system, command))),
        "object array": np.array([Runs(os.system, command), None], dtype=object),
        "rebuild": Runs(torch._utils._rebuild_parameter, Runs(os.system, command), True, {}),
        "from type": Runs(torch._tensor._rebuild_from_type_v2, os.system, torch.Tensor, (command,), {}),
        "ordered": Runs(collections.OrderedDict, [["a", Runs(os.system, command)]]),
    }


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", list(dangerous(Path("x"))))
def test_nothing_in_a_file_is_executed(tmp_path: Path, net: Net, kind: str, zipped: bool) -> None:
    marker = tmp_path / "executed"
    danger = dangerous(marker)[kind]
    path = tmp_path / "w.pt"
    save = {"_use_new_zipfile_serialization": zipped}
    torch.save({"model": net.state_dict(), "optimizer": {"state": {0: danger}}}, path, **save)
    assert_loads(path, net)
    torch.save({"model": {**net.state_dict(), "extra": danger}}, path, **save)
    if kind == "object array":
        assert_refused(path, "extra in .* is an array that is not read")
    else:
        assert_loads(path, net)
    torch.save(danger, path, **save)
    assert_refused(path, "w.pt")
    path.write_bytes(pickle.dumps(danger))
    assert_refused(path, "not one of torch.save")
    with pytest.raises(SpiritlevelError):
        safe_unpickle(path)
    assert not marker.exists()
    # The file does run a command where it is allowed to, so that its absence above means something.
    if kind == "os.system":
        with path.open("rb") as stream:
            pickle.load(stream)
        assert marker.exists()


def test_stand_ins_cannot_be_altered_from_a_file(tmp_path: Path, net: Net) -> None:
    """BUILD writes attributes into whatever lies on the stack, shared functions and classes included."""
    rebuild, build = b"ctorch._utils\n_rebuild_tensor_v2\n", b"(dV__defaults__\nI1\nsV__doc__\nI1\nsb."
    for target in (rebuild, b"cnumpy\ndtype\n", b"ccollections\nOrderedDict\n", b"ctorch\nfloat32\n", b"cos\nsystem\n"):
        path = tmp_path / "w.pt"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("w/data.pkl", target + build)
        assert_refused(path, "w.pt")
    torch.save(net.state_dict(), tmp_path / "good.pt")
    assert_loads(tmp_path / "good.pt", net)


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


def test_names_and_shapes_that_do_not_fit(tmp_path: Path, net: Net) -> None:
    weights = net.state_dict()
    for name in ("body.0.weight", "body.0.bias", "body.1.weight", "body.1.bias"):
        weights[f"trunk.{name}"] = weights.pop(name)
    weights["head.weight"] = torch.ones(2, 4)
    torch.save({"net": weights, "state_dict_ema": net.state_dict()}, tmp_path / "w.pt")
    message = assert_refused(tmp_path / "w.pt", "does not fit the Net")
    assert "4 names missing (body.0.weight; body.0.bias; body.1.weight; and 1 more)" in message
    assert "4 names unexpected (trunk.body.0.weight; trunk.body.0.bias; trunk.body.1.weight; and 1 more)" in message
    assert "1 name of another shape (head.weight: (2, 4) in the file, (2, 3) in the model)" in message
    assert "averaged weights (key='state_dict_ema')" in message
    assert "entry 'net'" in message
    torch.save({"loss": torch.ones(()), "generator": net.state_dict()}, tmp_path / "g.pt")
    assert_refused(tmp_path / "g.pt", r"1 name unexpected \(loss\).*other entries with tensors are generator")
    torch.save({**net.state_dict(), "head.weight": torch.ones(2, 3, dtype=torch.int8)}, tmp_path / "q.pt")
    assert_refused(tmp_path / "q.pt", r"another kind of number \(head.weight: int8 in the file, float32")
    torch.save({**net.state_dict(), "head.weight": torch.ones(2, 3, dtype=torch.complex64)}, tmp_path / "c.pt")
    assert_refused(tmp_path / "c.pt", "another kind of number")


def test_what_is_tolerated(tmp_path: Path, net: Net) -> None:
    weights = net.state_dict()
    del weights["body.1.num_batches_tracked"]
    weights["constant"] = torch.arange(3.0)
    weights["head.weight"] = torch.full((2, 3), float("nan"))
    torch.save(weights, tmp_path / "old.pt")
    model = Net(seed=1)
    assert load_weights(model, tmp_path / "old.pt").tensors == 9
    assert model.head.weight.isnan().all()
    weights["constant"] = torch.ones(3)
    torch.save(weights, tmp_path / "other.pt")
    assert_refused(tmp_path / "other.pt", r"1 name unexpected \(constant\)")
    torch.save(
        {name: t.double() if t.is_floating_point() else t for name, t in net.state_dict().items()}, tmp_path / "d.pt"
    )
    assert_loads(tmp_path / "d.pt", net)
    halves = Net(seed=1).half()
    load_weights(halves, tmp_path / "d.pt")
    assert_same(halves, net.half().state_dict())


def tied(seed: int) -> Any:
    torch.manual_seed(seed)
    model: Any = nn.Module()
    model.embedding = nn.Embedding(4, 3)
    model.head = nn.Linear(3, 4, bias=False)
    model.head.weight = model.embedding.weight
    return model


def test_tied_weights(tmp_path: Path) -> None:
    source, weights = tied(0), tied(0).state_dict()
    for present in (["embedding.weight"], ["head.weight"], ["embedding.weight", "head.weight"]):
        torch.save({name: weights[name] for name in present}, tmp_path / "w.pt")
        model = tied(1)
        load_weights(model, tmp_path / "w.pt")
        assert_same(model, source.state_dict())
        assert model.head.weight is model.embedding.weight
    torch.save({"embedding.weight": torch.zeros(4, 3), "head.weight": torch.ones(4, 3)}, tmp_path / "torn.pt")
    assert_refused(tmp_path / "torn.pt", "shared in the model but different in the file", model=tied(1))


def test_models_that_cannot_be_written(tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    for model in (nn.LazyLinear(2), nn.Linear(3, 2, device="meta")):
        with pytest.raises(UsageError, match="has no data yet"):
            load_weights(model, tmp_path / "w.pt")
    model = nn.Linear(3, 2)
    model.bias = nn.Parameter(torch.zeros(1).expand(2))
    with pytest.raises(UsageError, match="cannot be written"):
        load_weights(model, tmp_path / "w.pt")


def test_loading_keeps_gradients_hooks_and_flags(tmp_path: Path, net: Net) -> None:
    torch.save(net.state_dict(), tmp_path / "w.pt")
    model = Net(seed=1).eval()
    model.head.weight.requires_grad_(False)
    model.head.bias.grad = torch.ones(2)
    identities = [id(p) for p in model.parameters()]
    load_weights(model, tmp_path / "w.pt")
    assert not model.training
    assert not model.head.weight.requires_grad
    assert torch.equal(model.head.bias.grad, torch.ones(2))
    assert identities == [id(p) for p in model.parameters()]
    assert all(p.grad_fn is None for p in model.parameters())


PLAIN = {
    "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big": np.arange(3, dtype=">i4"),
    "axes": np.arange(24).reshape(2, 3, 4).transpose(1, 2, 0),
    "text": np.array(["a", "bcd"]),
    "flags": np.array([True, False]),
    "none": np.zeros((0, 3)),
    "labels": [3, 1, 2],
    "name": b"batch 1",
    "tuple": (1, 2.5, "x", None, True, 2 + 1j),
    "set": {1, 2},
    "number": np.float32(1.5),
    "nested": {"a": [{"b": ()}]},
    "buffer": bytearray(b"xyz"),
}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_pickles(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps(PLAIN, protocol))
    found = safe_unpickle(path)
    assert found.keys() == PLAIN.keys()
    for name, value in PLAIN.items():
        assert type(found[name]) is type(value)
        np.testing.assert_array_equal(found[name], value)
    assert found["big"].dtype == np.dtype(">i4")
    found["data"][0, 0] = 9
    shared: list[Any] = [1]
    shared.append(shared)
    again = safe_unpickle(io.BytesIO(pickle.dumps(shared, protocol)))
    assert again[1] is again


def test_python_2_pickles_as_cifar_has_them() -> None:
    # What Python 2 wrote for {"labels": [6], "data": numpy.array([[59, 255]], dtype=uint8)}, protocol 2.
    content = (
        b"\x80\x02}q\x01(U\x06labels]K\x06aU\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n"
        b"K\x00\x85U\x01b\x87R(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\x3b\xfftbu."
    )
    for encoding, key in (("latin1", "data"), ("bytes", b"data")):
        found = safe_unpickle(io.BytesIO(content), encoding=encoding)
        np.testing.assert_array_equal(found[key], np.array([[59, 255]], dtype=np.uint8))
        assert found[key].dtype == np.uint8


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pathlib.PurePosixPath("x"), "asks for pathlib"),
        (Settings(), "asks for .*Settings"),
        (np.array([None]), "'O8'"),
        (np.zeros(2, dtype=[("a", "f4")]), "'V4'"),
        (np.ndarray, "a type where data was expected"),
        (np.dtype("f4"), "a type where data was expected"),
        (Runs(bytearray, 10**15), "encodes text"),
        (Runs(os.getcwd), "asks for posix.getcwd"),
    ],
)
def test_plain_pickles_refuse_objects(value: object, words: str) -> None:
    with pytest.raises(SpiritlevelError, match=words):
        safe_unpickle(io.BytesIO(pickle.dumps(value, 4)))


def test_damaged_plain_pickles(tmp_path: Path) -> None:
    whole = pickle.dumps(PLAIN, 2)
    for length in range(0, len(whole), 37):
        with pytest.raises(SpiritlevelError, match="not a readable pickle"):
            safe_unpickle(io.BytesIO(whole[:length]))
    with pytest.raises(SpiritlevelError, match="cannot be read"):
        safe_unpickle(tmp_path / "absent")
    array = pickle.dumps(np.arange(4, dtype=np.uint8), 2)
    with pytest.raises(SpiritlevelError, match=r"4 bytes for a NumPy array of shape \(9,\)"):
        safe_unpickle(io.BytesIO(array.replace(b"K\x04\x85", b"K\x09\x85")))
