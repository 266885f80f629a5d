"""Second derivatives of one batch by differentiating twice backward: H v, J v, and the pull-back Jᵀ u.

H v differentiates the gradient's graph again.  J v differentiates the pull-back Jᵀ u in u, which exists wherever a
Hessian product does.  A block of vectors is either looped over or handed to autograd at once (``batched``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Parts = list[Tensor]  # one tensor (K, *shape) a parameter


def gradient_graph(loss: Tensor, tensors: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the gradient of a scalar with the graph of its own computation; None where it does not depend."""
    if not loss.requires_grad:
        return [None] * len(tensors)
    return list(torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True))


def vector_jacobian(
    values: Sequence[Tensor], inputs: Sequence[Tensor], blocks: Sequence[Tensor], *, batched: bool = False
) -> Parts:
    """Return Σ_i ∂(values_i · block_i[k])/∂inputs for every k; the graph is retained."""
    if batched:
        found = torch.autograd.grad(
            values, inputs, list(blocks), retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        count = len(blocks[0])
        return [
            torch.zeros((count, *tensor.shape), dtype=tensor.dtype, device=tensor.device) if part is None else part
            for part, tensor in zip(found, inputs)
        ]
    rows = [
        torch.autograd.grad(
            values, inputs, [block[k] for block in blocks], retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for k in range(len(blocks[0]))
    ]
    return [torch.stack(parts) for parts in zip(*rows)]


def hessian_vectors(
    gradients: Sequence[Tensor | None], tensors: Sequence[Tensor], blocks: Sequence[Tensor], *, batched: bool = False
) -> Parts:
    """Return H v for a block of vectors from the gradient's graph."""
    curved = [(g, block) for g, block in zip(gradients, blocks) if g is not None and g.requires_grad]
    if not curved:  # the loss is linear in these parameters
        return [torch.zeros_like(block) for block in blocks]
    return vector_jacobian([g for g, _ in curved], tensors, [block for _, block in curved], batched=batched)


def push_forward(
    outputs: Tensor, tensors: Sequence[Tensor], blocks: Sequence[Tensor], *, batched: bool = False
) -> Tensor:
    """Return J v for a block of vectors, (K, *outputs), by differentiating Jᵀu in u."""
    nothing = torch.zeros((len(blocks[0]), *outputs.shape), dtype=outputs.dtype, device=outputs.device)
    if not outputs.requires_grad:
        return nothing
    cotangent = torch.zeros_like(outputs, requires_grad=True)
    pulled = torch.autograd.grad(outputs, tensors, cotangent, create_graph=True, allow_unused=True)
    used = [(part, block) for part, block in zip(pulled, blocks) if part is not None and part.requires_grad]
    if not used:
        return nothing
    return vector_jacobian([part for part, _ in used], [cotangent], [block for _, block in used], batched=batched)[0]
