"""Vector-Jacobian products by autograd's engine itself.

``torch.autograd.grad`` compares the shapes of vectors with those of outputs by a solver for symbolic ones, whose import
alone takes seconds on a cold machine: many gradients of a large model.  The shapes here are numbers.  Where the engine
is not found by its name, or something has a say in it, torch's own function makes the product.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.inputs.torch_internals import nodes

_engine = getattr(torch.autograd.Variable, "_execution_engine", None)
_run = getattr(_engine, "run_backward", None)

Output = Tensor | GradientEdge


def vjp(
    outputs: Output | Sequence[Output],
    inputs: Sequence[Any],
    vectors: Tensor | Sequence[Tensor],
    *,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor, ...]:
    """Return Σ vector·∂output/∂input for every input, as ``torch.autograd.grad`` does with vectors as grad_outputs."""
    ends: Any = (outputs,) if isinstance(outputs, (Tensor, GradientEdge)) else tuple(outputs)
    given = (vectors,) if isinstance(vectors, Tensor) else tuple(vectors)
    places = tuple(inputs)
    tensors = [one for one in (*ends, *places, *given) if isinstance(one, Tensor)]
    alike = len(ends) == len(given) and all(map(_fits, ends, given))
    if _run is None or not alike or torch.overrides.has_torch_function(tensors):
        return torch.autograd.grad(
            ends, places, given, retain_graph=retain_graph, create_graph=create_graph,
            allow_unused=allow_unused or materialize_grads, materialize_grads=materialize_grads,
        )  # fmt: skip
    kept = create_graph if retain_graph is None else retain_graph
    found = _run(ends, given, kept, create_graph, places, allow_unused or materialize_grads, accumulate_grad=False)
    if materialize_grads:
        return tuple(
            torch.zeros_like(place, requires_grad=create_graph) if part is None else part
            for part, place in zip(found, places)
        )
    return tuple(found)


def _fits(output: Output, vector: Tensor) -> bool:
    shape = output.shape if isinstance(output, Tensor) else nodes.shape_of(output.node, output.output_nr)
    return tuple(shape) == tuple(vector.shape)
