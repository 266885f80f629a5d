"""Products of H and G with a block of vectors, from one retained graph a batch.

H v differentiates the gradient's graph again; G v = Jᵀ Λ J v pushes v forward by differentiating the pull-back in its
cotangent (twice backward, which exists wherever a Hessian product does) and pulls Λ J v back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spiritlevel.problem import Problem

Vectors = Mapping[str, Tensor]  # parameter name -> (K, *shape)


def sweep_products(
    problem: Problem, vectors: Vectors, *, hessian: bool = True, ggn: bool = False, what: str = "products"
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return (H v, G v) for vectors over some parameters, restricted to these parameters; one sweep."""
    names = list(vectors)
    count = len(next(iter(vectors.values())))
    tensors = [problem.chosen_parameters[name] for name in names]
    blocks = [vectors[name].to(tensor) for name, tensor in zip(names, tensors)]
    total_h = [torch.zeros_like(block, dtype=torch.float64) for block in blocks] if hessian else []
    total_g = [torch.zeros_like(block, dtype=torch.float64) for block in blocks] if ggn else []
    survey = problem.survey
    with problem.session():
        for batch in problem.batches(what):
            outputs = problem.outputs(batch.content)
            losses, weights = problem.loss.per_sample(outputs, batch.content)
            problem.agrees(batch, losses)
            share = weights.detach() / survey.total_weight
            if hessian:
                loss = (share * losses).sum()
                for k, product in enumerate(_hessian_products(loss, tensors, blocks, count)):
                    for into, part in zip(total_h, product):
                        into[k] += part
            if ggn:
                forward = _push_forward(outputs, tensors, blocks, count)
                curved = problem.loss.hessian_product(outputs.detach(), batch.content, forward)
                curved = curved * share.reshape(1, -1, *([1] * (outputs.ndim - 1)))
                for k in range(count):
                    for into, part in zip(total_g, _gradient(outputs, tensors, curved[k])):
                        into[k] += part
    if hessian:
        problem.spent["hessian product"] += count
    if ggn:
        problem.spent["ggn product"] += count
    return dict(zip(names, total_h)), dict(zip(names, total_g))


def _gradient(outputs: Tensor, tensors: Sequence[Tensor], cotangent: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(
        outputs, tensors, cotangent, retain_graph=True, allow_unused=True, materialize_grads=True
    )


def _hessian_products(
    loss: Tensor, tensors: Sequence[Tensor], blocks: Sequence[Tensor], count: int
) -> list[tuple[Tensor, ...]]:
    first = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)
    curved = [
        (gradient, block) for gradient, block in zip(first, blocks) if gradient is not None and gradient.requires_grad
    ]
    if not curved:  # the loss is linear in these parameters
        return [tuple(torch.zeros_like(tensor) for tensor in tensors)] * count
    gradients = [gradient for gradient, _ in curved]
    return [
        torch.autograd.grad(
            gradients,
            tensors,
            [block[k] for _, block in curved],
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        for k in range(count)
    ]


def _push_forward(outputs: Tensor, tensors: Sequence[Tensor], blocks: Sequence[Tensor], count: int) -> Tensor:
    """Return J v for each vector, (K, B, *outputs), by differentiating Jᵀu in u."""
    cotangent = torch.zeros_like(outputs, requires_grad=True)
    pulled = torch.autograd.grad(outputs, tensors, cotangent, create_graph=True, allow_unused=True)
    used = [(part, block) for part, block in zip(pulled, blocks) if part is not None and part.requires_grad]
    if not used:
        return torch.zeros((count, *outputs.shape), dtype=outputs.dtype, device=outputs.device)
    parts = [part for part, _ in used]
    return torch.stack(
        [
            torch.autograd.grad(
                parts,
                cotangent,
                [block[k] for _, block in used],
                retain_graph=True,
                allow_unused=True,
                materialize_grads=True,
            )[0]
            for k in range(count)
        ]
    )
