"""Second derivatives of one batch by differentiating twice backward: H v, J v, and the pull-back Jᵀ u.

H v differentiates the gradient's graph again.  J v differentiates the pull-back Jᵀ u in u, which exists wherever a
Hessian product does.  Of a block of vectors at most
``together`` are handed to autograd at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spiritlevel.inputs.torch_internals.backward import vjp

Parts = list[Tensor]  # one tensor (K, *shape) a parameter


def gradient_graph(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of a scalar with the graph of its own computation; None where it does not depend."""
    if not loss.requires_grad:
        return [None] * len(tensors)
    return list(torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True))


def vector_jacobian(
    values: Sequence[Tensor], inputs: Sequence[Tensor], blocks: Sequence[Tensor], *, together: int = 1
) -> Parts:
    """Return Σ_i ∂(values_i · block_i[k])/∂inputs for every k; the graph is retained."""

    def pull(*cotangents: Tensor) -> tuple[Tensor, ...]:
        return vjp(values, inputs, cotangents, retain_graph=True, allow_unused=True, materialize_grads=True)

    count = len(blocks[0])
    if min(together, count) == 1:
        rows = [pull(*(block[k] for block in blocks)) for k in range(count)]
        return [torch.stack(parts) for parts in zip(*rows)]
    groups = -(-count // together)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")  # operations that vmap takes one by one
        # Not is_grads_batched, whose older vmap takes every convolution one by one.
        found = [torch.func.vmap(pull)(*group) for group in zip(*(block.tensor_split(groups) for block in blocks))]
    return [torch.cat(parts) for parts in zip(*found)]


def hessian_vectors(
    gradients: Sequence[Tensor | None], tensors: Sequence[Tensor], blocks: Sequence[Tensor], *, together: int = 1
) -> Parts:
    """Return H v for a block of vectors from the gradient's graph."""
    curved = [(g, block) for g, block in zip(gradients, blocks) if g is not None and g.requires_grad]
    if not curved:  # the loss is linear in these parameters
        return [torch.zeros_like(block) for block in blocks]
    return vector_jacobian([g for g, _ in curved], tensors, [block for _, block in curved], together=together)


def push_forward(outputs: Tensor, tensors: Sequence[Tensor], blocks: Sequence[Tensor], *, together: int = 1) -> Tensor:
    """Return J v for a block of vectors, (K, *outputs), by differentiating Jᵀu in u."""
    cotangent, pulled, pushed = _pulled_back(outputs, tensors, blocks)
    if not pulled:
        return torch.zeros((len(blocks[0]), *outputs.shape), dtype=outputs.dtype, device=outputs.device)
    return vector_jacobian(pulled, [cotangent], pushed, together=together)[0]


def gradient_and_products(
    loss: Tensor, outputs: Tensor, tensors: Sequence[Tensor], along: Callable[[Sequence[Tensor]], Tensor]
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Return the gradient, H v and J v from one graph; ``along`` gives the inner product of tensors with v.

    With u·f added to the loss L, and u = 0, the gradient's derivatives along v are H v, and J v with regard to u.
    """
    cotangent = torch.zeros_like(outputs, requires_grad=True)
    total = loss + (cotangent * outputs).sum()
    gradient = torch.autograd.grad(total, tensors, create_graph=True, allow_unused=True, materialize_grads=True)
    bent = torch.autograd.grad(along(gradient), [*tensors, cotangent], allow_unused=True, materialize_grads=True)
    return [part.detach() for part in gradient], list(bent[:-1]), bent[-1]


def derivative_along(
    values: Tensor, tensors: Sequence[Tensor], direction: Sequence[Tensor], *, create_graph: bool = False
) -> Tensor:
    """Return J v for one vector, as ``push_forward``, with the graph of its own computation where asked for."""
    cotangent, pulled, pushed = _pulled_back(values, tensors, direction)
    if not pulled:
        return torch.zeros_like(values)
    return vjp(
        pulled,
        [cotangent],
        pushed,
        create_graph=create_graph,
        retain_graph=True,
        materialize_grads=True,
    )[0]


def _pulled_back(
    values: Tensor, tensors: Sequence[Tensor], vectors: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Return a cotangent u of zeros, the parts of Jᵀu that depend on it with their graph, and those parts' vectors."""
    cotangent = torch.zeros_like(values, requires_grad=True)
    if not values.requires_grad:
        return cotangent, [], []
    parts = vjp(values, tensors, cotangent, create_graph=True, allow_unused=True)
    used = [(part, vector) for part, vector in zip(parts, vectors) if part is not None and part.requires_grad]
    return cotangent, [part for part, _ in used], [vector for _, vector in used]
