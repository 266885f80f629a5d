"""A user's file of networks and data, and what a command said and left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

MODULE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Net(nn.Module):
    def __init__(self, width=6, classes=3):
        super().__init__()
        self.hidden = nn.Linear(4, width)
        self.head = nn.Linear(width, classes)
    def forward(self, x):
        return self.head(torch.relu(self.hidden(x)))

class Dropping(Net):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
    def forward(self, x):
        return self.head(self.drop(torch.relu(self.hidden(x))))

class Bare(nn.Module):
    def forward(self, x):
        return x[:, :3]

class Poisoned(Net):
    def __init__(self):
        super().__init__()
        self.hidden.weight.data[0, 0] = float("nan")

def make_net(width=6):
    return Net(width=int(width))

def broken():
    raise RuntimeError("the disk is on fire\\nsecond line")

generator = torch.Generator().manual_seed(0)
x = torch.randn(40, 4, generator=generator)
y = torch.randint(0, 3, (40,), generator=generator)
pair = (x, y)
ready = Net()

def wrong_labels():
    return x, torch.full((40,), 7)

def empty():
    return x[:0], y[:0]

def part(count=40):
    return x[:count], y[:count]

class Jittered(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        return x[index] + 0.1 * torch.randn(4), y[index]

def loader():
    return DataLoader(Jittered(), batch_size=8, shuffle=True, drop_last=True)

def batches():
    return [{"x": x[:25], "labels": y[:25]}, {"x": x[25:], "labels": y[25:]}]

def regression():
    return x, torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
"""


class Ran(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The last line on stderr, where a failure is told."""
        return self.err.strip().splitlines()[-1]


Run = Callable[..., Ran]


def digest(folder: Path) -> dict[str, str]:
    """Return a hash of every file there is, but for Python's own cache."""
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    }


def strict(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not strict JSON")

    return json.loads(text, parse_constant=refuse)


CHEAP = ("--data", "mine:pair", "--measures", "output_margin")
