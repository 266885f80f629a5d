"""Networks of single operations, with the free factors counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Net(nn.Module):
    """A network written as a function of its modules and parameters."""

    def __init__(self, compute: Callable[..., Any], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.compute = compute
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(self, *args, **kwargs)


def vectors() -> Tensor:
    return torch.randn(5, 8, dtype=torch.float64)


def linear(*sizes: int) -> dict[str, nn.Module]:
    """Linear layers a, b, ... from pairs of sizes."""
    return {name: nn.Linear(i, o) for name, i, o in zip("abc", sizes[::2], sizes[1::2])}
