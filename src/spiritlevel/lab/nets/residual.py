"""Residual networks with the normalisation before the convolution: PreResNet (bottlenecks) and wide ResNet."""

from __future__ import annotations

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


def _tower(stem: nn.Conv2d, blocks: list[nn.Module], width: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        stem,
        *blocks,
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


def preresnet(channels: int, size: int, classes: int, depth: int = 164) -> nn.Sequential:
    """Return the pre-activation ResNet of bottlenecks (He et al. 2016): depth = 9n + 2, convolutions without biases."""
    del size  # the global average takes any size
    repeats, remainder = divmod(depth - 2, 9)
    if remainder or repeats < 1:
        raise UsageError(f"depth={depth} is not 9n + 2, which a bottleneck PreResNet needs: take 11, 20, 29, … 164.")
    blocks: list[nn.Module] = []
    fan_in = 16
    for stage, planes in enumerate((16, 32, 64)):
        for repeat in range(repeats):
            stride = 2 if stage > 0 and repeat == 0 else 1
            convolutions = [
                nn.Conv2d(fan_in, planes, 1, bias=False),
                nn.Conv2d(planes, planes, 3, stride=stride, padding=1, bias=False),
                nn.Conv2d(planes, 4 * planes, 1, bias=False),
            ]
            same = stride == 1 and fan_in == 4 * planes
            shortcut = nn.Identity() if same else nn.Conv2d(fan_in, 4 * planes, 1, stride=stride, bias=False)
            blocks.append(PreActivationBlock(convolutions, 0.0, shortcut))
            fan_in = 4 * planes
    return _tower(nn.Conv2d(channels, 16, 3, padding=1, bias=False), blocks, fan_in, classes)


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
    blocks: list[nn.Module] = []
    fan_in = 16
    for stage in range(3):
        planes = 16 * 2**stage * width
        for repeat in range(repeats):
            stride = 2 if stage > 0 and repeat == 0 else 1
            convolutions = [
                nn.Conv2d(fan_in, planes, 3, stride=stride, padding=1, bias=bias),
                nn.Conv2d(planes, planes, 3, padding=1, bias=bias),
            ]
            same = stride == 1 and fan_in == planes
            shortcut = nn.Identity() if same else nn.Conv2d(fan_in, planes, 1, stride=stride, bias=bias)
            blocks.append(PreActivationBlock(convolutions, dropout, shortcut))
            fan_in = planes
    return _tower(nn.Conv2d(channels, 16, 3, padding=1, bias=bias), blocks, fan_in, classes)


def wide_resnet_16_4(channels: int, size: int, classes: int, dropout: float = 0.0, bias: bool = False) -> nn.Sequential:
    """Return the wide ResNet-16-4 of Tsuzuku et al. 2019, whose convolutions carry no biases as in the original."""
    return wide_resnet(channels, size, classes, depth=16, width=4, dropout=dropout, bias=bias)
