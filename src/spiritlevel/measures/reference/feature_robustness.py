"""Brute force for feature robustness: features moved as features, over a fine grid or from many starts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.measures.reference.dense import Dense

ANGLES = 120
STARTS = 12


def feature_robustness(dense: Dense, delta: float = 1e-2, layer: str = "last", **settings: Any) -> float:
    """Return the largest mean rise over orthogonal A, the extreme points of ‖A‖₂ ≤ 1, applied to the features."""
    linear = {name: module for name, module in dense.model.named_modules() if isinstance(module, nn.Linear)}
    module = list(linear.values())[-1] if layer == "last" else linear[layer]
    size = module.in_features
    if size <= 2:
        moves = _grid(size)  # three degrees apart: within 0.1% of the maximum
    else:
        generator = torch.Generator().manual_seed(20191213)
        moves = [_ascend(dense, module, delta, _orthogonal(size, generator)) for _ in range(STARTS)]
    return max(0.0, max(float(_rise(dense, module, delta, move).detach()) for move in moves))


def _rise(dense: Dense, module: nn.Module, delta: float, move: Tensor) -> Tensor:
    """Return the rise of the mean loss when a hook moves the layer's input."""
    before = dense.loss
    handle = module.register_forward_pre_hook(lambda _, args: (args[0] + delta * args[0] @ move.T,))
    try:
        return dense.loss_at(dense.theta) - before
    finally:
        handle.remove()


def _grid(size: int) -> list[Tensor]:
    if size == 1:
        return [torch.ones(1, 1, dtype=torch.float64), -torch.ones(1, 1, dtype=torch.float64)]
    found = []
    for k in range(ANGLES):
        c, s = math.cos(2 * math.pi * k / ANGLES), math.sin(2 * math.pi * k / ANGLES)
        found += [torch.tensor([[c, -s], [s, c]]).double(), torch.tensor([[c, s], [s, -c]]).double()]
    return found


def _ascend(dense: Dense, module: nn.Module, delta: float, move: Tensor) -> Tensor:
    for _ in range(20):
        move = move.detach().requires_grad_()
        (slope,) = torch.autograd.grad(_rise(dense, module, delta, move), move)
        left, _, right = torch.linalg.svd(slope)
        move = left @ right
    return move.detach()


def _orthogonal(size: int, generator: torch.Generator) -> Tensor:
    frame, triangle = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    drawn: Tensor = frame * torch.where(triangle.diagonal() < 0, -1.0, 1.0)
    return drawn
