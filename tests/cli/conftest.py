"""A folder with a user's file and weights in it, and the command run there."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from spiritlevel.cli import main
from tests.cli.material import MODULE, Ran, Run


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as the current directory; imports of ``mine.py`` from it are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    path, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name == "mine" or name.startswith("_spiritlevel_user_"):
            del sys.modules[name]


@pytest.fixture
def here(own_folder: Path) -> Path:
    """A folder with a user's module in it."""
    (own_folder / "mine.py").write_text(textwrap.dedent(MODULE), encoding="utf-8")
    return own_folder


@pytest.fixture
def run(here: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process and return what it printed."""

    def call(*words: str | Path) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def weights(here: Path) -> Path:
    """Weights of the user's network."""
    torch.manual_seed(3)
    model = nn.ModuleDict({"hidden": nn.Linear(4, 6), "head": nn.Linear(6, 3)})
    torch.save(model.state_dict(), here / "net.pt")
    return here / "net.pt"
