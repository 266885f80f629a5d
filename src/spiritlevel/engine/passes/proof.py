"""What the graph of a batch proves about its layers' rules, before any number is compared.

A rule forms a sample's gradient from one row of what went into a layer and one row of what is passed back to it.  That
is right where the layer's output is the operation torch itself makes of that input and these parameters, and where
every operation from there to the outputs keeps the samples in their rows.  Both can be read off the graph, batch after
batch and for next to nothing; what cannot be read off is compared with autograd instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from spiritlevel.engine.passes.graph import Graph
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.inputs.torch_internals import nodes

# Entry by entry, or over dimensions behind the first two: with the samples first they stay first.
_ROWWISE = {
    nodes.ADAPTIVE_AVERAGE_POOL_2D,
    nodes.ADD,
    nodes.AVERAGE_POOL_2D,
    nodes.CLONE,
    nodes.HARDTANH,
    nodes.LEAKY_RELU,
    nodes.MAX_POOL_2D,
    nodes.MAX_POOL_3D,
    nodes.MULTIPLY,
    nodes.NEGATE,
    nodes.RELU,
    nodes.SUBTRACT,
}
# The numbers stay where they lie: as many samples before as after means the same ones.
_VIEWS = {nodes.RESHAPE_ALIAS, nodes.UNSAFE_VIEW, nodes.VIEW}
# Which of an operation's inputs may hold samples; the others must be parameters or constants.
_DATA_INPUT = {
    nodes.ADDMM: 1,
    nodes.MM: 0,
    nodes.CONVOLUTION: 0,
    nodes.NATIVE_BATCH_NORM: 0,
    nodes.CUDNN_BATCH_NORM: 0,
}
_RESHAPED = {nodes.MATRIX_TRANSPOSE, nodes.VIEW, nodes.RESHAPE_ALIAS, nodes.EXPAND}
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def rules_are_proven(graph: Graph, recorder: Recorder, names: Iterable[str], samples: int) -> bool:
    """Whether the rules of all named layers hold on this batch by what its graph says."""
    calls = all(name in recorder.inputs and _is_own_operation(recorder, name) for name in names)
    return calls and _rows_are_kept(graph, samples)


# --- a layer's output is what torch makes of its input and parameters -------------------------------------------------


def _is_own_operation(recorder: Recorder, name: str) -> bool:
    module: Any = recorder.layers[name].module
    try:
        return all(
            _is_own(module, edge.node, edge.output_nr, inputs)
            for edge, inputs in zip(recorder.edges[name], recorder.inputs[name])
        )
    except (AttributeError, RuntimeError):  # another torch's names, or an input that was written to since
        return False


def _is_own(module: Any, node: Any, place: int, inputs: Tensor) -> bool:
    kind = nodes.name_of(node)
    children = [child for child, _ in node.next_functions]
    if place != 0:
        return False
    if type(module) is nn.Linear:
        if kind == nodes.ADDMM:
            bias, _, weight = children
            plain = nodes.saved(node, "alpha") == 1 and nodes.saved(node, "beta") == 1 and _is(bias, module.bias)
            return plain and _is_transposed(weight, module.weight) and _same(nodes.saved(node, "mat1"), inputs)
        if kind == nodes.MM and module.bias is None:
            return _is_transposed(children[1], module.weight) and _same(nodes.saved(node, "self"), inputs)
        return False
    if type(module) in _CONVOLUTIONS and kind == nodes.CONVOLUTION:
        settings = tuple(nodes.saved(node, name) for name in ("stride", "padding", "dilation", "groups"))
        own = (module.stride, module.padding, module.dilation, module.groups)
        plain = nodes.saved(node, "transposed") is False and settings == own and module.padding_mode == "zeros"
        return plain and _takes(children[1:], module) and _same(nodes.saved(node, "input"), inputs)
    if type(module) in _BATCH_NORMS and kind in nodes.BATCH_NORMS:
        statistics = [(nodes.saved(node, name), getattr(module, name)) for name in ("running_mean", "running_var")]
        eps = nodes.saved(node, "eps" if kind == nodes.NATIVE_BATCH_NORM else "epsilon")
        averaged = nodes.saved(node, "training") is False and eps == module.eps
        recorded = all(mean is not None and _same(saved, mean) for saved, mean in statistics)
        return averaged and recorded and _takes(children[1:], module) and _same(nodes.saved(node, "input"), inputs)
    return False


def _takes(children: list[Any], module: Any) -> bool:
    weight, bias = children
    return _is(weight, module.weight) and _is(bias, module.bias)


def _is(node: Any, parameter: Tensor | None) -> bool:
    """Whether a node stands for a parameter; one that may not move has none."""
    if parameter is None or not parameter.requires_grad:
        return node is None
    return node is not None and nodes.parameter_of(node) is parameter


def _is_transposed(node: Any, weight: Tensor) -> bool:
    if not weight.requires_grad:
        return node is None
    return node is not None and nodes.name_of(node) == nodes.MATRIX_TRANSPOSE and _is(node.next_functions[0][0], weight)


def _same(saved: Tensor | None, known: Tensor) -> bool:
    return (
        saved is not None
        and saved.data_ptr() == known.data_ptr()
        and saved.shape == known.shape
        and saved.stride() == known.stride()
    )


# --- samples stay in their rows ---------------------------------------------------------------------------------------


def _rows_are_kept(graph: Graph, samples: int) -> bool:
    """Whether every operation from the parameters to the outputs leaves sample b in row b."""
    stack, seen = [(graph.root, 0)], set()
    while stack:
        node, place = stack.pop()
        if (node, place) in seen:
            continue
        seen.add((node, place))
        inputs = [(number, child) for number, child in enumerate(node.next_functions) if child[0] is not None]
        data = [(number, child) for number, child in inputs if not _is_of_parameters(child[0])]
        if not _keeps_rows(node, place, data, samples):
            return False
        stack.extend(child for _, child in data)
    return True


def _keeps_rows(node: Any, place: int, data: list[tuple[int, tuple[Any, int]]], samples: int) -> bool:
    kind = nodes.name_of(node)
    shape = nodes.shape_of(node, place)
    before = [nodes.shape_of(*child) for _, child in data]
    if place != 0 or not shape or any(not one or one[0] != samples for one in [shape, *before]):
        return False
    if kind in _ROWWISE:
        return all(len(one) == len(shape) for one in before)  # otherwise samples may be broadcast along another axis
    if kind in _VIEWS:
        return True
    if kind == nodes.CATENATE:
        return len(before) > 1  # along the samples there would be more of them
    if kind == nodes.MEAN_ALONG:
        (one,) = before
        return all((dim - 2**64 if dim >= 2**63 else dim) % len(one) != 0 for dim in nodes.saved(node, "dim") or (0,))
    return kind in _DATA_INPUT and all(number == _DATA_INPUT[kind] for number, _ in data)


def _is_of_parameters(node: Any) -> bool:
    while nodes.name_of(node) in _RESHAPED and len(node.next_functions) == 1 and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return nodes.parameter_of(node) is not None
