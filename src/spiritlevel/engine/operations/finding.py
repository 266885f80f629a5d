"""Which operations of a graph are curved themselves, and for which parameters.

By the chain rule the remainder of a parameter's block is a sum over all operations behind which it lies, each seen
through its local second derivative.  Operations that are linear in pieces add nothing; a product adds what passes
through both of its factors, which for a weight that is used once is nothing either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.layers.uses import is_made_of_parameters
from spiritlevel.engine.operations import curvatures
from spiritlevel.engine.operations.local_curvature import LocalCurvature
from spiritlevel.engine.operations.tied import TiedMatrixProduct, TiedProduct
from spiritlevel.engine.passes.graph import Graph
from spiritlevel.inputs.torch_internals import nodes, operations

Edge = tuple[Any, int]


@dataclass(frozen=True)
class CurvedOperation:
    """One operation: the node whose output's gradient weighs its second derivative, and where columns go in.

    ``tied`` is the place, among the node's inputs, of a weight that meets activations which depend on it; its edge is
    the last of ``inputs``, and no column goes in there: each sample's part of one is a gradient of the weight's own.
    """

    node: Any
    inputs: tuple[Edge, ...]
    parameters: int  # bits of the parameters that it is curved for
    curvature: Callable[[Tensor], LocalCurvature] = field(repr=False)
    tied: int | None = None
    of_parameters: bool = (
        False  # a function of a parameter alone: no column goes in at all, each sample's part is known
    )

    @property
    def entries(self) -> tuple[Edge, ...]:
        """Where columns go in."""
        if self.of_parameters:
            return ()
        return self.inputs if self.tied is None else self.inputs[:-1]


@dataclass
class FoundOperations:
    """The curved operations of a graph; parameters whose remainder these do not account for are bits of ``missed``."""

    operations: list[CurvedOperation] = field(default_factory=list)
    missed: int = 0
    unknown: set[str] = field(default_factory=set)  # names of operations nothing is known of


def find_operations(graph: Graph, bits: Mapping[int, int], samples: int) -> FoundOperations:
    """Find all that are curved for parameters, given as {id: bit}, behind outputs of so many samples."""
    return _Search(graph, bits, samples).run()


class _Search:
    def __init__(self, graph: Graph, bits: Mapping[int, int], samples: int) -> None:
        self.graph = graph
        self.order = _inputs_first(graph)
        self.masks: dict[Any, int] = {}
        self.pure: set[Any] = set()  # made of parameters alone: no sample has a row there
        for node in self.order:
            parameter = nodes.parameter_of(node)
            mask = 0 if parameter is None else bits.get(id(parameter), 0)
            for child, _ in node.next_functions:
                mask |= 0 if child is None else self.masks[child]
            self.masks[node] = mask
            if parameter is not None or is_made_of_parameters(node, self.pure, samples):
                self.pure.add(node)
        self.found = FoundOperations()
        self.sources: dict[Any, Edge] = {}  # of nodes that are functions of one edge, entry by entry
        self.merged: set[Any] = set()  # nodes inside operations that were recognised as a whole

    def run(self) -> FoundOperations:
        self._find_entrywise()
        for node in reversed(self.order):  # outputs first, so that whole operations are seen before their parts
            if self.masks[node] and node not in self.merged:
                self._look(node)
        return self.found

    # --- functions of one edge, entry by entry -------------------------------------------------------------------

    def _find_entrywise(self) -> None:
        """Find maximal entrywise functions of one edge; a part that is also used elsewhere begins a new one."""
        ends: set[Any] = set()
        while True:
            self.sources.clear()
            for node in self.order:
                source = self._source_of(node, ends)
                if source is not None:
                    self.sources[node] = source
            mixed = set()
            for node, source in self.sources.items():
                if node in ends:
                    continue
                inside = [self.sources.get(consumer) == source for consumer in self.graph.consumers.get(node, [])]
                if any(inside) and not all(inside):
                    mixed.add(node)
            if not mixed:
                return
            ends |= mixed

    def _source_of(self, node: Any, ends: set[Any]) -> Edge | None:
        if nodes.name_of(node) not in operations.ENTRYWISE or not self.masks[node]:
            return None
        shape = nodes.shape_of(node, 0)
        found = set()
        for child, place in node.next_functions:
            if child is None or not self.masks[child]:
                continue
            inner = self.sources.get(child) if child not in ends else None
            found.add(inner if inner is not None else (child, place))
        if len(found) != 1:
            return None
        (source,) = found
        return source if nodes.shape_of(*source) == shape else None

    # --- one operation -------------------------------------------------------------------------------------------

    def _look(self, node: Any) -> None:
        name = nodes.name_of(node)
        source = self.sources.get(node)
        if source is not None:
            if any(self.sources.get(consumer) == source for consumer in self.graph.consumers.get(node, [])):
                return  # inside a larger one
            if self._has_curved_part(node, source):
                self._add(node, (source,), partial(curvatures.pointwise_curvature, node, GradientEdge(*source)))
            return
        if name in operations.LINEAR:
            return
        inputs = [edge for edge in node.next_functions if edge[0] is not None]
        if name in (operations.MULTIPLY, operations.DIVIDE):
            self._product(node, name)
        elif name in operations.SLOPES:
            self._slope(node)
        elif name in operations.MATRIX_PRODUCTS:
            first, second = (node.next_functions[place] for place in operations.MATRIX_PRODUCTS[name])
            self._bilinear(node, first, second, lambda shapes: partial(curvatures.matrix_product_curvature, shapes))
        elif name in operations.WEIGHTED:
            if nodes.saved(node, "training"):
                self._give_up(node, name)
            self._tied(inputs)
        elif name in operations.SOFTMAX:
            self._add(node, (inputs[0],), partial(curvatures.softmax_curvature, node))
        elif name == operations.LOG_SOFTMAX:
            self._add(node, (inputs[0],), partial(curvatures.log_softmax_curvature, node))
        elif name in (operations.LAYER_NORM, operations.GROUP_NORM):
            self._tied(inputs)
            if node.next_functions[0][0] is not None:
                made = (
                    curvatures.layer_norm_curvature
                    if name == operations.LAYER_NORM
                    else curvatures.group_norm_curvature
                )
                self._add(node, (node.next_functions[0],), partial(made, node))
        elif name in operations.APPLIED | operations.POINTWISE:
            self._tied(inputs)
            self._add(node, (inputs[0],), partial(curvatures.applied_curvature, node, GradientEdge(*inputs[0])))
        else:
            self._give_up(node, name)

    def _has_curved_part(self, node: Any, source: Edge) -> bool:
        if nodes.name_of(node) not in operations.ENTRYWISE_LINEAR:
            children = [child for child, _ in node.next_functions if child is not None and self.masks[child]]
            if (
                nodes.name_of(node) in operations.POINTWISE
                or len(children) > 1
                or nodes.name_of(node) == operations.DIVIDE
            ):
                return True
        return any(
            self.sources.get(child) == source and self._has_curved_part(child, source)
            for child, _ in node.next_functions
            if child is not None
        )

    def _product(self, node: Any, name: str) -> None:
        first, second = node.next_functions
        if self._root_mean_square(node, first, second) or self._root_mean_square(node, second, first):
            return
        if name == operations.MULTIPLY:
            self._bilinear(node, first, second, lambda shapes: partial(curvatures.product_curvature, shapes))
            return
        if second[0] is None or not self.masks[second[0]]:
            return  # linear in what is divided
        if first[0] is None:
            source = GradientEdge(*second)
            self._add(node, (second,), partial(curvatures.applied_curvature, node, source))
            return
        shapes = [nodes.shape_of(*first), nodes.shape_of(*second)]
        self._add(
            node, (first, second), partial(curvatures.quotient_curvature, node, shapes), mask=self.masks[second[0]]
        )

    def _slope(self, node: Any) -> None:
        passed_back, kept = node.next_functions[:2]
        if kept[0] is None or not self.masks[kept[0]]:
            return  # linear in what is passed back
        if passed_back[0] is None:
            self._add(node, (kept,), partial(curvatures.bent_slope_curvature, node))
        else:
            mask = self.masks[kept[0]]
            self._add(node, (passed_back, kept), partial(curvatures.slope_curvature, node), mask=mask)

    def _bilinear(self, node: Any, first: Edge, second: Edge, made: Callable[[Any], Callable[..., Any]]) -> None:
        if first[0] is None or second[0] is None:
            return
        both = self.masks[first[0]] & self.masks[second[0]]
        if not both:
            return  # linear in every parameter's own block
        if first[0] in self.pure or second[0] in self.pure:
            self._tie(node, first, second, both)
            return
        self._add(node, (first, second), made([nodes.shape_of(*first), nodes.shape_of(*second)]), mask=both)

    def _tie(self, node: Any, first: Edge, second: Edge, both: int) -> None:
        """Take a weight's product with activations that depend on it."""
        name = nodes.name_of(node)
        place = (
            operations.MATRIX_PRODUCTS[name][1] if name in operations.WEIGHTED_PRODUCTS else int(second[0] in self.pure)
        )
        activation, weight = (first, second) if second[0] in self.pure else (second, first)
        known = name in operations.WEIGHTED_PRODUCTS or name == operations.MULTIPLY
        if (
            not known
            or activation[0] in self.pure
            or leaf_behind(weight) is None
            or node.next_functions[place] != weight
        ):
            self.found.missed |= both
            return
        shapes = (torch.Size(nodes.shape_of(*activation)), torch.Size(nodes.shape_of(*weight)))
        made = partial(TiedProduct if name == operations.MULTIPLY else TiedMatrixProduct, shapes=shapes)
        self.found.operations.append(CurvedOperation(node, (activation, weight), both, made, tied=place))

    def _tied(self, inputs: list[Edge]) -> None:
        """Miss the parameters that reach an operation through more than one of its inputs."""
        seen = 0
        for child, _ in inputs:
            self.found.missed |= seen & self.masks[child]
            seen |= self.masks[child]

    def _root_mean_square(self, node: Any, edge: Edge, other: Edge) -> bool:
        """Recognise x · (mean(x²) + ε)^-½ written out."""
        if edge[0] is None or other[0] is None or not self.masks[edge[0]]:
            return False
        way = [other[0]]
        if nodes.name_of(other[0]) != operations.INVERSE_ROOT or other[0] in self.merged:
            return False
        while nodes.name_of(way[-1]) != nodes.MEAN_ALONG:
            children = [child for child, _ in way[-1].next_functions if child is not None]
            if len(children) != 1 or nodes.name_of(children[0]) not in operations.PLUS_CONSTANT | {nodes.MEAN_ALONG}:
                return False
            way.append(children[0])
        mean = way[-1]
        square = mean.next_functions[0][0]
        if nodes.name_of(square) != operations.POWER or nodes.saved(square, "exponent") != 2:
            return False
        if square.next_functions[0] != edge:
            return False
        way.append(square)
        if any(len(self.graph.consumers.get(part, [])) != 1 for part in way):
            return False
        inputs, inverse = nodes.saved(square, "self"), nodes.saved(other[0], "result")
        if inputs is None or inverse is None or not nodes.saved(mean, "keepdim"):
            return False
        dims = tuple(i - inputs.ndim for i, (a, b) in enumerate(zip(inputs.shape, inverse.shape)) if a != b)
        self.merged.update(way)
        self._add(
            node,
            (edge,),
            partial(curvatures.rms_norm_curvature, inputs.detach(), inverse.detach(), dims=dims),
        )
        return True

    def _add(
        self, node: Any, inputs: tuple[Edge, ...], made: Callable[[Tensor], LocalCurvature], mask: int | None = None
    ) -> None:
        mask = self.masks[inputs[0][0]] if mask is None else mask
        if mask:
            alone = all(child in self.pure for child, _ in inputs)
            self.found.operations.append(CurvedOperation(node, inputs, mask, made, of_parameters=alone))

    def _give_up(self, node: Any, name: str) -> None:
        self.found.missed |= self.masks[node]
        self.found.unknown.add(name)


def leaf_behind(edge: Edge) -> Any:
    """Return the leaf that alone comes in at an edge, perhaps in another shape; None where more does."""
    node = edge[0]
    while nodes.parameter_of(node) is None:
        children = [child for child, _ in node.next_functions if child is not None]
        if len(children) != 1:
            return None
        node = children[0]
    return node


def _inputs_first(graph: Graph) -> list[Any]:
    """Return the nodes so that each comes after all it takes in; the same order in every run."""
    order: dict[Any, None] = {}
    stack: list[tuple[Any, bool]] = [(graph.root, False)]
    while stack:
        node, entered = stack.pop()
        if node in order:
            continue
        if entered:
            order[node] = None
            continue
        stack.append((node, True))
        stack.extend((child, False) for child, _ in node.next_functions if child is not None and child not in order)
    return list(order)
