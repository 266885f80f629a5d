"""The built-in networks by name, each with the shape its paper gave it, and the one way to build them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spiritlevel.lab.nets import convolutional, dense, residual
from spiritlevel.values.errors import UsageError, near_names


@dataclass(frozen=True)
class NetSpec:
    """A network by name: what it is, who used it, the images it was made for and how to build it.

    Attributes
    ----------
    name : str
        The name it is built by.
    meaning : str
        What it is, in words.
    paper : str
        Who used it.
    channels : int
        Channels of the images it was made for.
    size : int
        Their side.
    classes : int
        How many classes it tells apart.
    builder : callable
        What builds it.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> for spec in list(sl.nets.NETS.values())[:4]:
    ...     print(spec.name, "·", spec.meaning)
    digits_mlp · 64-32-32-10 ReLU network for the built-in digits
    digits_cnn · two small convolutions for the built-in digits
    softmax_regression · affine classifier, 784-10
    mlp · 784-512-512-512-10 ReLU network
    """

    name: str
    meaning: str
    paper: str
    channels: int
    size: int
    classes: int
    builder: Callable[..., nn.Module]

    @property
    def options(self) -> dict[str, Any]:
        """The builder's own arguments with their defaults."""
        parameters = inspect.signature(self.builder).parameters.values()
        return {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}


_LENGYEL = "Lengyel et al. 2021"
_TSUZUKU = "Tsuzuku et al. 2019"
_GRANZIOL = "Granziol 2021"
_PETZKA = "Petzka et al. 2019"

NETS: dict[str, NetSpec] = {
    spec.name: spec
    for spec in (
        NetSpec("digits_mlp", "64-32-32-10 ReLU network for the built-in digits", "", 1, 8, 10, dense.digits_mlp),
        NetSpec("digits_cnn", "two small convolutions for the built-in digits", "", 1, 8, 10, convolutional.digits_cnn),
        NetSpec(
            "softmax_regression", "affine classifier, 784-10", f"{_LENGYEL}; {_GRANZIOL}", 1, 28, 10,
            dense.softmax_regression,
        ),
        NetSpec("mlp", "784-512-512-512-10 ReLU network", _TSUZUKU, 1, 28, 10, dense.mlp),
        NetSpec("mlp_9960", "784-10-100-10 ReLU network", _GRANZIOL, 1, 28, 10, dense.mlp_9960),
        NetSpec("mlp_petzka", "784-50-50-50-30-10 ReLU network", _PETZKA, 1, 28, 10, dense.mlp_petzka),
        NetSpec("fcnbn", "three BatchNorm ReLU layers of 512", _LENGYEL, 1, 28, 10, dense.fcnbn),
        NetSpec(
            "lenet5", "LeNet-5 with ReLU and max pooling", f"{_LENGYEL}; {_TSUZUKU}; {_PETZKA}", 1, 28, 10,
            convolutional.lenet5,
        ),
        NetSpec("allcnnc", "All-CNN-C, nine convolutions with dropout", _GRANZIOL, 3, 32, 100, convolutional.allcnnc),
        NetSpec("preresnet164", "pre-activation ResNet-164 of bottlenecks", _GRANZIOL, 3, 32, 100, residual.preresnet),
        NetSpec("wrn28_10", "wide ResNet-28-10 with convolution biases", _GRANZIOL, 3, 32, 100, residual.wide_resnet),
        NetSpec("wrn16_4", "wide ResNet-16-4", _TSUZUKU, 3, 32, 10, residual.wide_resnet_16_4),
        NetSpec("vgg16_bn", "VGG-16 with BatchNorm and dropout", _GRANZIOL, 3, 32, 100, convolutional.vgg16_bn),
    )
}  # fmt: skip


def spec(name: str) -> NetSpec:
    """Return the declaration of a built-in network.

    Parameters
    ----------
    name : str
        The name.

    Returns
    -------
    NetSpec
        What it is.

    Raises
    ------
    UsageError
        There is no such network.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> found = sl.nets.spec("lenet5")
    >>> found.meaning, found.size, found.options
    ('LeNet-5 with ReLU and max pooling', 28, {'activation': 'relu', 'pool': 'max'})
    """
    if name not in NETS:
        raise UsageError(
            f"No built-in network is called {name!r}{near_names(name, NETS) or '.'} The names are {', '.join(NETS)}."
        )
    return NETS[name]


def size_for(name: str, image_size: int) -> int:
    """Return the image side to build a network for: the data's, or its own where the data's is smaller.

    Parameters
    ----------
    name : str
        The network.
    image_size : int
        The side of the data's images.

    Returns
    -------
    int
        The side.

    Raises
    ------
    UsageError
        There is no such network.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.nets.size_for("lenet5", 8), sl.nets.size_for("lenet5", 32)
    (28, 32)
    """
    return max(spec(name).size, image_size)


def build(
    name: str,
    *,
    channels: int | None = None,
    size: int | None = None,
    classes: int | None = None,
    seed: int | None = None,
    device: torch.device | str | None = None,
    **args: Any,
) -> nn.Module:
    """Return a built-in network, initialised as PyTorch does unless it says otherwise; a seed gives the same weights.

    Parameters
    ----------
    name : str
        The name; `NETS` has them all.
    channels : int
        Channels of the images; by default the paper's.
    size : int
        Their side; by default the paper's.
    classes : int
        How many classes to tell apart; by default the paper's.
    seed : int
        Seed of the weights; the global random state is left as it was when one is given.
    device : str or torch.device
        Where to put it.
    **args
        Options of the network, as ``spec(name).options`` lists them.

    Returns
    -------
    torch.nn.Module
        The network.

    Raises
    ------
    UsageError
        There is no such network or option, or the images are too small.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> sum(parameter.numel() for parameter in model.parameters())
    3466
    """
    found = spec(name)
    unknown = sorted(set(args) - set(found.options))
    if unknown:
        allowed = ", ".join(f"{key}={value!r}" for key, value in found.options.items()) or "none"
        raise UsageError(f"The network {name} has no option {unknown[0]!r}; its options are: {allowed}.")
    side = found.size if size is None else size
    if side < found.size:
        raise UsageError(
            f"The network {name} is made for images of {found.size}x{found.size} or larger, not {side}x{side}: "
            "resize the images up to it with fit_images."
        )
    shape = (channels or found.channels, side, classes or found.classes)
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        # Drawn on the CPU, then moved: the weights of a seed do not depend on the device.
        with torch.device("meta" if str(device) == "meta" else "cpu"):
            model = found.builder(*shape, **args)
    return model if device is None else model.to(device)
