"""Leaves of graphs."""

from __future__ import annotations

import torch
from torch import Tensor


def leaf(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), requires_grad=True)
