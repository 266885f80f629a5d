"""What the autograd graph of a batch tells before any number is computed: how often each parameter is used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from spiritlevel.inputs.torch_internals import nodes


@dataclass(frozen=True)
class Graph:
    """The structure behind some outputs; two batches with one signature went through the same operations."""

    root: Any  # the node the outputs came from
    signature: int
    uses: Counter[int]  # id of a parameter -> operations that take it in
    before_custom: frozenset[int]  # ids of parameters that reach the outputs through a function written in Python
    order: tuple[Any, ...]  # all nodes: of two graphs with one signature, those at one place are alike
    nodes: frozenset[Any]
    consumers: dict[Any, list[Any]]  # node -> the nodes its results went into
    leaves: dict[int, Any]  # id of a parameter -> the node that stands for it


def look_at(outputs: Tensor) -> Graph:
    """Walk the graph once."""
    order = _depth_first([outputs.grad_fn])
    number = {node: position for position, node in enumerate(order)}
    uses: Counter[int] = Counter()
    shape = []
    custom = []
    consumers: dict[Any, list[Any]] = {}
    for node in order:
        children = [child for child, _ in node.next_functions if child is not None]
        shape.append((node.name(), _leaf(node), tuple(number[child] for child in children)))
        for child in children:
            consumers.setdefault(child, []).append(node)
        uses.update(leaf for child in children if (leaf := _leaf(child)) is not None)
        if _is_users_own(node):
            custom.extend(children)
    before = frozenset(leaf for node in _depth_first(custom) if (leaf := _leaf(node)) is not None)
    leaves = {leaf: node for node in order if (leaf := _leaf(node)) is not None}
    return Graph(outputs.grad_fn, hash(tuple(shape)), uses, before, tuple(order), frozenset(order), consumers, leaves)


def _is_users_own(node: Any) -> bool:
    """Whether a node is a function written in Python by someone else."""
    return nodes.written_in_python(node) and not nodes.module_of(node).startswith("spiritlevel.")


def _leaf(node: Any) -> int | None:
    parameter = nodes.parameter_of(node)
    return None if parameter is None else id(parameter)


def _depth_first(roots: list[Any]) -> list[Any]:
    seen: dict[Any, None] = {}
    stack = list(reversed(roots))
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen[node] = None
        stack.extend(child for child, _ in reversed(node.next_functions))
    return list(seen)
