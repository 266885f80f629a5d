"""Data for small problems, and outputs as transformer libraries return them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def data(count: int = 10) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, 3, generator=generator), torch.randint(0, 3, (count,), generator=generator)


@dataclass
class Output:
    """What transformer libraries return."""

    logits: Tensor
    loss: Tensor | None = None
