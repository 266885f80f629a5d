"""Honest weight files of every form, and altered ones: bytes changed, cut, doubled, spliced, and pickles rewritten."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch

from tests.inputs.weights.hostile_reader import Net

# Instructions and lengths that matter to a reader, put where others were.
TELLING = (
    *(bytes([code]) for code in b"()t.RbuseaQ}]\x81\x85\x86\x8f\x90\x91\x94\x95\x96\x8d\x8b\x82\x92\x93"),
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"\x00\x00\x00\x80",
    b"\xff" * 8,
    bytes(8),
    b"r\xff\xff\xff\xff",
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"PK\x05\x06",
)


class Runs:
    """Pickles as a command, which must never run."""

    def __init__(self, marker: Path) -> None:
        self.command = f"touch {marker}"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (self.command,)


def write_honest(place: Path, marker: Path) -> list[Path]:
    """Write one network in every form that is read, with a command hidden in those that can hold one."""
    net = Net()
    weights = net.state_dict()
    optimizer = torch.optim.Adam(net.parameters())
    training = {
        "optimizer": optimizer.state_dict(),
        "args": argparse.Namespace(lr=0.1),
        "history": np.arange(6.0),
        "hidden": Runs(marker),
        ("a", 1): {1, 2},
    }
    lightning = {"state_dict": weights, "epoch": 3, "hyper_parameters": argparse.Namespace(x=1), **training}
    torch.save(weights, place / "archive.pt")
    torch.save({"model": weights, **training}, place / "training.pt", pickle_protocol=4)
    torch.save({"model": weights, **training}, place / "stream.pt", _use_new_zipfile_serialization=False)
    torch.save({"model": net}, place / "module.pt")
    torch.save(lightning, place / "lightning.ckpt")
    safetensors.torch.save_file(weights, place / "file.safetensors")
    for form, suffix, save in (
        ("model", "safetensors", safetensors.torch.save_file),
        ("pytorch_model", "bin", torch.save),
    ):
        folder = place / f"folder of {suffix}"
        folder.mkdir()
        names, index = list(weights), {}
        for number, part in enumerate((names[:3], names[3:]), 1):
            shard = f"{form}-{number:05d}-of-00002.{suffix}"
            save({name: weights[name] for name in part}, folder / shard)
            index |= dict.fromkeys(part, shard)
        (folder / f"{form}.{suffix}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return sorted(place.iterdir())


def altered(content: bytes, generator: np.random.Generator) -> bytes:
    """Return bytes with one to four changes of kinds drawn at random."""
    found = bytearray(content)
    for _ in range(generator.integers(1, 5)):
        at, other = (int(place) for place in generator.integers(0, max(len(found), 1), 2))
        length = int(generator.integers(1, 40))
        kind = int(generator.integers(0, 7))
        if kind == 0 and found:
            found[at] = int(generator.integers(0, 256))
        elif kind == 1 and found:
            found[at] ^= 1 << int(generator.integers(0, 8))
        elif kind == 2:
            word = TELLING[int(generator.integers(0, len(TELLING)))]
            found[at : at + len(word)] = word
        elif kind == 3:
            found[at:at] = TELLING[int(generator.integers(0, len(TELLING)))]
        elif kind == 4:
            del found[at : at + length]
        elif kind == 5:
            found[at:at] = found[other : other + length] * int(generator.integers(1, 50))
        elif generator.random() < 0.2:
            del found[at:]
    return bytes(found)


def _alter_record(path: Path, generator: np.random.Generator) -> None:
    """Alter the pickle inside an archive and write the archive anew, so that its checksums are right."""
    with zipfile.ZipFile(path) as source:
        records = {name: source.read(name) for name in source.namelist()}
    pickles = [name for name in records if name.endswith("data.pkl")]
    others = [name for name in records if name not in pickles]
    chosen = pickles[0] if generator.random() < 0.85 else others[int(generator.integers(0, len(others)))]
    records[chosen] = altered(records[chosen], generator)
    with zipfile.ZipFile(path, "w") as target:
        for name, content in records.items():
            target.writestr(name, content)


def write_altered(place: Path, honest: list[Path], count: int, seed: int) -> None:
    """Write altered copies of honest files, the same ones for the same seed."""
    generator = np.random.default_rng(seed)
    for number in range(count):
        source = honest[number % len(honest)]
        copy = place / f"{number:05d} {source.name}"
        if source.is_dir():
            shutil.copytree(source, copy)
            files = sorted(copy.iterdir())
            copy = files[int(generator.integers(0, len(files)))]
        else:
            shutil.copy(source, copy)
        if zipfile.is_zipfile(copy) and generator.random() < 0.7:
            _alter_record(copy, generator)
        else:
            copy.write_bytes(altered(copy.read_bytes(), generator))
