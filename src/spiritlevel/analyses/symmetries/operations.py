"""What operations without parameters do to scales, and the table of all rules.

Positively homogeneous operations hand scales on, sums ask for equal scales, products multiply them, and operations that
only move entries are run on the labels themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from spiritlevel.analyses.symmetries.layer_rules import LAYER_RULES
from spiritlevel.analyses.symmetries.scales import FIXED, Labels
from spiritlevel.analyses.symmetries.walking import CannotFollow, Stored, Value, Walk, WalkRule, registering
from spiritlevel.inputs.torch_internals import aten

RULES: dict[str, WalkRule] = dict(LAYER_RULES)
rule = registering(RULES)


# Homogeneous operations: the scale goes through


@rule(
    "relu", "leaky_relu", "contiguous", "clone", "alias", "detach", "lift_fresh_copy", "neg", "abs", "to",
    aten.COPY_OF_ANOTHER_TYPE, "type_as", "detach_copy", aten.METADATA_CHECK, "zero",
)  # fmt: skip
def pass_through(walk: Walk, a: dict[str, Any]) -> Labels:
    """f(s·x) = s·f(x) for every s > 0, entry by entry."""
    return walk.value(a.get("self", a.get("input", a.get("a")))).labels


@rule("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu")
def random_pass_through(walk: Walk, a: dict[str, Any]) -> Labels:
    """Dropout that is switched off does nothing; a randomised ReLU that is switched off is a leaky one."""
    if a.get("train", a.get("training")):
        raise CannotFollow("it draws random numbers")
    return walk.value(a.get("input", a.get("self"))).labels


@rule("prelu")
def prelu(walk: Walk, a: dict[str, Any]) -> Labels:
    """Homogeneous whatever the learned slope, which keeps its value."""
    weight = a["weight"]
    if isinstance(weight, Stored) and not weight.is_buffer:
        walk.use(weight, (1, np.full((1,) * len(weight.shape), FIXED, dtype=np.int64)))
    return walk.value(a["self"]).labels


@rule("clamp", "clamp_min", "threshold", "hardtanh")
def one_sided_clamp(walk: Walk, a: dict[str, Any]) -> Labels:
    """Clamping at 0 from below is a ReLU; any other bound has a scale of its own."""
    low = a.get("min", a.get("threshold", a.get("min_val")))
    high = a.get("max", a.get("value", a.get("max_val")))
    if low != 0 or high not in (None, 0 if "threshold" in a else None):
        raise CannotFollow("it clamps at a fixed value")
    return walk.value(a["self"]).labels


_POOLS = [f"{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp") for d in (1, 2, 3)]
_RESIZES = ["upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d",
            "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"]  # fmt: skip


@rule(*_POOLS, *(f"{pool}_with_indices" for pool in _POOLS), *_RESIZES, aten.ADAPTIVE_AVERAGE_POOL_2D)
def pooling(walk: Walk, a: dict[str, Any]) -> Any:
    """Maxima and means of equally scaled entries; scales must be equal over the places pooled together."""
    x = walk.value(a.get("self", a.get("input")))
    name = str(a["node"].target)
    spatial = next(int(d) for d in "123" if f"{d}d" in name)
    labels = walk.level(x, *range(-spatial, 0))
    several = isinstance(a["node"].meta["val"], list | tuple)
    return [labels, np.full_like(labels, FIXED)] if several else labels


@rule("mean", "sum", "amax", "amin", "max", "min", "median", "cumsum", "sort")
def reduction(walk: Walk, a: dict[str, Any]) -> Any:
    """Over axes of equal scale; the scale goes through."""
    if a.get("other") is not None:
        return extremum(walk, a)
    x = walk.value(a["self"])
    axes = a.get("dim", a.get("dims"))
    axes = range(len(x.shape)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    labels = walk.level(x, *axes)
    result = a["node"].meta["val"]
    several = isinstance(result, list | tuple)
    if len((result[0] if several else result).shape) < len(x.shape):
        labels = labels.squeeze(tuple(axis % len(x.shape) for axis in axes))
    return [labels, np.full_like(labels, FIXED)] if several else labels


# Sums and products


@rule("add", "sub", "rsub", "where")
def addition(walk: Walk, a: dict[str, Any]) -> Labels:
    """Terms of a sum have equal scales; a constant that is not 0 has scale 1."""
    operands = [a["self"], a["other"]]
    for constant in operands:
        if isinstance(constant, int | float) and constant != 0:
            raise CannotFollow("it adds a constant")
    values = [walk.value(each) for each in operands if not isinstance(each, int | float)]
    if len(values) == 1:
        return values[0].labels
    first, second = values
    if first.is_fixed != second.is_fixed:
        walk.leave_alone("it adds a tensor of fixed scale (the input or a constant)")
    walk.equations.same(first.labels, second.labels)
    return np.broadcast_arrays(first.labels, second.labels)[int(first.is_fixed)]


@rule("maximum", "minimum", "copy")
def extremum(walk: Walk, a: dict[str, Any]) -> Labels:
    """Both sides have equal scales, as in a sum; so have what is overwritten and what overwrites it."""
    return addition(walk, {**a, "other": a.get("other", a.get("src"))})


@rule("mul", "div", "true_divide")
def multiplication(walk: Walk, a: dict[str, Any]) -> Labels:
    """Scales multiply; a learned factor can take up whatever ratio of scales stands before and after it."""
    if a.get("rounding_mode") is not None:
        raise CannotFollow("it rounds")
    sign = 1 if str(a["node"].target).startswith("aten.mul") else -1
    first, second = a["self"], a["other"]
    if sign == 1 and isinstance(first, Stored):
        first, second = second, first
    if isinstance(second, Stored) and not second.is_buffer and isinstance(first, Value) and not second.flipped:
        before = first.labels
        inside = np.broadcast_shapes(before.shape, second.shape)
        if (
            before.ndim >= len(second.shape)
            and inside[before.ndim - len(second.shape) :] == second.shape
            and all(size == 1 for size in before.shape[: before.ndim - len(second.shape)])
        ):
            out = walk.produce(second.layer, *second.shape)
            trimmed = before.reshape(before.shape[before.ndim - len(second.shape) :])
            walk.use(second, (sign, out), (-sign, trimmed))
            return out.reshape((1,) * (before.ndim - out.ndim) + out.shape)
    left, right = walk.value(first), walk.value(second)
    if right.is_fixed:
        return np.broadcast_arrays(left.labels, right.labels)[0]
    if left.is_fixed and sign == 1:
        return np.broadcast_arrays(left.labels, right.labels)[1]
    shape = np.broadcast_shapes(left.labels.shape, right.labels.shape)
    out = walk.equations.fresh(*shape)
    walk.equations.product((1, sign, -1), left.labels, right.labels, out)
    return out


@rule("glu")
def gate(walk: Walk, a: dict[str, Any]) -> Labels:
    """The first half is multiplied by a sigmoid of the second, whose scale is fixed."""
    x = walk.value(a["self"])
    first, second = np.split(walk.along(x, a["dim"]), 2)
    walk.leave_alone("its gate is a sigmoid")
    walk.equations.same(second, FIXED)
    return first.reshape([-1 if axis == a["dim"] % len(x.shape) else 1 for axis in range(len(x.shape))])


@rule("square", "pow")
def power(walk: Walk, a: dict[str, Any]) -> Labels:
    """A whole power multiplies the scale with itself."""
    exponent = a.get("exponent", 2)
    x = walk.value(a["self"])
    if not isinstance(exponent, int | float) or int(exponent) != exponent:
        raise CannotFollow("it takes a power that is not a whole number")
    if x.is_fixed:
        return x.labels
    out = walk.equations.fresh(*x.labels.shape)
    walk.equations.product((int(exponent), -1), x.labels, out)
    return out


@rule("scaled_dot_product_attention")
def attention(walk: Walk, a: dict[str, Any]) -> Labels:
    """Scores q·k stay the same when every query feature's scale cancels its key's; values hand theirs on."""
    query, key, value = (walk.value(a[name]) for name in ("query", "key", "value"))
    if a.get("enable_gqa") or a["dropout_p"] or query.shape[:-2] != key.shape[:-2]:
        raise CannotFollow("this form of attention is not followed")
    if a["attn_mask"] is not None:
        walk.fix(a["attn_mask"], "it is added to the attention scores")
    walk.equations.product((1, 1), walk.level(query, -2), walk.level(key, -2))
    return walk.level(value, -2)


@rule("zeros", "zeros_like", "new_zeros")
def zeros(walk: Walk, a: dict[str, Any]) -> Labels:
    """Zeros have any scale."""
    return walk.equations.fresh(*(1,) * len(a["node"].meta["val"].shape))


# Operations that only move entries: run on the labels themselves


@rule("constant_pad_nd", "pad")
def padding(walk: Walk, a: dict[str, Any]) -> Labels:
    """Padding with zeros, which have any scale, or with copies of the border."""
    x = walk.value(a["self"])
    if a.get("mode", "constant") == "constant" and (a.get("value") or 0) != 0:
        raise CannotFollow("it pads with a constant")
    labels, pad = x.labels, list(a["pad"])
    for axis, (before, after) in enumerate(zip(pad[::2], pad[1::2])):
        axis = labels.ndim - 1 - axis
        if (labels.shape[axis] == 1 and x.shape[axis] > 1) or before == after == 0:
            continue
        if a.get("mode", "constant") != "constant" or min(before, after) < 0:
            labels = walk.level(Value(labels, labels.shape), axis)
            continue
        ends = [list(labels.shape), list(labels.shape)]
        ends[0][axis], ends[1][axis] = before, after
        labels = np.concatenate([walk.equations.fresh(*ends[0]), labels, walk.equations.fresh(*ends[1])], axis=axis)
    return labels


@rule(
    "view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "numpy_T", "unsqueeze", "squeeze", "expand",
    "expand_as", "select", "slice", "cat", "concat", "stack", "split", "split_with_sizes", "chunk", "unbind", "narrow",
    "movedim", "repeat", "repeat_interleave", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle", "tile",
    "swapaxes", "tensor_split", "view_as", "reshape_as", "im2col", "unfold", "adjoint", "mT", "hstack", "vstack",
    "flip", "roll", aten.VIEW_UNCHECKED,
)  # fmt: skip
def moving(walk: Walk, a: dict[str, Any]) -> Any:
    """Entries keep their scale wherever they go: the same operation, run on the labels."""
    node = a["node"]
    first = a.get("self")
    if isinstance(first, Stored) and len(first.shape) == 2 and str(node.target) in _TRANSPOSES:
        return Stored(first.name, first.shape, first.is_buffer, not first.flipped)
    known: dict[int, torch.Tensor] = {}

    def labels_of(operand: Any) -> Any:
        if isinstance(operand, Value | Stored):
            value = walk.value(operand)
            full = np.broadcast_to(value.labels, value.shape)
            return known.setdefault(id(operand), torch.from_numpy(full.astype(np.float64)))
        if isinstance(operand, list | tuple):
            return [labels_of(each) for each in operand]
        return operand

    schema: Any = aten.schema_of(node.target)
    arguments = {each.name: labels_of(a[each.name]) for each in schema.arguments if each.name in a}
    positional = [arguments.pop(each.name) for each in schema.arguments if not each.kwarg_only]
    operation = torch.reshape if str(node.target) in _VIEWS else node.target
    result = operation(*positional, **arguments)
    if isinstance(result, torch.Tensor):
        return _compact(result)
    return [_compact(each) for each in result]


# Labels need not lie in memory as the activations do, and a view asks that they do.
_VIEWS = {"aten.view.default", f"aten.{aten.VIEW_UNCHECKED}.default"}
_TRANSPOSES = {"aten.t.default", "aten.transpose.int", "aten.numpy_T.default"}


def _compact(labels: torch.Tensor) -> Labels:
    """Shorten to length 1 every axis along which the labels are constant."""
    array = labels.numpy().astype(np.int64)
    for axis in range(array.ndim):
        first = array.take([0], axis=axis)
        if array.shape[axis] > 1 and (array == first).all():
            array = first
    return array
