"""Watching a forward pass: each layer's inputs, and the gradient edges of its outputs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from spiritlevel.engine.layers.rules import FromDeltas, rule_of
from spiritlevel.engine.layers.sample_gradients import Pooling
from spiritlevel.engine.layers.uses import Use, Uses, find_uses
from spiritlevel.engine.passes.graph import Graph
from spiritlevel.engine.passes.pooled import pooled
from spiritlevel.engine.passes.row_channels import pulled_through, rows_as_channels
from spiritlevel.engine.passes.stages import RowChannels, Stages
from spiritlevel.inputs.chosen_parameters import Layer
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.torch_internals import nodes
from spiritlevel.inputs.torch_internals.backward import vjp

USE = "use of "  # before the name of a parameter whose own uses are recorded, not its module's calls
_NO_MODULE = nn.Identity()


class Recorder:
    """Records the calls of every layer that has a rule, while it is entered.

    What is kept of an output is its gradient edge, never the tensor: an in-place activation rewrites the tensor, but
    the edge still stands for the value the layer gave.
    """

    def __init__(self, problem: OpenProblem) -> None:
        self.layers: dict[str, Layer] = {
            name: layer for name, layer in problem.layers.items() if rule_of(layer.module) is not None
        }
        self.inputs: dict[str, list[Tensor]] = {}
        self.edges: dict[str, list[GradientEdge]] = {}
        self.shapes: dict[str, list[torch.Size]] = {}  # of the outputs
        self.stops: dict[str, list[GradientEdge]] = self.edges  # where gradients are pulled back to
        self.graph: Graph | None = None  # behind the outputs, once it was looked at
        self.poolings: dict[str, list[Pooling | None]] = {}  # of the layers that are stopped after a pooling
        self._gates: dict[str, list[Tensor | None]] = {}  # of the rectifiers before these poolings
        self.uses: dict[str, Uses] = {}  # of parameters that no module accounts for, by names of their own
        self._problem = problem
        self._handles: list[Any] = []

    def __enter__(self) -> Recorder:
        for name, layer in self.layers.items():
            self._handles.append(layer.module.register_forward_hook(self._hook(name)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        # Not in the hook: a value that leaves the graph there would be taken for one of the model's own.
        self.inputs = {name: [call.detach() for call in calls] for name, calls in self.inputs.items()}

    def _hook(self, name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if args and isinstance(args[0], Tensor) and isinstance(output, Tensor) and output.requires_grad:
                self.inputs.setdefault(name, []).append(args[0])
                self.edges.setdefault(name, []).append(get_gradient_edge(output))
                self.shapes.setdefault(name, []).append(output.shape)

        return hook

    def stop_after_poolings(self, graph: Graph) -> None:
        """Pull back only to the pooled output of the layers that are max-pooled at once."""
        self.graph = graph
        self.stops = dict(self.edges)
        for name, edges in self.edges.items():
            found = [
                pooled(self.layers[name].module, edge, shape, graph) for edge, shape in zip(edges, self.shapes[name])
            ]
            if any(found):
                self.stops[name] = [edge if one is None else one.edge for edge, one in zip(edges, found)]
                self.poolings[name] = [None if one is None else one.pooling for one in found]
                self._gates[name] = [None if one is None else one.gate for one in found]

    def add_uses(self, graph: Graph, names: Iterable[str], samples: int) -> list[str]:
        """Stop at the operations that take in these parameters too; return the names under which that is done."""
        found_names = []
        for full in names:
            name, parameter = USE + full, self._problem.chosen_parameters[full]
            if name in self.uses:
                found_names.append(name)
                continue
            found = self._uses_of(graph, full, samples)
            if not found:
                continue
            uses = self.uses[name] = Uses(parameter, found, samples, samples_second=False)
            self.layers[name] = Layer(name, _NO_MODULE, {"": full})
            self.edges[name] = self.stops[name] = uses.edges
            self.shapes[name] = [use.shape for use in found]
            found_names.append(name)
        return found_names

    def _uses_of(self, graph: Graph, full: str, samples: int) -> list[Use]:
        """Return where a parameter meets the samples: in all graphs of one kind where it did in the first.

        Sizes tell that, and in a batch of as few samples as something else is long they could not.
        """
        leaf = graph.leaves.get(id(self._problem.chosen_parameters[full]))
        known = self._problem.uses_by_graph.setdefault(graph.signature, {})
        if full not in known:
            places = {node: place for place, node in enumerate(graph.order)}
            found = find_uses(leaf, graph.consumers, samples) or []
            known[full] = [(places[use.node], use.place, use.bent) for use in found]
        return [Use(graph.order[node], place, leaf, bent) for node, place, bent in known[full]]

    @property
    def numbers(self) -> int:
        """Numbers in all outputs that were recorded."""
        return sum(math.prod(shape) for shapes in self.shapes.values() for shape in shapes)

    def called_once(self) -> set[str]:
        """Names of the layers that were called exactly once."""
        return {name for name, edges in self.edges.items() if len(edges) == 1}

    def gradients_from_deltas(self, names: list[str], stages: Stages | None = None) -> dict[str, FromDeltas]:
        """Return, for each named layer, the function from its output gradients to its parameters' gradients."""
        found = {}
        for name in names:
            if name in self.uses:
                found[name] = _rule_of_uses(self.uses[name])
                continue
            rule = rule_of(self.layers[name].module)
            assert rule is not None
            spread = stages is not None and name in stages.unpooled
            known = (self.poolings[name],) if name in self.poolings and not spread else ()
            found[name] = rule(self.layers[name].module, self.inputs[name], *known)
        return found

    def pull_back(
        self, outputs: Tensor, cotangent: Tensor, names: list[str], **options: Any
    ) -> dict[str, list[Tensor]]:
        """Return the gradients of cotangent·outputs behind each named layer's stop."""
        edges = [edge for name in names for edge in self.stops[name]]
        if not edges:
            return {}
        flat = iter(vjp(outputs, edges, cotangent, allow_unused=True, **options))
        return {name: [_gated(next(flat), gate) for gate in self._gates_of(name)] for name in names}

    def pull_back_from(
        self, columns: Mapping[tuple[Any, int], Tensor], names: list[str], *, together: bool
    ) -> dict[str, list[Tensor | None]]:
        """Return what columns (K, …) put in at edges give behind each named layer's stop, None where that is nothing.

        ``together`` maps over the columns, which is quicker where they are small.
        """
        edges = [edge for name in names for edge in self.stops[name]]
        if not edges or not columns:
            return {name: [None] * len(self.stops[name]) for name in names}
        roots = [GradientEdge(*edge) for edge in columns]
        reached: list[bool] = []

        def pull(*column: Tensor) -> list[Tensor]:
            found = vjp(roots, edges, column, retain_graph=True, allow_unused=True)
            reached[:] = [part is not None for part in found]
            return [part for part in found if part is not None]

        if together:
            pulled: Iterator[Tensor] = iter(torch.func.vmap(pull)(*columns.values()))
        else:
            rows = [pull(*(column[k] for column in columns.values())) for k in range(len(next(iter(columns.values()))))]
            pulled = _stacked([list(parts) for parts in zip(*rows)])
            del rows
        hits = iter(reached)

        def next_one(gate: Tensor | None) -> Tensor | None:
            return _gated(next(pulled), gate) if next(hits) else None

        return {name: [next_one(gate) for gate in self._gates_of(name)] for name in names}

    def shapes_of_stops(self, name: str) -> list[torch.Size]:
        """Return the shapes of the gradients that are pulled back to a layer's stops."""
        return [torch.Size(nodes.shape_of(edge.node, edge.output_nr)) for edge in self.stops[name]]

    def _gates_of(self, name: str) -> list[Tensor | None]:
        return self._gates.get(name) or [None] * len(self.stops[name])

    def pull_back_all(
        self, outputs: Tensor, columns: Tensor, names: list[str], stages: Stages
    ) -> dict[str, list[Tensor]]:
        """Return the gradients of all columns (K, B, ...) behind each named layer's stop, (K, B, ...) a call.

        A layer that nothing is passed back to is left out.  Samples come first in memory, so that the columns of one
        lie together for its products.  Of a layer in ``stages.unpooled`` they are those of its own output, also where a
        pooling follows it: the way back from there needs them, and then they serve the layer as well.
        """
        reached = [name for name in names if all(self._reached(edge) for edge in self.stops[name])]
        together = [name for name in reached if name in stages.together]
        by_rows = stages.by_rows if stages.by_rows is not None and stages.by_rows.name in reached else None
        apart = [n for n in reached if n not in stages.together and (by_rows is None or n != by_rows.name)]
        raw = self._together(outputs, columns, together)
        found = {name: [_gated(d, gate) for d, gate in zip(raw[name], self._gates_of(name))] for name in raw}
        if stages.cut is None:
            found |= self._apart(outputs, columns, apart)
        else:
            start, deltas = stages.cut, self._unpooled(stages.cut, found[stages.cut][0])
            found[start] = [deltas]
            if by_rows is not None and by_rows.via == start:
                found[by_rows.name] = [self._through_rows(by_rows, deltas)]
                if apart:
                    start, deltas = by_rows.name, self._unpooled(by_rows.name, found[by_rows.name][0])
            found |= self._apart(self.edges[start][0], deltas, apart)
        if by_rows is not None and by_rows.via in apart and by_rows.via in found:
            found[by_rows.via] = [self._unpooled(by_rows.via, found[by_rows.via][0])]
            found[by_rows.name] = [self._through_rows(by_rows, found[by_rows.via][0])]
        return found

    def _through_rows(self, by_rows: RowChannels, deltas: Tensor) -> Tensor:
        """Return the gradients behind a layer's stop from those of the convolution that takes in what is there."""
        samples_first = deltas.transpose(0, 1)
        module: Any = self.layers[by_rows.via].module
        inputs = self.inputs[by_rows.via][0]
        pulled = pulled_through(module, samples_first.flatten(0, 1), inputs.shape, rows_as_channels(module, inputs))
        by_sample: Tensor = pulled.unflatten(0, samples_first.shape[:2])
        (gate,) = self._gates_of(by_rows.name)
        if gate is not None:
            by_sample *= gate[:, None]
        return by_sample.transpose(0, 1)

    def _unpooled(self, name: str, deltas: Tensor) -> Tensor:
        """Return gradients behind a layer's stop as those of its own output."""
        (pooling,) = self.poolings.get(name, [None])
        if pooling is None:
            return deltas
        found: Tensor = pooling.unpool(deltas.flatten(3)).unflatten(3, self.shapes[name][0][2:])
        return found

    def _together(self, outputs: Tensor, columns: Tensor, names: list[str]) -> dict[str, list[Tensor]]:
        edges = [edge for name in names for edge in self.stops[name]]
        if not edges:
            return {}
        # Not is_grads_batched: its older kind of map takes every convolution one by one.
        flat = iter(torch.func.vmap(lambda column: vjp(outputs, edges, column, retain_graph=True))(columns))
        return {name: [next(flat) for _ in self.stops[name]] for name in names}

    def _apart(self, start: Tensor | GradientEdge, columns: Tensor, names: list[str]) -> dict[str, list[Tensor]]:
        edges = [edge for name in names for edge in self.stops[name]]
        gates = [gate for name in names for gate in self._gates_of(name)]
        if not edges:
            return {}
        gathered: list[Tensor | None] = []
        for k, column in enumerate(columns):
            deltas = vjp(start, edges, column, retain_graph=True, allow_unused=True)
            if k == 0:
                gathered = [None if d is None else d.new_empty((len(d), len(columns), *d.shape[1:])) for d in deltas]
            for into, delta, gate in zip(gathered, deltas, gates):  # while it is still in the cache
                if into is None:  # nothing is passed back to this layer
                    continue
                if gate is None:
                    into[:, k] = delta
                else:
                    torch.mul(delta, gate, out=into[:, k])
        flat = iter(gathered)
        found = {name: [next(flat) for _ in self.stops[name]] for name in names}
        return {
            name: [tensor.transpose(0, 1) for tensor in calls if tensor is not None]
            for name, calls in found.items()
            if all(tensor is not None for tensor in calls)
        }

    def _reached(self, edge: GradientEdge) -> bool:
        return self.graph is None or edge.node in self.graph.nodes

    def can_be_staged(self, outputs: Tensor, columns: Tensor, names: list[str], stages: Stages) -> bool:
        """Whether pulling columns back in stages works for this model and agrees with pulling them back one by one."""
        some = columns[:2]
        names = [name for name in names if name in self.edges]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # torch warns where it would loop over the columns itself
                staged = self.pull_back_all(outputs, some, names, stages)
        except Exception:  # an operation that cannot be mapped raises in its own way
            return False
        apart = self.pull_back_all(outputs, some, names, Stages())
        for name in stages.unpooled & apart.keys():
            apart[name] = [self._unpooled(name, apart[name][0])]
        tolerance = 1e-4 if outputs.dtype == torch.float32 else 1e-10
        if staged.keys() != apart.keys():
            return False
        pairs = [pair for name in apart for pair in zip(staged[name], apart[name])]
        near = [(a - b).abs().max() <= tolerance * b.abs().max() for a, b in pairs if a.numel()]
        return not near or bool(torch.stack(near).all())


def _stacked(parts: list[list[Tensor]]) -> Iterator[Tensor]:
    """Yield each list stacked, and let go of what it held."""
    for part in parts:
        yield torch.stack(part)
        part.clear()


def _rule_of_uses(uses: Uses) -> FromDeltas:
    return lambda deltas: {"": uses.gradients(list(deltas))}


def parameters_of(problem: OpenProblem, name: str) -> list[str]:
    """Return the parameters that a layer, or the uses of one parameter, account for."""
    return [name.removeprefix(USE)] if name.startswith(USE) else list(problem.layers[name].parameters.values())


def uses_among(names: Iterable[str]) -> list[str]:
    """Return the parameters whose own uses are among some names."""
    return [name.removeprefix(USE) for name in names if name.startswith(USE)]


def _gated(delta: Tensor, gate: Tensor | None) -> Tensor:
    return delta if gate is None or delta is None else delta * gate
