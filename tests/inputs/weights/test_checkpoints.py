"""Weights are read from every common form, and nothing in a file runs."""

from __future__ import annotations

import argparse
import collections
import copy
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
from tests.inputs.weights.saved_networks import (
    Net,
    Runs,
    Settings,
    assert_loads,
    assert_refused,
    assert_same,
    training_state,
)


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
