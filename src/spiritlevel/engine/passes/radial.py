"""The derivative of every sample's outputs along the parameters themselves, J θ, in one sweep.

Moving along θ scales all weights at once.  What that does to a sample's loss, in first order (∂ℓ/∂f)·Jθ and by the
curvature of the loss in the outputs (Jθ)ᵀΛ(Jθ), is what the Fisher–Rao norms are means of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad

from spiritlevel.engine.operators.products import retained
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import Content, map_tensors
from spiritlevel.inputs.losses import CrossEntropy, NormalizedCrossEntropy
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.sweeping import SampleRows
from spiritlevel.inputs.torch_internals.backward import vjp


@dataclass(frozen=True)
class RadialStats:
    """Numbers of every sample, in data order, as float64 vectors on the CPU."""

    loss_slope: Tensor  # (N,): the derivative of its loss along θ
    curvature: Tensor  # (N,): θᵀ JᵀΛJ θ
    weights: Tensor  # (N,): its weight in the mean loss


def radial_statistics(problem: OpenProblem) -> RadialStats:
    """Sweep the data once and return each sample's slope and Gauss–Newton curvature along θ."""
    rows = SampleRows(problem)
    with problem.session():
        by_forward_mode = _forward_mode_agrees(problem, next(problem.batches()))
    what = "derivative along the parameters"
    with problem.sweep(what) as group:
        for batch in problem.batches(what):
            outputs, forward = _along(problem, batch) if by_forward_mode else _along_twice_back(problem, batch)
            forward = forward.double()
            # The loss is differentiated in float64: for a confident sample its gradient is a difference of near-equals.
            scores = outputs.detach().double().requires_grad_()
            content = map_tensors(batch.content, lambda t: t.double() if t.is_floating_point() else t)
            losses, _ = problem.loss.per_sample(scores, content)
            problem.agrees(batch, losses)
            (gradient,) = torch.autograd.grad(losses.sum(), scores)
            curved = problem.loss.hessian_product(scores.detach(), content, forward[None])[0].double()
            slopes = _per_sample(gradient * _centred(problem, scores, forward, content))
            rows.add(batch, {"slopes": slopes, "curvatures": _per_sample(forward * curved)})
    problem.spent["forward"] += 1
    problem.spent["gradient"] += 1 if by_forward_mode else 2  # without it a pull-back, and its derivative
    found = rows.united(group)
    assert found["slopes"] is not None
    assert found["curvatures"] is not None
    return RadialStats(found["slopes"], found["curvatures"], problem.survey.weights)


def _along(problem: OpenProblem, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the outputs and J θ in one forward pass."""
    with torch.no_grad(), forward_ad.dual_level():
        pairs = {
            name: forward_ad.make_dual(tensor.detach(), tensor.detach())
            for name, tensor in problem.chosen_parameters.items()
        }
        outputs, along = forward_ad.unpack_dual(problem.outputs(batch.content, pairs))
    return outputs, torch.zeros_like(outputs) if along is None else along


def _along_twice_back(problem: OpenProblem, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the same by differentiating the pull-back, which every operation with a gradient allows."""
    part = retained(problem, batch)
    along = part.push([tensor.detach()[None] for tensor in problem.tensors])
    return part.outputs.detach(), along[0].detach()


def _forward_mode_agrees(problem: OpenProblem, batch: Batch) -> bool:
    """Whether the operations have a forward derivative and it is the transpose of the backward one, on this batch."""
    try:
        _, along = _along(problem, batch)
    except (RuntimeError, NotImplementedError):
        return False
    outputs = problem.outputs(batch.content)
    if not outputs.requires_grad:
        return not bool(along.any())
    generator = torch.Generator().manual_seed(problem.seed)
    cotangent = torch.randn(outputs.shape, generator=generator).to(outputs)
    pulled = vjp(outputs, problem.tensors, cotangent, allow_unused=True, materialize_grads=True)
    back = sum(float((g.double() * t.detach().double()).sum()) for g, t in zip(pulled, problem.tensors))
    products = cotangent.double() * along.double()
    tolerance = 1e-3 if problem.dtype == torch.float32 else 1e-9
    return bool(abs(float(products.sum()) - back) <= tolerance * float(products.norm()))


def _centred(problem: OpenProblem, scores: Tensor, forward: Tensor, content: Content) -> Tensor:
    """Return J θ less its entry at the largest score, where the loss ignores a shift of all scores.

    The gradient's entries then sum to 0, so nothing changes but rounding: its entry at the largest score, p_c - 1 for a
    confident sample, has no correct digits left, and is multiplied by 0.
    """
    if scores.ndim != 2 or not isinstance(problem.loss, (CrossEntropy, NormalizedCrossEntropy)):
        return forward
    return forward - forward.gather(1, scores.detach().argmax(1, keepdim=True))


def _per_sample(products: Tensor) -> Tensor:
    return products.reshape(len(products), -1).sum(1).detach().cpu()
