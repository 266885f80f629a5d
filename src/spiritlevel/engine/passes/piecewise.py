"""Networks whose recorded operations leave no room for curvature, whatever the data.

A second derivative that is zero on one batch may differ from zero on the next where an operation is curved in places (a
hardswish).  Where every operation is linear, or linear in pieces, there is no such place: what holds for one batch
holds for all that went through the same operations.
"""

from __future__ import annotations

from typing import Any

from spiritlevel.engine.passes.graph import Graph

# Linear in all their inputs together, or made of pieces that are, by the names under which autograd records them.
_LINEAR = {
    "AdaptiveAvgPool2DBackward0",
    "AddBackward0",
    "AvgPool2DBackward0",
    "CatBackward0",
    "CloneBackward0",
    "ConstantPadNdBackward0",
    "ExpandBackward0",
    "HardtanhBackward0",
    "LeakyReluBackward0",
    "MaxPool2DWithIndicesBackward0",
    "MaxPool3DWithIndicesBackward0",
    "MeanBackward0",
    "MeanBackward1",
    "NegBackward0",
    "PermuteBackward0",
    "ReluBackward0",
    "ReshapeAliasBackward0",
    "SelectBackward0",
    "SliceBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
    "StackBackward0",
    "SubBackward0",
    "SumBackward0",
    "SumBackward1",
    "TBackward0",
    "TransposeBackward0",
    "UnsafeViewBackward0",
    "UnsqueezeBackward0",
    "ViewBackward0",
    "torch::autograd::AccumulateGrad",  # a parameter
}
# Linear in each of their inputs alone.
_PRODUCTS = {"AddmmBackward0", "ConvolutionBackward0", "MmBackward0", "MulBackward0"}
# Products too, while they go by statistics of the past.
_NORMS = {"NativeBatchNormBackward0", "CudnnBatchNormBackward0"}
_RESHAPED = {"TBackward0", "TransposeBackward0", "ViewBackward0", "ReshapeAliasBackward0", "ExpandBackward0"}


def linear_by_nature(graph: Graph) -> bool:
    """Whether the outputs are piecewise linear in each parameter because nothing behind them is anything else.

    A product must be one with a parameter that is used nowhere else, so that moving one parameter moves one factor.
    """
    for node in graph.nodes:
        if node.name() in _LINEAR:
            continue
        averaged = node.name() in _NORMS and getattr(node, "_saved_training", True) is False
        if node.name() not in _PRODUCTS and not averaged:
            return False
        factors = [child for child, _ in node.next_functions if child is not None]
        if sum(not _is_lone_parameter(child, graph) for child in factors) > 1:
            return False
    return True


def _is_lone_parameter(node: Any, graph: Graph) -> bool:
    while node.name() in _RESHAPED and len(node.next_functions) == 1:
        node = node.next_functions[0][0]
    variable = getattr(node, "variable", None)
    return variable is not None and graph.uses[id(variable)] == 1
