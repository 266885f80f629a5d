"""Convolutional networks without skips: LeNet-5, All-CNN-C, VGG-16 and a small one for 8x8 digits."""

from __future__ import annotations

from typing import Any

from torch import nn

from spiritlevel.values.errors import UsageError


def _choose(option: str, value: str, choices: dict[str, Any]) -> Any:
    if value not in choices:
        raise UsageError(f"{option}={value!r} is not known: take one of {', '.join(choices)}.")
    return choices[value]


def lenet5(channels: int, size: int, classes: int, activation: str = "relu", pool: str = "max") -> nn.Sequential:
    """Return LeNet-5; ``activation="tanh", pool="avg"`` is close to the network of 1998.

    Images under 32 pixels are padded by 2 before the first convolution, so 28x28 and 32x32 both reach 16x5x5 features.
    """
    act = _choose("activation", activation, {"relu": nn.ReLU, "tanh": nn.Tanh})
    pooling = _choose("pool", pool, {"max": nn.MaxPool2d, "avg": nn.AvgPool2d})
    padding = 2 if size < 32 else 0
    side = ((size + 2 * padding - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5, padding=padding),
        act(),
        pooling(2),
        nn.Conv2d(6, 16, 5),
        act(),
        pooling(2),
        nn.Flatten(),
        nn.Linear(16 * side * side, 120),
        act(),
        nn.Linear(120, 84),
        act(),
        nn.Linear(84, classes),
    )


def digits_cnn(channels: int, size: int, classes: int, width: int = 8) -> nn.Sequential:
    """Return two 3x3 convolutions and one output layer: a convolutional network for seconds on a CPU."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (size // 4) ** 2, classes),
    )


def allcnnc(channels: int, size: int, classes: int, dropout: tuple[float, float] = (0.2, 0.5)) -> nn.Sequential:
    """Return All-CNN-C (Springenberg et al. 2015): strided convolutions in place of pooling, global average at the end.

    ``dropout`` is the rate on the input and the rate after each strided convolution.  Weights are Xavier's normal draws
    and biases 0.1, as in DeepOBS: nine layers without normalisation do not leave the plateau of their start from
    PyTorch's smaller weights.
    """
    del size  # the global average takes any size
    on_input, on_features = dropout

    def conv(fan_in: int, fan_out: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(fan_in, fan_out, kernel, stride=stride, padding=padding)
        nn.init.xavier_normal_(layer.weight)
        assert layer.bias is not None
        nn.init.constant_(layer.bias, 0.1)
        return [layer, nn.ReLU()]

    return nn.Sequential(
        nn.Dropout(on_input),
        *conv(channels, 96),
        *conv(96, 96),
        *conv(96, 96, stride=2),
        nn.Dropout(on_features),
        *conv(96, 192),
        *conv(192, 192),
        *conv(192, 192, stride=2),
        nn.Dropout(on_features),
        *conv(192, 192, padding=0),
        *conv(192, 192, kernel=1, padding=0),
        *conv(192, classes, kernel=1, padding=0),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def vgg16_bn(channels: int, size: int, classes: int, dropout: float = 0.5) -> nn.Sequential:
    """Return VGG-16 with BatchNorm and a 512-512 classifier, the form used with stochastic weight averaging."""
    layers: list[nn.Module] = []
    fan_in = channels
    for width, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            layers += [nn.Conv2d(fan_in, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
            fan_in = width
        layers.append(nn.MaxPool2d(2))
    features = 512 * (size // 32) ** 2
    layers += [
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(features, 512),
        nn.ReLU(inplace=True),
        nn.Dropout(dropout),
        nn.Linear(512, 512),
        nn.ReLU(inplace=True),
        nn.Linear(512, classes),
    ]
    return nn.Sequential(*layers)
