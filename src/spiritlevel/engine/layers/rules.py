"""What is known of each layer type: each sample's gradient from what went in and what is passed back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.engine.layers.sample_gradients import (
    ConvolutionGradients,
    DirectGradients,
    IndexedGradients,
    OuterGradients,
    Poolings,
    SampleGradients,
    concatenated,
    pad,
)
from spiritlevel.engine.layers.transposed_convolutions import TransposedConvolution, TransposedConvolutionGradients
from spiritlevel.inputs.input_first import is_input_first

Gradients = dict[str, SampleGradients]
FromDeltas = Callable[[list[Tensor]], Gradients]
# A rule looks at the inputs of a module's calls once a batch, and then turns the gradients of the calls' outputs, for
# any number of columns (K, B, ...), into the gradients of the module's parameters.  Several calls only add positions.
# A convolution also takes gradients of what a max-pooling made of its output, with the pooling of each call.
LayerRule = Callable[..., FromDeltas]


def _linear(module: nn.Linear, inputs: list[Tensor]) -> FromDeltas:
    joined = concatenated([a.reshape(len(a), -1, a.shape[-1]) for a in inputs], 1)[:, None]

    def gradients(deltas: list[Tensor]) -> Gradients:
        delta = concatenated([d.reshape(*d.shape[:2], -1, d.shape[-1]) for d in deltas], 2)
        found: Gradients = {"weight": OuterGradients(joined, delta[:, :, None], module.weight.shape)}
        if module.bias is not None:
            found["bias"] = DirectGradients(delta.sum(2))
        return found

    return gradients


def _convolution(
    module: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: list[Tensor], poolings: Poolings | None = None
) -> FromDeltas:
    known = poolings or [None] * len(inputs)
    padded = [pad(module, a) for a in inputs]

    def gradients(deltas: list[Tensor]) -> Gradients:
        deltas = [d.flatten(3) for d in deltas]
        found: Gradients = {"weight": ConvolutionGradients(module, padded, deltas, known)}
        if module.bias is not None:
            found["bias"] = DirectGradients(sum((d.sum(3) for d in deltas[1:]), deltas[0].sum(3)))
        return found

    return gradients


def _transposed_convolution(module: TransposedConvolution, inputs: list[Tensor]) -> FromDeltas:
    def gradients(deltas: list[Tensor]) -> Gradients:
        found: Gradients = {"weight": TransposedConvolutionGradients(module, inputs, deltas)}
        if module.bias is not None:
            found["bias"] = DirectGradients(torch.stack([d.flatten(3).sum(3) for d in deltas]).sum(0))
        return found

    return gradients


def _embedding(module: nn.Embedding, inputs: list[Tensor]) -> FromDeltas:
    tokens = concatenated([a.reshape(len(a), -1) for a in inputs], 1)

    def gradients(deltas: list[Tensor]) -> Gradients:
        delta = concatenated([d.reshape(*d.shape[:2], -1, d.shape[-1]) for d in deltas], 2)
        if module.padding_idx is not None:  # torch gives the padding row no gradient
            delta = delta * (tokens != module.padding_idx)[..., None]
        return {"weight": IndexedGradients(tokens, delta, module.weight.shape)}

    return gradients


# Normalisations, γ·x̂ + β, and what gives their x̂.
STANDARDISED: dict[type[nn.Module], Callable[[Any, Tensor], Tensor]] = {
    nn.BatchNorm1d: lambda m, a: F.batch_norm(a, m.running_mean, m.running_var, eps=m.eps),
    nn.BatchNorm2d: lambda m, a: F.batch_norm(a, m.running_mean, m.running_var, eps=m.eps),
    nn.BatchNorm3d: lambda m, a: F.batch_norm(a, m.running_mean, m.running_var, eps=m.eps),
    nn.LayerNorm: lambda m, a: F.layer_norm(a, m.normalized_shape, eps=m.eps),
    nn.RMSNorm: lambda m, a: F.rms_norm(a, m.normalized_shape, eps=m.eps),
    nn.GroupNorm: lambda m, a: F.group_norm(a, m.num_groups, eps=m.eps),
}
CHANNELS_LAST = (nn.LayerNorm, nn.RMSNorm)  # of these, whose weights sit on the last dimensions


def _affine(standardise: Callable[[Any, Tensor], Tensor]) -> LayerRule:
    """Return the rule of a normalisation's γ·x̂ + β, where ``standardise`` gives x̂."""

    def rule(module: Any, inputs: list[Tensor]) -> FromDeltas:
        standardised = [standardise(module, a) for a in inputs]

        def gradients(deltas: list[Tensor]) -> Gradients:
            def total(tensors: list[Tensor]) -> DirectGradients:
                return DirectGradients(torch.stack([_to_channels(module, t) for t in tensors]).sum(0))

            found: Gradients = {"weight": total([d * x for d, x in zip(deltas, standardised)])}
            if getattr(module, "bias", None) is not None:
                found["bias"] = total(deltas)
            return found

        return gradients

    return rule


def _to_channels(module: Any, values: Tensor) -> Tensor:
    """Sum (K, B, ...) over positions: LayerNorm's weights sit on the last dimensions, the others' on the channels."""
    if isinstance(module, CHANNELS_LAST):
        return values.reshape(*values.shape[:2], -1, *module.weight.shape).sum(2)
    return values.reshape(*values.shape[:3], -1).sum(3)


def _prelu(module: nn.PReLU, inputs: list[Tensor]) -> FromDeltas:
    below = [a.clamp(max=0) for a in inputs]

    def gradients(deltas: list[Tensor]) -> Gradients:
        products = [d * a for d, a in zip(deltas, below)]
        if module.num_parameters == 1:
            summed = [t.flatten(2).sum(2, keepdim=True) for t in products]
        else:
            summed = [t.reshape(*t.shape[:3], -1).sum(3) for t in products]
        return {"weight": DirectGradients(torch.stack(summed).sum(0))}

    return gradients


_RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.ConvTranspose1d: _transposed_convolution,
    nn.ConvTranspose2d: _transposed_convolution,
    nn.ConvTranspose3d: _transposed_convolution,
    nn.Embedding: _embedding,
    nn.PReLU: _prelu,
    **{kind: _affine(standardise) for kind, standardise in STANDARDISED.items()},
}


def rule_of(module: nn.Module) -> LayerRule | None:
    """Return the rule of a module, None where there is none.

    Only the type itself counts: a subclass may compute something else.  Whatever a rule claims is compared with
    autograd before it is used, so a wrong claim costs time, not truth.
    """
    if type(module) in _RULES:
        return _RULES[type(module)]
    if type(module).__name__ == "NonDynamicallyQuantizableLinear":
        return _linear
    if is_input_first(module):
        from spiritlevel.engine.layers.input_first_gradients import input_first_rule

        return input_first_rule
    return None
