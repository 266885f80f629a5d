"""What layers with parameters do to scales: linear maps, convolutions, embeddings, normalisations.

For a linear map y_i = Σ_j W_ij x_j + b_i the weight takes s_i/s_j and the bias s_i, so the scales of its inputs and
outputs are independent: that is where all freedom comes from.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spiritlevel.analyses.symmetries.scales import FIXED, Labels
from spiritlevel.analyses.symmetries.walking import CannotFollow, Stored, Value, Walk, WalkRule, registering
from spiritlevel.inputs.torch_internals import aten

LAYER_RULES: dict[str, WalkRule] = {}
rule = registering(LAYER_RULES)


@rule("linear")
def linear(walk: Walk, a: dict[str, Any]) -> Labels:
    """Rows of the weight take the output's scale, columns give back the input's."""
    return _linear(walk, walk.value(a["input"]), a["weight"], a["bias"])


@rule("mm", "matmul", "bmm")
def matmul(walk: Walk, a: dict[str, Any]) -> Labels:
    """A product with a parameter is a linear layer; of two activations, contracted scales must cancel."""
    x, y = a["self"], a.get("mat2", a.get("other"))
    if isinstance(y, Stored) and not y.is_buffer and len(y.shape) == 2:
        return _linear(walk, walk.value(x), Stored(y.name, y.shape, False, not y.flipped), None)
    x, y = walk.value(x), walk.value(y)
    if len(x.shape) < 2 or len(y.shape) < 2:
        raise CannotFollow("a product with a vector is not followed")
    rank = max(len(x.shape), len(y.shape))
    left, right = (v.labels.reshape((1,) * (rank - v.labels.ndim) + v.labels.shape) for v in (x, y))
    if x.is_fixed:
        return np.broadcast_to(
            walk.level(y, -2), np.broadcast_shapes((*left.shape[:-2], 1, 1), right[..., :1, :].shape)
        )
    if y.is_fixed:
        return np.broadcast_to(walk.level(x, -1), np.broadcast_shapes((*right.shape[:-2], 1, 1), left[..., :1].shape))
    rows, columns = walk.level(x, -2), walk.level(y, -1)
    pairs = np.broadcast_arrays(rows, np.swapaxes(columns, -1, -2))
    out = walk.equations.fresh(*pairs[0].shape[:-1], 1)
    walk.equations.product((1, 1, -1), *pairs, out)
    return out


@rule("addmm")
def addmm(walk: Walk, a: dict[str, Any]) -> Labels:
    """A linear layer as bias + input·weightᵀ."""
    weight = a["mat2"]
    if not isinstance(weight, Stored) or a["beta"] != 1:
        raise CannotFollow("addmm without a weight of the model is not followed")
    flipped = Stored(weight.name, weight.shape, weight.is_buffer, not weight.flipped)
    return _linear(walk, walk.value(a["mat1"]), flipped, a["self"])


def _linear(walk: Walk, x: Value, weight: Any, bias: Any) -> Labels:
    columns = walk.along(x, -1)
    leading = (1,) * (len(x.shape) - 1)
    if not isinstance(weight, Stored) or weight.is_buffer:
        out = _mixed(walk, columns[None, :], walk.value(weight).labels)
        return _with_bias(walk, out, bias).reshape(*leading, -1)
    out = walk.produce(weight.layer, weight.shape[1] if weight.flipped else weight.shape[0])
    rows = out[:, None], columns[None, :]
    walk.use(weight, *((sign, each.T if weight.flipped else each) for sign, each in zip((1, -1), rows)))
    return _with_bias(walk, out, bias).reshape(*leading, -1)


def _mixed(walk: Walk, grouped: Labels, weight: Labels) -> Labels:
    """Return the scales after a weight that is fixed or computed: it mixes the inputs of a group, of one common scale.

    Rows of a computed weight may have scales of their own (the length g of weight normalisation).
    """
    walk.equations.same(grouped, grouped[:, :1])
    if weight.size != len(weight):
        raise CannotFollow("its weight is computed from parameters in a way that is not followed")
    common, rows = grouped[:, 0], weight.ravel()
    if (rows == FIXED).all():
        return common
    if len(common) > 1:
        raise CannotFollow("its weight is computed from parameters in a way that is not followed")
    out = walk.equations.fresh(len(rows))
    walk.equations.product((1, 1, -1), common, rows, out)
    return out


@rule(aten.WEIGHT_NORM)
def weight_normalisation(walk: Walk, a: dict[str, Any]) -> Labels:
    """W = g·v/‖v‖: the length g takes every scale, the direction v none."""
    direction = a["v"]
    walk.use(direction, (1, np.full((1,) * len(direction.shape), FIXED, dtype=np.int64)))
    return walk.value(a["g"]).labels


def _with_bias(walk: Walk, out: Labels, bias: Any) -> Labels:
    if isinstance(bias, Stored) and not bias.is_buffer and bias.shape == out.shape:
        walk.use(bias, (1, out))
    elif bias is not None:
        added = walk.value(bias).labels
        if isinstance(bias, Value) and bias.is_fixed:
            walk.leave_alone("it adds a constant")
        walk.equations.same(out, added)
    return out


@rule("conv1d", "conv2d", "conv3d", "convolution")
def convolution(walk: Walk, a: dict[str, Any]) -> Labels:
    """Filters take their output channel's scale and give back that of the input channels of their group."""
    x, weight, groups = walk.value(a["input"]), a["weight"], a["groups"]
    channel_axis = len(x.shape) - len(weight.shape) + 1
    channels = walk.along(x, channel_axis)
    out = _filters(walk, channels.reshape(groups, -1), weight, bool(a.get("transposed")))
    shape = [-1 if axis == channel_axis else 1 for axis in range(len(x.shape))]
    return _with_bias(walk, out, a["bias"]).reshape(shape)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def transposed_convolution(walk: Walk, a: dict[str, Any]) -> Labels:
    """As a convolution, with the weight's first axis over input channels."""
    return convolution(walk, {**a, "transposed": True})


def _filters(walk: Walk, grouped: Labels, weight: Any, transposed: bool) -> Labels:
    """Return the labels of the output channels; those of the inputs come as (groups, channels of a group)."""
    groups = len(grouped)
    per_group = weight.shape[1] if transposed else weight.shape[0] // groups
    if not isinstance(weight, Stored) or weight.is_buffer:
        if transposed and not walk.value(weight).is_fixed:
            raise CannotFollow("its weight is computed from parameters in a way that is not followed")
        out = _mixed(walk, grouped, walk.value(weight).labels)
        return np.repeat(out, per_group) if len(out) == groups else out
    out = walk.produce(weight.layer, groups * per_group)
    if transposed:  # weight (in, out/groups, ...)
        rows = np.repeat(out.reshape(groups, -1), grouped.shape[1], axis=0) if groups > 1 else out[None, :]
        columns = grouped.reshape(-1, 1)
    else:  # weight (out, in/groups, ...)
        rows = out[:, None]
        columns = np.repeat(grouped, per_group, axis=0) if groups > 1 else grouped
    tail = (1,) * (len(weight.shape) - 2)
    walk.use(weight, (1, rows.reshape(rows.shape + tail)), (-1, columns.reshape(columns.shape + tail)))
    return out


@rule("embedding")
def embedding(walk: Walk, a: dict[str, Any]) -> Labels:
    """The columns of the table are scaled alike for every word."""
    weight = a["weight"]
    if not isinstance(weight, Stored) or weight.is_buffer:
        return walk.level(walk.value(weight), 0).reshape((1,) * len(a["indices"].shape) + (-1,))
    out = walk.produce(weight.layer, weight.shape[1])
    walk.use(weight, (1, out[None, :]))
    return out.reshape((1,) * len(a["indices"].shape) + (-1,))


# Normalisations


@rule("batch_norm")
def batch_norm(walk: Walk, a: dict[str, Any]) -> Labels:
    """In eval mode the running mean takes the input's scale a, γ takes b/a and β takes b; the variance is left alone.

    Dividing by √(σ² + ε) is exact only with σ² untouched: a scaled variance would meet an unscaled ε.
    """
    x = walk.value(a["input"])
    channels = walk.along(x, 1)
    batch_statistics = a["training"] or a["running_mean"] is None
    if batch_statistics:
        walk.equations.normalised(channels, a["eps"], "BatchNorm with batch statistics")
        channels = np.full_like(channels, FIXED)
    else:
        walk.use(a["running_mean"], (1, channels))
    out = _affine(walk, channels, a["weight"], a["bias"])
    return out.reshape([1, -1] + [1] * (len(x.shape) - 2))


@rule("instance_norm")
def instance_norm(walk: Walk, a: dict[str, Any]) -> Labels:
    """Each channel is normalised by its own statistics: free before, but for ε."""
    if not a["use_input_stats"]:
        return batch_norm(walk, {**a, "training": False})
    x = walk.value(a["input"])
    channels = walk.along(x, 1)
    walk.equations.normalised(channels, a["eps"], "InstanceNorm")
    out = _affine(walk, np.full_like(channels, FIXED), a["weight"], a["bias"])
    return out.reshape([1, -1] + [1] * (len(x.shape) - 2))


@rule("group_norm")
def group_norm(walk: Walk, a: dict[str, Any]) -> Labels:
    """One common scale per group is free before it, but for ε."""
    x = walk.value(a["input"])
    channels = walk.along(x, 1)
    groups = channels.reshape(a["num_groups"], -1)
    walk.equations.same(groups, groups[:, :1])
    walk.equations.normalised(channels, a["eps"], "GroupNorm")
    out = _affine(walk, np.full_like(channels, FIXED), a["weight"], a["bias"])
    return out.reshape([1, -1] + [1] * (len(x.shape) - 2))


@rule("layer_norm", "rms_norm")
def layer_norm(walk: Walk, a: dict[str, Any]) -> Labels:
    """One common scale is free before it, but for ε; after it every feature is."""
    x = walk.value(a["input"])
    axes = range(-len(a["normalized_shape"]), 0)
    name = "RMSNorm" if "rms" in str(a["node"].target) else "LayerNorm"
    walk.equations.normalised(walk.level(x, *axes), a["eps"], name)
    fixed = np.full(a["normalized_shape"], FIXED, dtype=np.int64)
    out = _affine(walk, fixed, a["weight"], a.get("bias"))
    return out.reshape((1,) * (len(x.shape) - out.ndim) + out.shape)


def _affine(walk: Walk, before: Labels, weight: Any, bias: Any) -> Labels:
    if isinstance(weight, Stored) and not weight.is_buffer and weight.shape == before.shape:
        out = walk.produce(weight.layer, *weight.shape)
        walk.use(weight, (1, out), (-1, before))
    elif weight is None:
        out = before
    else:
        raise CannotFollow("its weight is computed in a way that is not followed")
    return _with_bias(walk, out, bias)
