"""The operations' second derivatives held against autograd's, layer by layer, before any number rests on them.

For random u and a random direction v in one layer's weights the second derivative of u·f along v must be the sum of
tᵀMt over the operations, with t = Jv what the direction does to an operation's inputs.  An operation that is missing,
taken for linear or wrongly derived shows as a gap.  No loss is involved: at interpolation all terms would be next to
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.estimators.probes import normal_like
from spiritlevel.engine.operations.drawing import CurvedBatch
from spiritlevel.engine.operations.finding import CurvedOperation, Edge
from spiritlevel.engine.passes.recording import parameters_of
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.torch_internals import nodes
from spiritlevel.inputs.torch_internals.backward import vjp

OTHERS = 4  # layers looked at beside those that see every operation
# Of the sizes of what is added up: rounding of derivatives in the model's own precision.
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}


def agreeing_layers(
    problem: OpenProblem,
    batch: Batch,
    outputs: Tensor,
    operations: list[CurvedOperation],
    names: list[str],
    bits: Mapping[int, int],
) -> list[str]:
    """Return the layers whose remainder the operations account for; ``bits`` are their parameters', by id.

    Which operations lie above which parameter is read off the graph.  So it is enough to look at layers below which
    every operation is seen twice: whichever is missing or wrong shows in the first of them.  Where one of these does
    not agree all are looked at.
    """
    check = _OperationCheck(problem, batch, outputs, operations)
    some = _seeing_all_twice(problem, operations, names, bits)
    return names if check.agreeing(some) == some else check.agreeing(names)


def _seeing_all_twice(
    problem: OpenProblem, operations: list[CurvedOperation], names: list[str], bits: Mapping[int, int]
) -> list[str]:
    masks = {
        name: sum({bits[id(problem.chosen_parameters[full])] for full in parameters_of(problem, name)})
        for name in names
    }
    seen = [0] * len(operations)
    chosen: set[str] = set()

    def news(name: str) -> int:
        return sum(count < 2 and bool(one.parameters & masks[name]) for one, count in zip(operations, seen))

    while len(chosen) < len(names):
        best = max((name for name in names if name not in chosen), key=news)
        if not news(best):
            break
        chosen.add(best)
        seen = [count + bool(one.parameters & masks[best]) for one, count in zip(operations, seen)]
    # And some that nothing asked for: a layer that is taken in elsewhere than the graph says would show there alone.
    others = [name for name in names if name not in chosen]
    chosen.update(others[:: max(1, len(others) // OTHERS)][:OTHERS])
    return [name for name in names if name in chosen]


class _OperationCheck:
    def __init__(self, problem: OpenProblem, batch: Batch, outputs: Tensor, operations: list[CurvedOperation]) -> None:
        self.problem, self.outputs = problem, outputs
        self.generator = torch.Generator(outputs.device).manual_seed(problem.seed)
        weights = normal_like(outputs.detach(), self.generator)
        self.scalar = (weights * outputs).sum()
        self.curved = CurvedBatch(batch, outputs, weights, operations)
        self.edges: list[Edge] = list(dict.fromkeys(edge for one in operations for edge in one.inputs))

    def agreeing(self, names: list[str]) -> list[str]:
        """Return the layers whose second derivatives agree; the graphs of all are made once."""
        tensors = {
            name: [self.problem.chosen_parameters[full] for full in parameters_of(self.problem, name)] for name in names
        }
        leaves = [tensor for own in tensors.values() for tensor in own]
        if not leaves:
            return []
        one = torch.ones_like(self.scalar)
        with_graph = partial(vjp, create_graph=True, materialize_grads=True)
        gradient = dict(zip(map(id, leaves), with_graph(self.scalar, leaves, one)))
        cotangents = [
            torch.zeros(nodes.shape_of(*edge), dtype=self.outputs.dtype, device=self.outputs.device).requires_grad_()
            for edge in self.edges
        ]
        roots = [GradientEdge(*edge) for edge in self.edges]
        back = with_graph(roots, leaves, cotangents) if roots else leaves
        pulled = dict(zip(map(id, leaves), back))
        verdicts = []
        for own in tensors.values():
            direction = [normal_like(tensor.detach(), self.generator) for tensor in own]
            bend = _along([gradient[id(t)] for t in own], own, direction)
            parts = self._parts([pulled[id(t)] for t in own], cotangents, direction)
            bends = [(b * d).double().sum() for b, d in zip(bend, direction) if b is not None]
            gap = (sum(bends, -parts.sum())).abs()
            verdicts.append(gap <= TOLERANCE[self.outputs.dtype] * parts.abs().sum())
        return [name for name, right in zip(tensors, torch.stack(verdicts).tolist()) if right]

    def _parts(self, pulled: list[Tensor], cotangents: list[Tensor], direction: list[Tensor]) -> Tensor:
        """Return tᵀ M t of every operation."""
        if not self.edges:
            return torch.zeros(1, dtype=torch.float64, device=self.outputs.device)
        tangents = dict(zip(self.edges, _along(pulled, cotangents, direction)))
        found = []
        for operation, curvature in zip(self.curved.operations, self.curved.curvatures):
            own = [tangents[edge] for edge in operation.inputs]
            if all(tangent is None for tangent in own):
                continue  # it does not lie above this layer
            shapes = (nodes.shape_of(*edge) for edge in operation.inputs)
            filled = [self.outputs.new_zeros(shape) if t is None else t for t, shape in zip(own, shapes)]
            terms = [(t.double() * m.double()).sum() for t, m in zip(filled, curvature.product(filled))]
            found.append(torch.stack(terms).sum())
        return torch.stack(found) if found else self.outputs.new_zeros(1, dtype=torch.float64)


def _along(values: list[Tensor], inputs: list[Tensor], direction: list[Tensor]) -> list[Tensor | None]:
    """Return the derivative of values·direction in the inputs, without a graph; None where there is none."""
    dependent = [(value, part) for value, part in zip(values, direction) if value.requires_grad]
    if not dependent:
        return [None] * len(inputs)
    found = vjp(
        [value for value, _ in dependent],
        inputs,
        [part for _, part in dependent],
        retain_graph=True,
        allow_unused=True,
    )
    return [None if part is None else part.detach() for part in found]
