"""Networks whose recorded operations leave no room for curvature, whatever the data.

A second derivative that is zero on one batch may differ from zero on the next where an operation is curved in places (a
hardswish).  Where every operation is linear, or linear in pieces, there is no such place: what holds for one batch
holds for all that went through the same operations.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from spiritlevel.engine.passes.graph import Graph
from spiritlevel.inputs.torch_internals import nodes, operations

# Linear in all their inputs together, or made of pieces that are, by the names under which autograd records them.
_LINEAR = {
    nodes.ADAPTIVE_AVERAGE_POOL_2D,
    nodes.ADD,
    nodes.AVERAGE_POOL_2D,
    nodes.CATENATE,
    nodes.CLONE,
    nodes.EXPAND,
    nodes.HARDTANH,
    nodes.LEAKY_RELU,
    nodes.MATRIX_TRANSPOSE,
    nodes.MAX_POOL_2D,
    nodes.MAX_POOL_3D,
    nodes.MEAN,
    nodes.MEAN_ALONG,
    nodes.NEGATE,
    nodes.PAD,
    nodes.PARAMETER,
    nodes.PERMUTE,
    nodes.RELU,
    nodes.RESHAPE_ALIAS,
    nodes.SELECT,
    nodes.SLICE,
    nodes.SQUEEZE,
    nodes.SQUEEZE_ALONG,
    nodes.STACK,
    nodes.SUBTRACT,
    nodes.SUM,
    nodes.SUM_ALONG,
    nodes.TRANSPOSE,
    nodes.UNSAFE_VIEW,
    nodes.UNSQUEEZE,
    nodes.VIEW,
}
# Linear in each of their inputs alone.
_PRODUCTS = {nodes.ADDMM, nodes.CONVOLUTION, nodes.MM, nodes.MULTIPLY}
# Products too, while they go by statistics of the past.
_NORMS = nodes.BATCH_NORMS
_RESHAPED = {nodes.MATRIX_TRANSPOSE, nodes.TRANSPOSE, nodes.VIEW, nodes.RESHAPE_ALIAS, nodes.EXPAND}


def linear_by_nature(graph: Graph, parameters: Container[int] | None = None) -> bool:
    """Whether the outputs are piecewise linear in each parameter because nothing behind them is anything else.

    A product must be one with a parameter that is used nowhere else, so that moving one parameter moves one factor.
    Where ids of some ``parameters`` are given only what lies above these is looked at.
    """
    reached = graph.nodes if parameters is None else _above(graph, parameters)
    for node in reached:
        if nodes.name_of(node) in _LINEAR:
            continue
        factors = [child for child, _ in node.next_functions if child in reached]
        if nodes.name_of(node) == operations.LAYER_NORM and parameters is not None:
            if node.next_functions[0][0] in reached:
                return False
            continue  # what is normalised stays; its weight and bias come in as they do elsewhere
        averaged = nodes.name_of(node) in _NORMS and nodes.saved(node, "training") is False
        if nodes.name_of(node) not in _PRODUCTS and not averaged:
            return False
        if sum(not _is_lone_parameter(child, graph) for child in factors) > 1:
            return False
    return True


def _above(graph: Graph, parameters: Container[int]) -> set[Any]:
    """Return the nodes that some parameters reach, themselves included."""
    stack = [leaf for parameter, leaf in graph.leaves.items() if parameter in parameters]
    found: set[Any] = set()
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(graph.consumers.get(node, []))
    return found


def _is_lone_parameter(node: Any, graph: Graph) -> bool:
    while nodes.name_of(node) in _RESHAPED and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    parameter = nodes.parameter_of(node)
    return parameter is not None and graph.uses[id(parameter)] == 1
