"""The way back through a convolution of few channels, with rows of the images as channels.

Kernels for convolutions work on channels: with a handful of them most of the machine stands still.  A convolution whose
rows are taken as channels is one of more channels and a taller kernel.  On a processor's wide vectors two rows
at a time do; a GPU takes all of them, which leaves a convolution along the other direction alone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# On a GPU: input channels that count as few, and how much more arithmetic there may be.
FEW_CHANNELS = 8
MORE_ARITHMETIC = 3
# On a CPU: how many times as many of its lanes must do work that counts.
WORTHWHILE = 1.5


def rows_as_channels(module: nn.Module, inputs: Tensor) -> int:
    """Return how many rows of inputs (B, C, H, W) to take as channels of their own on the way back; 1 for none."""
    if type(module) is not nn.Conv2d or inputs.ndim != 4 or isinstance(module.padding, str):
        return 1
    reaches = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size)]
    plain = module.groups == 1 and module.stride == (1, 1) and module.padding_mode == "zeros"
    if not plain or any(p > reach for p, reach in zip(module.padding, reaches)):
        return 1
    height = inputs.shape[2]
    if inputs.is_cuda:
        few = module.in_channels <= FEW_CHANNELS and height <= MORE_ARITHMETIC * module.kernel_size[0]
        return height if few else 1
    if inputs.dtype != torch.float32:  # which alone has kernels that work on many channels at once
        return 1
    lanes = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
    return _best_rows(module.in_channels, module.kernel_size[0], reaches[0], height, lanes)


def _best_rows(channels: int, size: int, reach: int, height: int, lanes: int) -> int:
    """Return the rows for which the largest share of vectors of so many ``lanes`` does work that counts."""

    def useful(rows: int) -> float:
        joint = channels * rows
        return joint / (-(-joint // lanes) * lanes) * size / (reach + rows)

    best = max((rows for rows in range(1, height + 1) if height % rows == 0), key=useful)
    return best if useful(best) >= WORTHWHILE * useful(1) else 1


def pulled_through(module: nn.Conv2d, deltas: Tensor, shape: torch.Size, rows: int) -> Tensor:
    """Return the gradients of the inputs, (N, C, H, W), from those of the outputs, (N, O, h, w)."""
    assert not isinstance(module.padding, str)
    height, across = shape[2], (module.dilation[1] * (module.kernel_size[1] - 1) - module.padding[1])
    if rows == height:
        rowwise = F.conv1d(deltas.flatten(1, 2), _all_rows(module, deltas, height), None, 1, across, module.dilation[1])
        found: Tensor = rowwise.unflatten(1, (-1, height))
        return found
    down = module.dilation[0] * (module.kernel_size[0] - 1) - module.padding[0]
    kernel = _some_rows(module, deltas, rows)
    found = F.conv2d(deltas, kernel, None, (rows, 1), (down, across), (1, module.dilation[1]))
    unfolded: Tensor = found.unflatten(1, (-1, rows)).transpose(2, 3).flatten(2, 3)
    return unfolded


def _all_rows(module: nn.Conv2d, deltas: Tensor, height: int) -> Tensor:
    """Return the kernel (C·H, O·h, w) along the other direction."""
    assert not isinstance(module.padding, str)
    # Row y of the inputs meets row r of the outputs through row k of the kernel where y = r + k·dilation - padding.
    k, y, r = (torch.arange(n, device=deltas.device) for n in (module.kernel_size[0], height, deltas.shape[2]))
    meet = (y[:, None] == r + k[:, None, None] * module.dilation[0] - module.padding[0]).to(deltas.dtype)  # (k, y, r)
    kernel = torch.einsum("kyr,ocki->cyori", meet, module.weight.detach().flip(3))
    return kernel.flatten(2, 3).flatten(0, 1)


def _some_rows(module: nn.Conv2d, deltas: Tensor, rows: int) -> Tensor:
    """Return the kernel (C·rows, O, reach + rows, w) that gives so many rows at once."""
    reach = module.dilation[0] * (module.kernel_size[0] - 1)
    k, r, i = (torch.arange(n, device=deltas.device) for n in (module.kernel_size[0], rows, reach + rows))
    # Row r of them meets row i of the outputs under the kernel through its row k where i = r + reach - k·dilation.
    meet = (i == r[:, None] + reach - k[:, None, None] * module.dilation[0]).to(deltas.dtype)  # (k, r, i)
    return torch.einsum("kri,ockj->croij", meet, module.weight.detach().flip(3)).flatten(0, 1)
