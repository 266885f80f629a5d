"""Fully connected networks of the papers: images are flattened, every layer is affine."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def dense(
    channels: int, size: int, classes: int, widths: Sequence[int] = (), batch_norm: bool = False
) -> nn.Sequential:
    """Return flatten, then one ReLU layer per width (BatchNorm before the ReLU on request), then the output layer."""
    layers: list[nn.Module] = [nn.Flatten()]
    fan_in = channels * size * size
    for width in widths:
        layers.append(nn.Linear(fan_in, width))
        if batch_norm:
            layers.append(nn.BatchNorm1d(width))
        layers.append(nn.ReLU())
        fan_in = width
    layers.append(nn.Linear(fan_in, classes))
    return nn.Sequential(*layers)


def softmax_regression(channels: int, size: int, classes: int) -> nn.Sequential:
    """Return the affine classifier, for which ACEHT is the exact Hessian trace (Lengyel et al. 2021, prop. 3.1)."""
    return dense(channels, size, classes)


def mlp(channels: int, size: int, classes: int, widths: Sequence[int] = (512, 512, 512)) -> nn.Sequential:
    """Return a ReLU network; Tsuzuku et al. 2019 state three hidden layers but no widths, 512 is our reading."""
    return dense(channels, size, classes, widths)


def fcnbn(channels: int, size: int, classes: int, widths: Sequence[int] = (512, 512, 512)) -> nn.Sequential:
    """Return Lengyel et al. 2021's batch-normalised network; the widths, which they omit, follow Keskar et al. 2017."""
    return dense(channels, size, classes, widths, batch_norm=True)


def mlp_9960(channels: int, size: int, classes: int, widths: Sequence[int] = (10, 100)) -> nn.Sequential:
    """Return Granziol 2021's MLP: 784-10-100-10 has the stated 9,960 parameters, "one hidden layer of 100" has not."""
    return dense(channels, size, classes, widths)


def mlp_petzka(channels: int, size: int, classes: int, widths: Sequence[int] = (50, 50, 50, 30)) -> nn.Sequential:
    """Return the 784-50-50-50-30-10 network of Petzka et al. 2019."""
    return dense(channels, size, classes, widths)


def digits_mlp(channels: int, size: int, classes: int, widths: Sequence[int] = (32, 32)) -> nn.Sequential:
    """Return a network small enough that its whole Hessian can be formed."""
    return dense(channels, size, classes, widths)
