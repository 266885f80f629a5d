"""Hostile and damaged weight files: each loads or is refused in a sentence, within bounds, and nothing in it runs."""

from __future__ import annotations

import copyreg
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from spiritlevel.inputs.weights import bounded_pickle
from spiritlevel.inputs.weights.checkpoints import load_weights, read_tensors
from spiritlevel.inputs.weights.safe_pickle import safe_unpickle
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.inputs.weights.hostile_files import write_large, write_small
from tests.inputs.weights.hostile_reader import Net
from tests.inputs.weights.mutations import write_altered, write_honest
from tests.inputs.weights.pickle_assembler import (
    entries,
    get,
    number,
    put,
    scalar,
    streamed,
    text,
    weights,
    whole_numbers,
    zipped,
)

# What any file may claim, the multiple of its own size, and as much again for what the charges only estimate.
ANY_FILE, TIMES_ITS_SIZE = 100 << 20, 20


def read_all(folder: Path, write: Callable[[Path], None], limit_s: int) -> dict[str, dict[str, Any]]:
    """Read files in a process of its own and return what became of each, or fail with the name of the one that hung."""
    for part in ("cases", "warm"):
        (folder / part).mkdir()
    write(folder / "cases")
    torch.save(Net().state_dict(), folder / "warm" / "a.pt")
    torch.save(Net().state_dict(), folder / "warm" / "b.pt", _use_new_zipfile_serialization=False)
    safetensors.torch.save_file(Net().state_dict(), folder / "warm" / "c.safetensors")
    program = [sys.executable, str(Path(__file__).parent / "hostile_reader.py"), str(folder)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        ran = subprocess.run(program, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired as error:
        began = json.loads(bytes(error.stdout or b"{}").decode().splitlines()[-1])
        pytest.fail(f"no end to reading {began}")
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    assert ran.returncode == 0, f"{ran.returncode} at {lines[-1:]}: {ran.stderr[-2000:]}"
    found = {line["name"]: line for line in lines if "outcome" in line}
    assert found.keys() == {path.name for path in (folder / "cases").iterdir()}
    return found


def assert_bounded(folder: Path, found: dict[str, dict[str, Any]]) -> None:
    """Nothing ran, nothing was half loaded, memory stayed within the file's bounds, refusals are one sentence."""
    wrong = []
    for name, case in found.items():
        path = folder / "cases" / name
        size = sum(p.stat().st_size for p in path.iterdir() if p.is_file()) if path.is_dir() else 0
        size += path.stat().st_size if path.is_file() else 0
        sentence = case["words"].isprintable() and 0 < len(case["words"]) < 1500 and "MemoryError" not in case["words"]
        good = case["outcome"] == "loaded" or (case["outcome"] == "refused" and sentence)
        if not good or case["events"] or case["bytes"] > ANY_FILE + TIMES_ITS_SIZE * size:
            wrong.append({**case, "size": size})
    assert wrong == []


needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from /proc")


@needs_proc
def test_attacks(tmp_path: Path) -> None:
    found = read_all(tmp_path, write_small, limit_s=240)
    assert_bounded(tmp_path, found)
    assert {case["outcome"] for case in found.values()} == {"refused"}
    assert len(found) > 120
    assert "regular file" in found["pipe.pt"]["words"]
    assert "times its own size" in found["negated view.pt"]["words"]
    assert "two records of one name" in found["record twice.zip.pt"]["words"]


@needs_proc
@pytest.mark.slow
def test_large_attacks(tmp_path: Path) -> None:
    found = read_all(tmp_path, write_large, limit_s=600)
    assert_bounded(tmp_path, found)
    assert {case["outcome"] for case in found.values()} == {"refused"}


def assert_mutations(folder: Path, count: int, seed: int) -> None:
    marker = folder / "executed"
    honest = folder / "honest"
    honest.mkdir()
    forms = write_honest(honest, marker)
    for form in forms:
        load_weights(Net(), form)
    found = read_all(folder, lambda place: write_altered(place, forms, count, seed), limit_s=600)
    assert_bounded(folder, found)
    assert not marker.exists()
    # Both happen, or the changes were too mild or too harsh to try anything.
    outcomes = [case["outcome"] for case in found.values()]
    assert min(outcomes.count("loaded"), outcomes.count("refused")) > count // 20


@needs_proc
def test_mutations(tmp_path: Path) -> None:
    assert_mutations(tmp_path, 400, seed=20240229)


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_mutations(tmp_path: Path, seed: int) -> None:
    assert_mutations(tmp_path, 1500, seed)


def test_keys_that_are_no_text_leave_the_weights_readable(tmp_path: Path) -> None:
    odd = entries((whole_numbers(1, 2), b"N"), (number(1 << 70), b"N"), (text("w"), scalar()))
    for content in (zipped(odd + b"."), streamed(odd + b".")):
        (tmp_path / "w.pt").write_bytes(content)
        assert list(read_tensors(tmp_path / "w.pt")) == ["w"]
    with pytest.raises(SpiritlevelError, match="tuple for a key"):
        safe_unpickle(io.BytesIO(pickle.dumps({(1, 2): 3})))
    assert safe_unpickle(io.BytesIO(pickle.dumps({1: {2.5, "a", None, b"b"}}))) == {1: {2.5, "a", None, b"b"}}


def test_plain_pickles_are_bounded_too() -> None:
    copies = b"](" + b"N" * 20_000 + b"e" + put(1) + (b"0cbuiltins\nlist\n" + get(1) + b"\x85R") * 20_000 + b"."
    for program in (copies, b"(" + b"\x8f" * 1_000_000 + b"t."):
        with pytest.raises(SpiritlevelError, match="times its own size"):
            safe_unpickle(io.BytesIO(program))


def test_the_number_of_instructions_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.pt").write_bytes(zipped(b"N0" * 600 + weights(w=scalar()) + b"."))
    assert list(read_tensors(tmp_path / "w.pt")) == ["w"]
    monkeypatch.setattr(bounded_pickle, "MOST_INSTRUCTIONS", 1000)
    with pytest.raises(SpiritlevelError, match="more than 1,000 instructions"):
        read_tensors(tmp_path / "w.pt")


def test_registered_extensions_are_not_reached(tmp_path: Path) -> None:
    class Taken:
        made = 0

        def __init__(self) -> None:
            type(self).made += 1

    copyreg.add_extension("nowhere", "Taken", 240)
    copyreg._extension_cache[240] = Taken  # type: ignore[attr-defined]
    try:
        (tmp_path / "w.pt").write_bytes(zipped(b"\x82\xf0)R0" + weights(w=scalar()) + b"."))
        with pytest.raises(SpiritlevelError, match="extension registry"):
            read_tensors(tmp_path / "w.pt")
        assert Taken.made == 0
    finally:
        copyreg.remove_extension("nowhere", "Taken", 240)
        copyreg._extension_cache.pop(240, None)  # type: ignore[attr-defined]


def test_views_stay_views(tmp_path: Path) -> None:
    base = torch.arange(4.0)
    torch.save({f"w{n}": base.expand(1 << 20, 4) for n in range(50)}, tmp_path / "w.pt")
    found = read_tensors(tmp_path / "w.pt")
    assert {tensor.untyped_storage().data_ptr() for tensor in found.values()} == {found["w0"].data_ptr()}
    assert found["w7"].shape == (1 << 20, 4)


def test_paths_that_cannot_be_looked_at(tmp_path: Path) -> None:
    for name in ("x" * 5000, "x" * 5000 + "/w.pt", "a\0b"):
        with pytest.raises(SpiritlevelError, match=r"cannot be read|no file or folder"):
            load_weights(Net(), tmp_path / name)
    with pytest.raises(UsageError, match="no file or folder"):
        load_weights(Net(), tmp_path / "absent.pt")
