"""The derivative of every sample's outputs along the parameters themselves, J θ, in one sweep.

Moving along θ scales all weights at once.  What that does to a sample's loss, in first order (∂ℓ/∂f)·Jθ and by the
curvature of the loss in the outputs (Jθ)ᵀΛ(Jθ), is what the Fisher–Rao norms are means of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.data import Content, map_tensors
from spiritlevel.losses import CrossEntropy, NormalizedCrossEntropy
from spiritlevel.operators.products import retained
from spiritlevel.problem import Problem


@dataclass(frozen=True)
class RadialStats:
    """Numbers of every sample, in data order, as float64 vectors on the CPU."""

    loss_slope: Tensor  # (N,): the derivative of its loss along θ
    curvature: Tensor  # (N,): θᵀ JᵀΛJ θ
    weights: Tensor  # (N,): its weight in the mean loss


def radial_statistics(problem: Problem) -> RadialStats:
    """Sweep the data once and return each sample's slope and Gauss–Newton curvature along θ."""
    slopes, curvatures = [], []
    along = [tensor.detach()[None] for tensor in problem.tensors]
    with problem.session():
        for batch in problem.batches("derivative along the parameters"):
            part = retained(problem, batch)
            outputs = part.outputs
            forward = part.push(along)[0].detach().double()
            # The loss is differentiated in float64: for a confident sample its gradient is a difference of near-equals.
            scores = outputs.detach().double().requires_grad_()
            content = map_tensors(batch.content, lambda t: t.double() if t.is_floating_point() else t)
            losses, _ = problem.loss.per_sample(scores, content)
            problem.agrees(batch, losses)
            (gradient,) = torch.autograd.grad(losses.sum(), scores)
            curved = problem.loss.hessian_product(scores.detach(), content, forward[None])[0].double()
            slopes.append(_per_sample(gradient * _centred(problem, scores, forward, content)))
            curvatures.append(_per_sample(forward * curved))
    problem.spent["forward"] += 1
    problem.spent["gradient"] += 2  # a pull-back, and its derivative
    return RadialStats(torch.cat(slopes), torch.cat(curvatures), problem.survey.weights)


def _centred(problem: Problem, scores: Tensor, forward: Tensor, content: Content) -> Tensor:
    """Return J θ less its entry at the largest score, where the loss ignores a shift of all scores.

    The gradient's entries then sum to 0, so nothing changes but rounding: its entry at the largest score, p_c - 1 for a
    confident sample, has no correct digits left, and is multiplied by 0.
    """
    if scores.ndim != 2 or not isinstance(problem.loss, (CrossEntropy, NormalizedCrossEntropy)):
        return forward
    return forward - forward.gather(1, scores.detach().argmax(1, keepdim=True))


def _per_sample(products: Tensor) -> Tensor:
    return products.reshape(len(products), -1).sum(1).detach().cpu()
