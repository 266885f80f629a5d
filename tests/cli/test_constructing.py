"""The hyper-parameters in a Lightning checkpoint build the network where they are plain values."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.cli.material import CHEAP, Run, strict

NETWORKS = """
from torch import nn
import torch

class Sized(nn.Module):
    def __init__(self, width, depths=(1, 1), act="tanh", loss=None, *, bias=True):
        super().__init__()
        self.hidden = nn.Linear(4, width, bias=bias)
        self.head = nn.Linear(width, 3)
        self.scale, self.act, self.loss = depths[0], getattr(torch, act), loss
    def forward(self, x):
        return self.scale * self.head(self.act(self.hidden(x)))

class Open(Sized):
    def __init__(self, **all):
        super().__init__(all["width"])

class Needing(Sized):
    def __init__(self, loss, width=5):
        super().__init__(width)

def make_sized(width=5):
    return Sized(width)

class AttributeDict(dict):
    pass
"""


@pytest.fixture
def folder(here: Path) -> Path:
    (here / "sized.py").write_text(textwrap.dedent(NETWORKS), encoding="utf-8")
    sys.path.append(str(here))  # put back by the folder's fixture
    return here


def save(name: str, width: int, hyper_parameters: Any, bias: bool = True) -> None:
    torch.manual_seed(width)
    state = {"hidden.weight": torch.randn(width, 4), "head.weight": torch.randn(3, width), "head.bias": torch.zeros(3)}
    state |= {"hidden.bias": torch.zeros(width)} if bias else {}
    torch.save({"state_dict": state, "epoch": 3, "hyper_parameters": hyper_parameters}, name)


def test_the_network_is_built_as_it_was_trained(run: Run, folder: Path) -> None:
    stored = {"width": 7, "depths": [3, 1], "act": "sin", "bias": False, "loss": nn.MSELoss(), "lr": 0.1, "opt": object}
    save("e.ckpt", 7, stored, bias=False)
    ran = run("measure", "sized.py:Sized", "e.ckpt", *CHEAP, "--json", "-")
    found = strict(ran.out)
    given = ("--model-args", "width=7,depths=[3,1],act=sin,bias=false")
    expected = strict(run("measure", "sized.py:Sized", "e.ckpt", *CHEAP, *given, "--json", "-").out)
    assert found["measures"] == expected["measures"]
    note = (
        "Built as Sized(width=7, depths=[3, 1], act='sin', bias=False), by the hyper-parameters in e.ckpt; loss, no "
        "plain value, was left at its default."
    )
    assert note in found["header"]["notes"]
    assert not any("Built as" in line for line in expected["header"]["notes"])  # what is said goes first


def test_lightnings_own_dictionary_and_any_keyword(run: Run, folder: Path) -> None:
    from sized import AttributeDict  # type: ignore[import-not-found]

    save("e.ckpt", 6, AttributeDict(width=6, lr=0.1))
    header = strict(run("measure", "sized.py:Sized", "e.ckpt", *CHEAP, "--json", "-").out)["header"]
    assert "Built as Sized(width=6), by the hyper-parameters in e.ckpt." in header["notes"]
    header = strict(run("measure", "sized.py:Open", "e.ckpt", *CHEAP, "--json", "-").out)["header"]
    assert "Built as Open(width=6, lr=0.1), by the hyper-parameters in e.ckpt." in header["notes"]


def test_a_function_is_called_as_it_is_written(run: Run, folder: Path) -> None:
    save("e.ckpt", 5, {"width": 7})
    assert run("measure", "sized.py:make_sized", "e.ckpt", *CHEAP).code == 0


def test_a_needed_argument_that_is_no_plain_value_is_named(run: Run, folder: Path) -> None:
    save("e.ckpt", 5, {"loss": nn.MSELoss(), "width": 5})
    ran = run("measure", "sized.py:Needing", "e.ckpt", *CHEAP)
    assert ran.code == 2
    assert "e.ckpt stores the argument loss of Needing as an object, which is not rebuilt" in ran.sentence


def test_files_that_ask_for_other_networks_are_rows_of_their_own(run: Run, folder: Path) -> None:
    save("a.ckpt", 6, {"width": 6})
    save("b.ckpt", 6, {"width": 6, "act": "sin"})
    save("c.ckpt", 6, {"width": 6, "lr": 0.5})
    ran = run("measure", "sized.py:Sized", "a.ckpt", "b.ckpt", "c.ckpt", *CHEAP, "--json", "r.json")
    assert ran.code == 1
    assert "b.ckpt stores act='sin', and the network was built with act=None as a.ckpt has it" in ran.err
    saved = strict(Path("r.json").read_text(encoding="utf-8"))
    assert [row["header"]["weights"] for row in saved["reports"]] == ["a.ckpt", "c.ckpt"]


def test_a_file_that_cannot_be_read_says_so_when_it_is_loaded(run: Run, folder: Path) -> None:
    save("a.ckpt", 6, {"width": 6})
    Path("cut.ckpt").write_bytes(Path("a.ckpt").read_bytes()[:200])
    ran = run("measure", "sized.py:Sized", "cut.ckpt", "a.ckpt", *CHEAP, "--quiet")
    assert ran.code == 1
    assert "Built as" not in ran.err
    assert "the first" not in ran.sentence
    assert "cut.ckpt" in ran.sentence
