"""Norms of the weights of a small problem, with every linear map written out as a matrix."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.measures.reference.dense import Dense
from spiritlevel.measures.reference.margins import output_margin


def weight_norm(dense: Dense, conv: str = "reshaped") -> float:
    """Return the length of the parameter vector; ``conv`` changes only what is shown of layers."""
    return math.sqrt(math.fsum(value * value for value in dense.theta.tolist()))


def spectral_complexity(dense: Dense, margin: str = "median", conv: str = "reshaped") -> float:
    """Return Bartlett et al.'s product and sum over the matrices of all layers, divided by the margin."""
    product, total = 1.0, 0.0
    for matrix in layer_matrices(dense, conv).values():
        spectral = float(np.linalg.norm(matrix, 2))
        product *= spectral
        total += (float(np.linalg.norm(matrix, axis=1).sum()) / spectral) ** (2 / 3)
    return float(product * total**1.5 / output_margin(dense, margin))


def layer_matrices(dense: Dense, conv: str = "reshaped") -> dict[str, np.ndarray]:
    """Return every weight of two or more dimensions as a matrix; a convolution by rows or as a map of whole images."""
    sizes = _input_sizes(dense)
    found = {}
    for name in dense.names:
        weight = dense.tensor(name)
        module = dense.model.get_submodule(name.rpartition(".")[0])
        if weight.ndim < 2:
            continue
        if isinstance(module, nn.Conv2d) and conv == "fft" and module.stride == (1, 1):
            found[name] = _circular(weight, sizes[module], module)
        elif isinstance(module, nn.Conv2d) and module.groups > 1:
            found[name] = torch.block_diag(*weight.flatten(1).chunk(module.groups)).numpy()
        else:
            found[name] = weight.flatten(1).numpy()
    return found


def _circular(weight: Tensor, size: tuple[int, ...], module: nn.Conv2d) -> np.ndarray:
    """Return the convolution with circular padding as a matrix, by applying it to every unit image."""
    channels = weight.shape[1] * module.groups
    units = torch.eye(channels * math.prod(size), dtype=torch.float64).reshape(-1, channels, *size)
    reach = [step * (k - 1) for step, k in zip(module.dilation, weight.shape[2:])]
    wrapped = torch.nn.functional.pad(units, (0, reach[1], 0, reach[0]), mode="circular")
    images = torch.nn.functional.conv2d(wrapped, weight, dilation=module.dilation, groups=module.groups)
    return images.flatten(1).T.numpy()


def _input_sizes(dense: Dense) -> dict[nn.Module, tuple[int, ...]]:
    sizes: dict[nn.Module, tuple[int, ...]] = {}
    handles = [
        module.register_forward_pre_hook(lambda m, args: sizes.update({m: tuple(args[0].shape[2:])}))
        for module in dense.model.modules()
        if isinstance(module, nn.Conv2d)
    ]
    dense.outputs(dense.theta, dense.samples[0])
    for handle in handles:
        handle.remove()
    return sizes
