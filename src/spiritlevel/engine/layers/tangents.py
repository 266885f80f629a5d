"""What a direction in a layer's parameters makes of its output, for each sample along its own: the tangent Jv.

Every rule is held against autograd before anything rests on it, so a wrong one costs time, not truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.engine.layers.directions import SampleDirections
from spiritlevel.engine.layers.rules import CHANNELS_LAST, STANDARDISED
from spiritlevel.engine.layers.sample_gradients import pad
from spiritlevel.inputs.input_first import is_input_first

# A rule gives the tangents (B, …) of a module's output by parameter, from the input (B, …) of a call and the full names
# of the module's parameters by its own.
TangentRule = Callable[[Any, Tensor, Mapping[str, str], SampleDirections], dict[str, Tensor]]
_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


def tangent_rule(module: nn.Module) -> TangentRule | None:
    """Return the rule of a module, None where there is none; only the type itself counts."""
    if type(module) in STANDARDISED:
        return _affine
    if type(module) in _CONVOLUTIONS and module.groups != 1:
        return None  # kernels of every sample's own would be thousands of groups, which no library is fast at
    if type(module) in _RULES:
        return _RULES[type(module)]
    return _linear if is_input_first(module) else None


def _linear(
    module: nn.Module, inputs: Tensor, names: Mapping[str, str], directions: SampleDirections
) -> dict[str, Tensor]:
    rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
    found = {}
    for local, full in names.items():
        parameter = module.get_parameter(local)
        if parameter.ndim == 1:
            tangent = directions.vector(full, len(parameter))[:, None].expand(-1, rows.shape[1], -1)
        else:
            own = directions.matrix(full, *parameter.shape)
            tangent = own.to_rows(rows) if isinstance(module, nn.Linear) else own.to_columns(rows)
        found[full] = tangent.reshape(*inputs.shape[:-1], -1)
    return found


def _convolution(
    module: nn.Conv1d | nn.Conv2d | nn.Conv3d,
    inputs: Tensor,
    names: Mapping[str, str],
    directions: SampleDirections,
) -> dict[str, Tensor]:
    samples, found = len(inputs), {}
    if "weight" in names:
        own = directions.matrix(names["weight"], module.out_channels, module.weight[0].numel())
        padded = pad(module, inputs)
        # Every sample has kernels of its own: as many groups of one convolution.
        products = _CONVOLUTIONS[type(module)](
            padded.reshape(1, -1, *padded.shape[2:]),
            own.kernels.reshape(-1, *module.weight.shape[1:]),
            stride=module.stride,
            dilation=module.dilation,
            groups=samples,
        )
        spatial = products.shape[2:]
        tangent = own.of_products(products.reshape(samples, own.kernels.shape[1], -1))
        found[names["weight"]] = tangent.reshape(samples, -1, *spatial)
    if "bias" in names:
        shift = directions.vector(names["bias"], module.out_channels)
        found[names["bias"]] = shift.reshape(*shift.shape, *[1] * len(module.kernel_size))
    return found


def _embedding(
    module: nn.Embedding, inputs: Tensor, names: Mapping[str, str], directions: SampleDirections
) -> dict[str, Tensor]:
    if module.max_norm is not None:
        raise ValueError("an embedding that renormalises its rows is not linear in them")
    tokens = inputs.reshape(len(inputs), -1)
    tangent = directions.matrix(names["weight"], *module.weight.shape).looked_up(tokens)
    if module.padding_idx is not None:  # torch gives the padding row no gradient
        tangent = tangent * (tokens != module.padding_idx)[..., None]
    return {names["weight"]: tangent.reshape(*inputs.shape, -1)}


def _affine(module: Any, inputs: Tensor, names: Mapping[str, str], directions: SampleDirections) -> dict[str, Tensor]:
    found = {}
    for local, full in names.items():
        shape = module.get_parameter(local).shape
        signs = directions.vector(full, shape.numel())
        if isinstance(module, CHANNELS_LAST):
            signs = signs.reshape(len(signs), *[1] * (inputs.ndim - 1 - len(shape)), *shape)
        else:
            signs = signs.reshape(*signs.shape, *[1] * (inputs.ndim - 2))
        found[full] = signs * STANDARDISED[type(module)](module, inputs) if local == "weight" else signs
    return found


_RULES: dict[type[nn.Module], TangentRule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
}
