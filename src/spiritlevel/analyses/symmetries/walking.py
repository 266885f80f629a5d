"""Walking over a traced graph, operation by operation, to collect the equations between scales."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from spiritlevel.analyses.symmetries.scales import FIXED, OUTPUT, Equations, Labels
from spiritlevel.analyses.symmetries.tracing import Trace
from spiritlevel.inputs.torch_internals import aten, trees

Terms = list[tuple[int, Labels]]  # a tensor's factor: the product of s^sign over labels broadcast to its shape
TOO_MANY = 2_000_000  # entries beyond which a tensor gets one fixed scale instead of one label per entry


@dataclass(frozen=True)
class Value:
    """An activation: its shape, and its labels with length 1 along every axis on which the scale is constant."""

    labels: Labels
    shape: tuple[int, ...]

    @property
    def is_fixed(self) -> bool:
        """Whether every entry has scale 1 by construction."""
        return bool((self.labels == FIXED).all())


@dataclass(frozen=True)
class Stored:
    """A parameter or buffer of the model, not yet read as an activation; ``flipped`` after a transpose."""

    name: str
    shape: tuple[int, ...]
    is_buffer: bool
    flipped: bool = False

    @property
    def layer(self) -> str:
        """The module that owns it, or its own name at the root."""
        return self.name.rpartition(".")[0] or self.name


class CannotFollow(Exception):
    """An operation is outside what a rule covers: its inputs keep scale 1, for the reason given."""


WalkRule = Callable[["Walk", dict[str, Any]], Any]
SomeRule = TypeVar("SomeRule", bound=WalkRule)


def registering(table: dict[str, WalkRule]) -> Callable[..., Callable[[SomeRule], SomeRule]]:
    """Return a decorator that enters a rule into a table under the names of its ATen operations."""

    def rule(*names: str) -> Callable[[SomeRule], SomeRule]:
        def register(function: SomeRule) -> SomeRule:
            table.update(dict.fromkeys(names, function))
            return function

        return register

    return rule


@dataclass
class Walk:
    """What is known so far: equations, how every stored tensor is scaled, which labels each layer produces."""

    rules: dict[str, WalkRule]
    equations: Equations = field(default_factory=Equations)
    uses: dict[str, Terms] = field(default_factory=dict)
    produced: dict[str, list[Labels]] = field(default_factory=dict)
    left_alone: dict[tuple[str, str], None] = field(default_factory=dict)
    where: str = ""

    def rule_for(self, name: str, node: torch.fx.Node) -> WalkRule | None:
        """Return the rule of an operation, if there is one."""
        return self.rules.get(name)

    def produce(self, layer: str, *shape: int) -> Labels:
        """Return fresh labels for what a layer's parameters produce."""
        labels = self.equations.fresh(*shape)
        self.produced.setdefault(layer, []).append(labels.ravel())
        return labels

    def value(self, operand: Any) -> Value:
        """Read an operand as an activation; a parameter gets one label per entry, a constant scale 1."""
        if isinstance(operand, Value):
            return operand
        if isinstance(operand, Stored):
            shape = operand.shape[::-1] if operand.flipped else operand.shape
            if operand.is_buffer or int(np.prod(shape)) > TOO_MANY:
                if not operand.is_buffer:
                    self.use(operand, (1, _fixed(len(operand.shape))))
                return Value(_fixed(len(shape)), shape)
            labels = self.produce(operand.layer, *operand.shape)
            self.use(operand, (1, labels))
            return Value(labels.T if operand.flipped else labels, shape)
        return Value(_fixed(0), ())

    def use(self, tensor: Stored, *terms: tuple[int, Labels]) -> None:
        """Say how a stored tensor is scaled; a second use of the same tensor must ask for the same factor."""
        self.equations.read += [labels for sign, labels in terms if sign < 0]
        if tensor.name not in self.uses:
            self.uses[tensor.name] = list(terms)
            return
        known = self.uses[tensor.name]
        both = [*known, *((-sign, labels) for sign, labels in terms)]
        signs = tuple(sign for sign, _ in both)
        rank = len(tensor.shape)
        arrays = [labels.reshape((1,) * (rank - labels.ndim) + labels.shape) for _, labels in both]
        if rank and all(each.size == max(each.shape) for each in arrays):
            # log factor = Σ_axes f_axis(index): it vanishes everywhere iff it does on the lines through the origin
            for axis in range(rank):
                line = tuple(slice(None) if i == axis else slice(0, 1) for i in range(rank))
                self.equations.product(signs, *(each[line] for each in arrays))
        elif int(np.prod(np.broadcast_shapes(*(each.shape for each in arrays)))) <= TOO_MANY:
            self.equations.product(signs, *arrays)
        else:
            for each in arrays:
                self.equations.same(each, FIXED)

    def along(self, value: Value, *axes: int) -> Labels:
        """Return labels with the given axes only, at full length, after making scales equal along all other axes."""
        wanted = [axis % len(value.shape) for axis in axes]
        first = tuple(slice(None) if i in wanted else slice(0, 1) for i in range(len(value.shape)))
        reference = value.labels[first]
        if reference.size < value.labels.size:
            self.equations.same(value.labels, reference)
        full = np.broadcast_to(reference, [n if i in wanted else 1 for i, n in enumerate(value.shape)])
        return full.reshape([value.shape[axis] for axis in wanted])

    def level(self, value: Value, *axes: int) -> Labels:
        """Return the labels with length 1 on the given axes, after making scales equal along them."""
        gone = [axis % len(value.shape) for axis in axes]
        first = tuple(slice(0, 1) if i in gone else slice(None) for i in range(len(value.shape)))
        reference = value.labels[first]
        if reference.size < value.labels.size:
            self.equations.same(value.labels, reference)
        return reference

    def leave_alone(self, reason: str) -> None:
        """Note the operation at hand as one that fixes scales, with the reason."""
        self.left_alone[self.where, reason] = None

    def fix(self, operands: Any, reason: str) -> None:
        """Fix the scale of everything an operation reads."""
        for operand in trees.leaves(operands, is_leaf=lambda x: isinstance(x, Value | Stored)):
            if isinstance(operand, Value) and not operand.is_fixed:
                self.equations.same(operand.labels, FIXED)
                self.leave_alone(reason)
            elif isinstance(operand, Stored) and not operand.is_buffer:
                self.use(operand, (1, _fixed(len(operand.shape))))
                self.leave_alone(reason)


def follow(trace: Trace, state: Walk) -> Walk:
    """Walk over a traced graph and return the equations found, with the outputs under one label."""
    known: dict[torch.fx.Node, Any] = {}
    for node in trace.graph.nodes:
        if node.op == "placeholder":
            known[node] = _placeholder(node, trace)
        elif node.op == "call_function":
            known[node] = _visit(state, node, known)
        elif node.op == "output":
            for leaf in trees.leaves(_looked_up(node.args, known), is_leaf=_is_operand):
                if isinstance(leaf, Value | Stored):
                    state.equations.same(state.value(leaf).labels, OUTPUT)
        else:
            known[node] = Value(_fixed(_rank(node)), _shape(node))
    return state


def _placeholder(node: torch.fx.Node, trace: Trace) -> Any:
    name = trace.stored.get(node.name)
    if name is None:
        return Value(_fixed(_rank(node)), _shape(node))
    return Stored(name, _shape(node), name in trace.buffers)


def _visit(state: Walk, node: torch.fx.Node, known: dict[torch.fx.Node, Any]) -> Any:
    if node.target is operator.getitem:
        source, index = _looked_up(node.args, known)
        return source[index] if isinstance(source, list | tuple) else Value(_fixed(_rank(node)), _shape(node))
    state.where = _where(node)
    schema = aten.schema_of(node.target)
    args, kwargs = _looked_up((node.args, node.kwargs), known)
    if schema is None:
        state.fix((args, kwargs), f"{node.name} is not an operation whose effect on scales is known")
        return _everything_fixed(node)
    named = {each.name: each.default_value for each in schema.arguments if each.has_default_value()}
    named.update(zip((each.name for each in schema.arguments), args))
    named.update(kwargs)
    named["node"] = node
    name = schema.name.removeprefix("aten::")
    base = name.removesuffix("_")
    before = state.equations.count
    try:
        rule = state.rule_for(base, node)
        if rule is None:
            raise CannotFollow(f"{base} does not pass a change of scale through unchanged")
        result = _with_shapes(node, rule(state, named))
    except (CannotFollow, RuntimeError, ValueError, LookupError, TypeError, AttributeError) as problem:
        # Whatever a rule did not foresee is no freedom: all that it read or produced keeps scale 1.
        reason = str(problem) if isinstance(problem, CannotFollow) else f"this form of {base} is not followed"
        state.equations.same(np.arange(before, state.equations.count), FIXED)
        state.fix({key: each for key, each in named.items() if key != "node"}, reason)
        result = _everything_fixed(node)
    if name.endswith("_") and node.args and isinstance(node.args[0], torch.fx.Node):
        _rewrite(state, node.args[0], result, known)
    return result


def _rewrite(state: Walk, node: torch.fx.Node, result: Any, known: dict[torch.fx.Node, Any]) -> None:
    """Note that an operation in place has changed what it read, and whatever that may be a view of."""
    before = known[node]
    known[node] = result
    unchanged = isinstance(before, Value) and isinstance(result, Value)
    if unchanged and np.array_equal(before.labels, result.labels):
        return
    while node.op == "call_function" and node.args and isinstance(node.args[0], torch.fx.Node):
        node = node.args[0]
        if isinstance(known[node], Value):
            state.fix(known[node], "a part of it is overwritten in place")
            known[node] = _everything_fixed(node)


def _looked_up(arguments: Any, known: dict[torch.fx.Node, Any]) -> Any:
    return torch.fx.node.map_arg(arguments, lambda node: known[node])


def _with_shapes(node: torch.fx.Node, result: Any) -> Any:
    if isinstance(result, Stored | Value):
        return result
    if isinstance(result, list):
        return [Value(labels, tuple(each.shape)) for labels, each in zip(result, node.meta["val"])]
    return Value(result, _shape(node))


def _everything_fixed(node: torch.fx.Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, list | tuple):
        return [Value(_fixed(each.dim()), tuple(each.shape)) for each in value if isinstance(each, torch.Tensor)]
    return Value(_fixed(_rank(node)), _shape(node))


def _is_operand(leaf: Any) -> bool:
    return isinstance(leaf, Value | Stored)


def _fixed(rank: int) -> Labels:
    return np.full((1,) * rank, FIXED, dtype=np.int64)


def _shape(node: torch.fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()


def _rank(node: torch.fx.Node) -> int:
    return len(_shape(node))


def _where(node: torch.fx.Node) -> str:
    """Name an operation by the module it runs in, as the user knows it."""
    stack = node.meta.get("nn_module_stack")
    operation = aten.operation_name(node.target)
    if not stack:
        return operation
    path, kind = list(stack.values())[-1]
    kind = kind if isinstance(kind, str) else kind.__name__
    return f"{path or 'the network'} ({kind.rpartition('.')[2]}): {operation}"
