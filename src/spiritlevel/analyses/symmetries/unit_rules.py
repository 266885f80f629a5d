"""Which hidden units can change places: the same walk over the graph, with labels that name units instead of scales.

Equal labels mark entries that must move together. Any function applied entry by entry keeps the freedom, homogeneous or
not, so there is more of it than for scales; what mixes channels by their position (groups, attention heads) has none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from spiritlevel.analyses.symmetries.layer_rules import LAYER_RULES
from spiritlevel.analyses.symmetries.operations import RULES
from spiritlevel.analyses.symmetries.scales import FIXED, Classes, Labels
from spiritlevel.analyses.symmetries.walking import CannotFollow, Stored, Value, Walk, WalkRule, registering
from spiritlevel.inputs.torch_internals import aten, trees

_AS_SCALES = (
    "addmm", "embedding", "view", "reshape", "flatten", "unflatten", "permute", "transpose", "t", "unsqueeze",
    "squeeze", "expand", "select", "slice", "cat", "concat", "split", "split_with_sizes", "chunk", "unbind", "narrow",
    aten.VIEW_UNCHECKED, "contiguous", "clone", "alias", "detach", "to", aten.COPY_OF_ANOTHER_TYPE, "dropout",
    "feature_dropout", "lift_fresh_copy", "constant_pad_nd", "pad", "zeros", "zeros_like", aten.METADATA_CHECK,
)  # fmt: skip
# Not every release of torch tags all of these as working entry by entry.
_ACTIVATIONS = frozenset(
    ("relu", "leaky_relu", "relu6", "rrelu", "elu", "selu", "celu", "gelu", "silu", "mish", "tanh", "sigmoid",
     "log_sigmoid", "hardswish", "hardtanh", "hardsigmoid", "softplus", "softsign", "threshold")
)  # fmt: skip
_POOLING = [name for name in RULES if "pool" in name or "upsample" in name]
UNIT_RULES: dict[str, WalkRule] = {name: RULES[name] for name in (*_AS_SCALES, *_POOLING)}
rule = registering(UNIT_RULES)


@dataclass
class UnitWalk(Walk):
    """A walk whose labels name units: a second use of a tensor must move it in the same way, axis by axis."""

    rules: dict[str, WalkRule] = field(default_factory=lambda: UNIT_RULES)

    def rule_for(self, name: str, node: torch.fx.Node) -> WalkRule | None:
        """Whatever works entry by entry follows one rule."""
        tagged = torch.Tag.pointwise in getattr(node.target, "tags", ())
        if name not in self.rules and (tagged or name.removesuffix("_") in _ACTIVATIONS):
            return pointwise
        return self.rules.get(name)

    def use(self, tensor: Stored, *terms: tuple[int, Labels]) -> None:
        """Say how a stored tensor moves; a second use must agree with the first."""
        self.equations.read += [labels for sign, labels in terms if sign < 0]
        by_axis = sorted(terms, key=lambda term: [size == 1 for size in term[1].shape])
        known = self.uses.setdefault(tensor.name, by_axis)
        if [labels.shape for _, labels in known] == [labels.shape for _, labels in by_axis]:
            for (_, first), (_, second) in zip(known, by_axis):
                self.equations.same(first, second)
        else:
            for _, labels in (*known, *by_axis):
                self.equations.same(labels, FIXED)


def pointwise(walk: Walk, a: dict[str, Any]) -> Labels:
    """Entries that meet move together; a constant holds in place the entries it tells apart."""
    operands = trees.leaves(
        [each for key, each in a.items() if key != "node"], is_leaf=lambda each: isinstance(each, Value | Stored)
    )
    values = [each for each in operands if isinstance(each, Value)]
    moving = [each for each in values if not each.is_fixed]
    rank = len(a["node"].meta["val"].shape)
    if not moving:
        for stored in (each for each in operands if isinstance(each, Stored)):
            walk.use(stored, (1, np.full((1,) * len(stored.shape), FIXED, dtype=np.int64)))
        return np.full((1,) * rank, FIXED, dtype=np.int64)
    out = np.broadcast_arrays(*(each.labels for each in moving), np.zeros((1,) * rank))[0]
    for each in moving:
        walk.equations.same(out, each.labels)
    for each in values:
        if each.is_fixed and any(n > 1 and m > 1 for n, m in zip(each.shape[::-1], out.shape[::-1])):
            walk.leave_alone("it meets a tensor whose entries keep their places")
            walk.equations.same(out, FIXED)
    for stored in (each for each in operands if isinstance(each, Stored)):
        labels = _restricted(out, stored.shape)
        if labels is None or (stored.is_buffer and (labels != FIXED).any()):
            walk.equations.same(out, FIXED)
            labels = np.full((1,) * len(stored.shape), FIXED, dtype=np.int64)
        if not stored.is_buffer:
            walk.use(stored, (1, labels))
    return out


def _restricted(labels: Labels, shape: tuple[int, ...]) -> Labels | None:
    """Return the labels of a parameter that meets an activation, or nothing where they cannot be told."""
    varying = [axis for axis in range(labels.ndim) if labels.shape[axis] > 1]
    offset = labels.ndim - len(shape)
    met = [axis for axis in varying if axis >= offset and shape[axis - offset] > 1]
    if not met:
        return np.full((1,) * len(shape), FIXED, dtype=np.int64)
    if met != varying:
        return None
    return labels.reshape(labels.shape[offset:])


@rule("linear")
def linear(walk: Walk, a: dict[str, Any]) -> Labels:
    """Rows move with the units produced, columns with those read."""
    if isinstance(a["weight"], Stored) and not a["weight"].is_buffer:
        labels: Labels = LAYER_RULES["linear"](walk, a)
        return labels
    raise CannotFollow("its weight is not a parameter")


@rule("mm", "matmul")
def matmul(walk: Walk, a: dict[str, Any]) -> Labels:
    """A product with a parameter is a linear layer; of two activations, sums run over places."""
    if isinstance(a.get("mat2", a.get("other")), Stored):
        labels: Labels = LAYER_RULES["matmul"](walk, a)
        return labels
    raise CannotFollow("a product of two activations holds units in place")


@rule("glu")
def gate(walk: Walk, a: dict[str, Any]) -> Labels:
    """A unit and its gate move together."""
    x = walk.value(a["self"])
    first, second = np.split(walk.along(x, a["dim"]), 2)
    walk.equations.same(first, second)
    return first.reshape([-1 if axis == a["dim"] % len(x.shape) else 1 for axis in range(len(x.shape))])


@rule("prelu")
def prelu(walk: Walk, a: dict[str, Any]) -> Labels:
    """Slopes of channels move with them."""
    x, weight = walk.value(a["self"]), a["weight"]
    if isinstance(weight, Stored) and weight.shape != (1,):
        walk.use(weight, (1, walk.along(x, 1)))
    return x.labels


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")
def convolution(walk: Walk, a: dict[str, Any]) -> Labels:
    """Filters move with their output channel; in a depthwise convolution also with their input channel."""
    weight, groups = a["weight"], a["groups"]
    name = aten.operation_name(a["node"].target)
    if not isinstance(weight, Stored) or weight.is_buffer:
        raise CannotFollow("its weight is not a parameter")
    if groups == 1:
        labels: Labels = LAYER_RULES[name](walk, a)
        return labels
    x = walk.value(a["input"])
    axis = len(x.shape) - len(weight.shape) + 1
    if groups != x.shape[axis] or "transpose" in name or a.get("transposed"):
        raise CannotFollow("its groups hold channels in place")
    out = np.repeat(walk.along(x, axis), weight.shape[0] // groups)
    walk.use(weight, (1, out.reshape(-1, *(1,) * (len(weight.shape) - 1))))
    if isinstance(a["bias"], Stored):
        walk.use(a["bias"], (1, out))
    return out.reshape([-1 if i == axis else 1 for i in range(len(x.shape))])


@rule("batch_norm", "instance_norm")
def batch_norm(walk: Walk, a: dict[str, Any]) -> Labels:
    """Everything the normalisation stores moves with its channel."""
    x = walk.value(a["input"])
    channels = walk.along(x, 1)
    for name in ("weight", "bias", "running_mean", "running_var"):
        if isinstance(a[name], Stored):
            walk.use(a[name], (1, channels))
    return channels.reshape([1, -1] + [1] * (len(x.shape) - 2))


@rule("layer_norm", "rms_norm")
def layer_norm(walk: Walk, a: dict[str, Any]) -> Labels:
    """Mean and variance do not depend on the order of the features."""
    x = walk.value(a["input"])
    if len(a["normalized_shape"]) != 1:
        raise CannotFollow("it normalises over several axes")
    features = walk.along(x, -1)
    for name in ("weight", "bias"):
        if isinstance(a.get(name), Stored):
            walk.use(a[name], (1, features))
    return features.reshape((1,) * (len(x.shape) - 1) + (-1,))


@rule("mean", "sum", "amax", "amin")
def reduction(walk: Walk, a: dict[str, Any]) -> Labels:
    """Over places the units stay; over the units themselves nothing is left of their order."""
    x = walk.value(a["self"])
    axes = a.get("dim")
    axes = range(len(x.shape)) if axes is None or axes == [] else [axes] if isinstance(axes, int) else axes
    axes = [axis % len(x.shape) for axis in axes]
    varying = [axis for axis in range(len(x.shape)) if x.labels.shape[axis] > 1]
    if set(varying) & set(axes):
        if not set(varying) <= set(axes):
            raise CannotFollow("it sums over some of the units")
        labels = np.full((1,) * len(x.shape), FIXED, dtype=np.int64)
    else:
        labels = x.labels
    return labels if a["keepdim"] else labels.squeeze(tuple(axes))


def exchangeable(state: Walk, classes: Classes) -> list[list[int]]:
    """Return sets of units that can change places: those read equally often at the same places."""
    places: dict[int, Counter[tuple[str, int]]] = {}
    read = {int(each) for labels in state.equations.read for each in np.unique(classes.of_label[labels])}
    for name, terms in state.uses.items():
        for i, (_, labels) in enumerate(terms):
            for each, count in zip(*np.unique(classes.of_label[labels], return_counts=True)):
                places.setdefault(int(each), Counter())[name, i] += int(count)
    alike: dict[frozenset[tuple[tuple[str, int], int]], list[int]] = {}
    for each in sorted(places):
        if each in read - {classes.fixed, classes.output}:
            alike.setdefault(frozenset(places[each].items()), []).append(each)
    return [units for units in alike.values() if len(units) > 1]
