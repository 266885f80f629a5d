"""Hyper-parameters beside the weights: plain values are read, everything else is a name, and nothing runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from spiritlevel.inputs.weights.stored_arguments import StoredArguments, stored_arguments


class Runs:
    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return Path.touch, (self.place,)


@pytest.mark.parametrize("old", [False, True])
def test_plain_values_and_the_names_of_others(tmp_path: Path, old: bool) -> None:
    plain = {"width": 3, "rate": 0.1, "act": "relu", "bias": False, "norm": None, "sizes": [1, 2], "pair": (1, "a")}
    nested: list[Any] = []
    nested.append(nested)
    others = {"run": Runs(tmp_path / "ran"), "tensor": torch.zeros(2), "deep": [[1]], "itself": nested}
    content = {"state_dict": {}, "hyper_parameters": {**plain, **others, 3: 4}}
    torch.save(content, tmp_path / "a.ckpt", _use_new_zipfile_serialization=not old)
    found = stored_arguments(tmp_path / "a.ckpt")
    assert found == StoredArguments(plain, tuple(others))
    assert {name: type(value) for name, value in found.plain.items()} == {k: type(v) for k, v in plain.items()}
    assert not (tmp_path / "ran").exists()


def test_files_without_any(tmp_path: Path) -> None:
    torch.save({"state_dict": {}}, tmp_path / "none.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    torch.save({"hyper_parameters": Runs(tmp_path / "ran")}, tmp_path / "object.pt")
    torch.save({"hyper_parameters": 3}, tmp_path / "number.pt")
    (tmp_path / "text.pt").write_text("no weights", encoding="utf-8")
    (tmp_path / "cut.pt").write_bytes((tmp_path / "none.pt").read_bytes()[:80])
    for name in ("none", "tensor", "object", "number", "text", "cut", "missing"):
        assert stored_arguments(tmp_path / f"{name}.pt") == StoredArguments()
    assert stored_arguments(tmp_path) == StoredArguments()
