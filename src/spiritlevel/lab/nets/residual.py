"""Residual networks with the normalisation before the convolution: PreResNet (bottlenecks) and wide ResNet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from spiritlevel.values.errors import UsageError


class PreActivationBlock(nn.Module):
    """A residual block: shortcut(x) + F(x), F a chain of BatchNorm, ReLU, convolution."""

    def __init__(self, convolutions: list[nn.Conv2d], dropout: float, shortcut: nn.Module) -> None:
        super().__init__()
        steps: list[nn.Module] = []
        for index, conv in enumerate(convolutions):
            steps += [nn.BatchNorm2d(conv.in_channels), nn.ReLU(inplace=True)]
            if index == len(convolutions) - 1 and dropout > 0:
                steps.append(nn.Dropout(dropout))
            steps.append(conv)
        self.residual = nn.Sequential(*steps)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add the residual to the shortcut, which projects where shapes change."""
        total: torch.Tensor = self.shortcut(x) + self.residual(x)
        return total


def _tower(
    channels: int,
    classes: int,
    widths: Sequence[int],
    repeats: int,
    inner: Callable[[int, int, int], list[nn.Conv2d]],
    *,
    dropout: float = 0.0,
    bias: bool = False,
) -> nn.Sequential:
    """Return stages of blocks between a first convolution and a linear layer; ``inner`` makes a block's convolutions.

    ``inner`` takes the channels that come in, the stage's width and the stride, which is 2 where a later stage begins.
    """
    blocks: list[nn.Module] = []
    fan_in = 16
    for stage, width in enumerate(widths):
        for repeat in range(repeats):
            stride = 2 if stage > 0 and repeat == 0 else 1
            convolutions = inner(fan_in, width, stride)
            fan_out = convolutions[-1].out_channels
            same = stride == 1 and fan_in == fan_out
            shortcut = nn.Identity() if same else nn.Conv2d(fan_in, fan_out, 1, stride=stride, bias=bias)
            blocks.append(PreActivationBlock(convolutions, dropout, shortcut))
            fan_in = fan_out
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1, bias=bias),
        *blocks,
        nn.BatchNorm2d(fan_in),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(fan_in, classes),
    )


def preresnet(channels: int, size: int, classes: int, depth: int = 164) -> nn.Sequential:
    """Return the pre-activation ResNet of bottlenecks (He et al. 2016): depth = 9n + 2, convolutions without biases."""
    del size  # the global average takes any size
    repeats, remainder = divmod(depth - 2, 9)
    if remainder or repeats < 1:
        raise UsageError(f"depth={depth} is not 9n + 2, which a bottleneck PreResNet needs: take 11, 20, 29, … 164.")

    def bottleneck(fan_in: int, width: int, stride: int) -> list[nn.Conv2d]:
        return [
            nn.Conv2d(fan_in, width, 1, bias=False),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.Conv2d(width, 4 * width, 1, bias=False),
        ]

    return _tower(channels, classes, (16, 32, 64), repeats, bottleneck)


def wide_resnet(
    channels: int, size: int, classes: int, depth: int = 28, width: int = 10, dropout: float = 0.0, bias: bool = True
) -> nn.Sequential:
    """Return the wide ResNet (Zagoruyko and Komodakis 2016): depth = 6n + 4.

    Granziol 2021's count of 36,546,980 holds with biases in the convolutions, which ``bias=False`` removes.
    """
    del size  # the global average takes any size
    repeats, remainder = divmod(depth - 4, 6)
    if remainder or repeats < 1:
        raise UsageError(f"depth={depth} is not 6n + 4, which a wide ResNet needs: take 10, 16, 22, 28, 40.")

    def two(fan_in: int, width: int, stride: int) -> list[nn.Conv2d]:
        return [
            nn.Conv2d(fan_in, width, 3, stride=stride, padding=1, bias=bias),
            nn.Conv2d(width, width, 3, padding=1, bias=bias),
        ]

    widths = [16 * width * 2**stage for stage in range(3)]
    return _tower(channels, classes, widths, repeats, two, dropout=dropout, bias=bias)


def wide_resnet_16_4(channels: int, size: int, classes: int, dropout: float = 0.0, bias: bool = False) -> nn.Sequential:
    """Return the wide ResNet-16-4 of Tsuzuku et al. 2019, whose convolutions carry no biases as in the original."""
    return wide_resnet(channels, size, classes, depth=16, width=4, dropout=dropout, bias=bias)
