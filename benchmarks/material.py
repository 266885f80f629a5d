"""The networks and data every contender gets: digits at 28x28, shifted and noisy, any number of them, no download."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.lab.datasets import load
from spiritlevel.lab.nets import build

Data = tuple[Tensor, Tensor]


@functools.cache
def images(count: int, size: int = 28, channels: int = 1, classes: int = 10, seed: int = 0) -> Data:
    """Return ``count`` images of digits with random shifts and noise; labels modulo ``classes`` spread over them."""
    digits = load("digits", "train")
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(digits.y), (count,), generator=generator)
    x = digits.x[chosen].float().reshape(count, 1, 8, 8)
    x = F.interpolate(x / x.max(), size=(size - 4, size - 4), mode="bilinear", align_corners=False)
    left, top = (torch.randint(5, (count,), generator=generator) for _ in range(2))
    padded = torch.zeros(count, 1, size, size)
    for index in range(count):
        row, column = int(top[index]), int(left[index])
        padded[index, :, row : row + size - 4, column : column + size - 4] = x[index]
    x = padded + 0.1 * torch.randn(padded.shape, generator=generator)
    y = digits.y[chosen]
    if classes != 10:
        y = torch.randint(classes, (count,), generator=generator) if classes > 10 else y % classes
    return x.expand(-1, channels, -1, -1).contiguous(), y.long()


def trained(model: nn.Module, data: Data, steps: int = 150, rate: float = 2e-3) -> nn.Module:
    """Train a network for a moment with Adam, so that its curvature is that of a trained one."""
    x, y = data
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(0)
    model.train()
    for _ in range(steps):
        index = torch.randint(len(y), (min(64, len(y)),), generator=generator)
        optimiser.zero_grad()
        F.cross_entropy(model(x[index]), y[index]).backward()
        optimiser.step()
    for parameter in model.parameters():
        parameter.grad = None
    return model.eval()


@functools.cache
def lenet5(seed: int = 0) -> nn.Module:
    """Return LeNet-5 with 61,706 parameters."""
    return trained(build("lenet5", seed=seed), images(2000, seed=1))


@functools.cache
def fcnbn() -> nn.Module:
    """Return the network of three BatchNorm layers of 512, 932,362 parameters."""
    return trained(build("fcnbn", seed=0), images(2000, seed=1), steps=60)


@functools.cache
def mlp() -> nn.Module:
    """Return the 784-512-512-10 network."""
    return trained(build("mlp", seed=0, widths=(512, 512)), images(2000, seed=1), steps=60)


@functools.cache
def small() -> nn.Module:
    """Return a network of 1,482 parameters, whose whole Hessian can be formed."""
    return trained(build("digits_mlp", seed=0, widths=(16, 16)), images(500, size=8, seed=1))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with BatchNorm, added to a shortcut."""

    def __init__(self, fan_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(fan_in, width, 3, stride=stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or fan_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(fan_in, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.first_norm(self.first(x)))
        return self.relu(self.shortcut(x) + self.second_norm(self.second(inner)))


@functools.cache
def resnet18(width: int = 16) -> nn.Module:
    """Return the 18-layer residual network for small images, ``width`` channels in place of 64."""
    torch.manual_seed(0)
    blocks: list[nn.Module] = []
    fan_in = width
    for stage in range(4):
        for repeat in range(2):
            planes = width * 2**stage
            blocks.append(ResidualBlock(fan_in, planes, 2 if stage and not repeat else 1))
            fan_in = planes
    model = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(fan_in, 10),
    )
    return trained(model, images(500, seed=1), steps=10)


def on(device: torch.device, model: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    """Return a network and data on a device; on the CPU they are those given."""
    return model.to(device), (data[0].to(device), data[1].to(device))
