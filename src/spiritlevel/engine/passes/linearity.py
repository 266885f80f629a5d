"""Is the network piecewise linear in a layer's weights?  Checked by differentiating twice, never by names.

If the outputs are piecewise linear in one layer's weights, that layer's block of the Hessian *is* its Gauss–Newton
block.  The second derivative of u·f (u random, no loss involved) along random directions is then exactly 0.0, in the
model's own dtype; any smooth operation on the way makes it differ from zero for the samples that reach it.  So every
batch is looked at, unless nothing among the recorded operations could ever be curved.  A layer below an operation that
is straight nowhere is called curved by the graph alone: that claims nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.estimators.probes import normal_like
from spiritlevel.engine.operations.finding import find_operations
from spiritlevel.engine.operators.derivative_check import path_of, require_true_gradient
from spiritlevel.engine.passes.graph import Graph
from spiritlevel.engine.passes.piecewise import linear_by_nature
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.passes.side_stream import side_stream
from spiritlevel.inputs.losses.custom import CallableLoss
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.torch_internals import nodes, operations
from spiritlevel.inputs.torch_internals.backward import vjp


class Linearity:
    """Which layers the outputs are piecewise linear in, batch after batch over a whole sweep."""

    def __init__(self, problem: OpenProblem) -> None:
        self.problem = problem
        self.exact: dict[str, bool] = dict.fromkeys(problem.layers, True)
        self._known = True  # so far no operation was seen of which nothing is known
        self._natural = True  # nor one that could be curved, above any layer that may be exact
        self._left = False  # nor did a value leave the graph
        self._trusted = False
        self._drawn: dict[int, Tensor] = {}
        self._settled: set[int] = set()  # operations that were looked at once and need not be again

    def check(
        self,
        outputs: Tensor,
        recorder: Recorder,
        graph: Graph,
        covered: set[str],
        few: tuple[Tensor, Recorder, Graph] | None = None,
    ) -> None:
        """Look at one batch; a layer once found curved stays so.

        ``covered`` are the layers whose recorded input and output account for all of their parameters' gradients:
        for those called once it is enough to look from their output on.  All others (fallbacks, tied weights, modules
        called several times) are looked at in their parameters.  ``few`` are some samples that took operations seen for
        the first time: they will do where none of these could be curved.
        """
        self._distrust_custom_functions(graph)
        self._left = self._left or self.problem.watch.values_left_the_graph
        if not outputs.requires_grad or graph.signature in self._settled:
            return
        natural = linear_by_nature(graph)
        if not natural:
            known = self._leave_out_curved(*((outputs, graph) if few is None else (few[0], few[2])))
            natural = linear_by_nature(graph, {place for name in self._open for place in self._ids(name)})
            if (self._known and not known) or (self._natural and not natural):
                self._trusted = False  # something to look at that was not there before
            self._known, self._natural = self._known and known, self._natural and natural
        if self.problem.device.type != "cuda":
            self._trust()
        if natural:
            self._settled.add(graph.signature)
            if few is not None and few[2].signature == graph.signature:
                outputs, recorder, _ = few
        weights = self._random(outputs, 0)
        scalar = (weights * outputs).sum()
        from_output = [name for name in self._open if name in covered and name in recorder.called_once()]
        # A max-pooling and a ReLU in between, recognised as torch's own, are linear on every piece.
        edges = {name: recorder.stops[name] for name in from_output}
        # All outputs at once: a piecewise-linear network is piecewise linear in all of them jointly.
        if self._any_is_curved(scalar, edges):
            # What is curved on a few samples is curved; only the others are looked at on all of them.
            left = edges if few is None or few[0] is outputs else self._straight_on_few(few, from_output, edges)
            together = len(left) < len(edges) and not self._any_is_curved(scalar, left)
            for name in from_output:
                self.exact[name] = name in left and (together or not self._is_curved(scalar, edges[name]))
        for name in self._open:
            if name not in edges:
                own = self.problem.layers[name].parameters.values()
                tensors = [self.problem.chosen_parameters[full] for full in own]
                self.exact[name] = not self._is_curved(scalar, tensors)

    @property
    def _open(self) -> list[str]:
        """The layers that nothing curved was seen of so far."""
        return [name for name, exact in self.exact.items() if exact]

    def _ids(self, name: str) -> set[int]:
        return {id(self.problem.chosen_parameters[full]) for full in self.problem.layers[name].parameters.values()}

    def _leave_out_curved(self, outputs: Tensor, graph: Graph) -> bool:
        """Close the layers below an operation that is straight nowhere, where the outputs hang on what it gives.

        Return whether all operations are known, as torch's own.
        """
        bits = {name: 1 << place for place, name in enumerate(self.exact)}
        by_id = {place: bit for name, bit in bits.items() for place in self._ids(name)}
        found = find_operations(graph, by_id, len(outputs))
        curved = [one for one in found.operations if nodes.name_of(one.node) in operations.CURVED_EVERYWHERE]
        if not curved:
            return not found.unknown
        ends = [GradientEdge(one.node, 0) for one in curved]
        gradients = vjp(outputs, ends, self._random(outputs, 0), retain_graph=True)
        seen = torch.stack([gradient.any() for gradient in gradients]).tolist()
        masks = [one.parameters for one, some in zip(curved, seen) if some]
        self.exact |= {name: False for name, bit in bits.items() if any(mask & bit for mask in masks)}
        return not found.unknown

    def _any_is_curved(self, scalar: Tensor, edges: Mapping[str, list[Any]]) -> bool:
        return bool(edges) and self._is_curved(scalar, [edge for group in edges.values() for edge in group])

    def _straight_on_few(
        self, few: tuple[Tensor, Recorder, Graph], names: list[str], edges: Mapping[str, list[Any]]
    ) -> dict[str, list[Any]]:
        """Return the edges of the layers that show no curvature on a few samples."""
        outputs, recorder, _ = few
        scalar = (normal_like(outputs.detach(), torch.Generator(outputs.device).manual_seed(0)) * outputs).sum()
        return {name: edges[name] for name in names if not self._is_curved(scalar, recorder.stops.get(name, []))}

    def finish(self) -> None:
        """End the sweep.  A GPU makes one check of many small steps only now, beside what it still works on."""
        with side_stream(self.problem.device):
            self._trust()

    def _trust(self) -> None:
        """Look once whether derivatives are what they claim to be.

        Where autograd's second derivatives are wrong or missing, a zero among them proves nothing.  Where no operation
        above a layer that may be exact could be curved they are torch's own.  So is the gradient where all operations
        are known, unless a value left the graph or the loss is the user's; else it is all there is to look at.
        """
        if self._trusted:
            return
        self._trusted = True
        if self._natural:
            if not self._known or self._left or isinstance(self.problem.loss, CallableLoss):
                require_true_gradient(self.problem)
            return
        wrong = path_of(self.problem).wrong
        for name, layer in self.problem.layers.items():
            self.exact[name] = self.exact[name] and wrong.isdisjoint(layer.parameters.values())

    def _distrust_custom_functions(self, graph: Graph) -> None:
        """Layers before a custom autograd function cannot be verified: its backward may hide its curvature."""
        for name in self.problem.layers:
            if not graph.before_custom.isdisjoint(self._ids(name)):
                self.exact[name] = False

    def _random(self, like: Tensor, place: int) -> Tensor:
        """Return a random direction for a place, drawn once where batches have one shape: draws cost what products do.

        Uniform, drawn where it is used, and each batch's the same: any continuous distribution serves.
        """
        if place not in self._drawn or self._drawn[place].shape != like.shape:
            generator = torch.Generator(like.device).manual_seed(place)
            self._drawn[place] = torch.empty_like(like).uniform_(-1, 1, generator=generator)
        return self._drawn[place]

    def _is_curved(self, scalar: Tensor, inputs: Sequence[Any]) -> bool:
        """Whether the second derivative of ``scalar`` along a random direction of ``inputs`` differs from 0.0.

        So it does as far as anyone can tell where an operation has none.
        """
        try:
            return self._differs_from_zero(scalar, inputs)
        except NotImplementedError:
            return True

    def _differs_from_zero(self, scalar: Tensor, inputs: Sequence[Any]) -> bool:
        first = torch.autograd.grad(scalar, inputs, create_graph=True, allow_unused=True)
        dependent = [gradient for gradient in first if gradient is not None and gradient.requires_grad]
        if not dependent:
            return False
        directions = [self._random(gradient, place) for place, gradient in enumerate(dependent, 1)]
        second = vjp(dependent, inputs, directions, retain_graph=True, allow_unused=True)
        curved = [gradient.any() for gradient in second if gradient is not None]
        return bool(torch.stack(curved).any()) if curved else False
