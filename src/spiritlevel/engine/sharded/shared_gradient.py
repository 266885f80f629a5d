"""The gradient of the mean loss over the data of all ranks, and its noise by how far gradients of pieces lie apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from spiritlevel.engine.passes.gradient import PIECES, GradientStats
from spiritlevel.engine.sharded.open_sharded import JointBatch, ShardedProblem
from spiritlevel.engine.sharded.vectors import norm, squares
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import slice_batch


def shared_gradient(problem: ShardedProblem) -> GradientStats:
    """Sweep the data once; what all ranks add to one piece is one gradient of the spread."""
    survey, company = problem.survey, problem.company
    total = [torch.zeros_like(part, dtype=torch.float64) for part in problem.tensors]
    weighted = [torch.zeros_like(part) for part in total]
    masses: list[Tensor] = []
    spread = torch.zeros((), dtype=torch.float64, device=problem.device)
    with problem.session(), problem.gathering.keeping_parts():
        for joint in problem.joint_batches("gradient"):
            for piece in _pieces(problem, joint):
                losses, weights = problem.loss.per_sample(problem.outputs(piece.batch.content), piece.batch.content)
                shares = problem.shares(piece, weights)
                parts = torch.autograd.grad(
                    (shares * losses).sum(), problem.tensors, allow_unused=True, materialize_grads=True
                )
                masses.append(company.over_data(shares.double().sum().reshape(1))[0])
                spread += squares(parts).sum()
                for whole, heavy, part in zip(total, weighted, parts):
                    whole += part
                    heavy += masses[-1].to(part.device) * part
    problem.spent["gradient"] += 1
    length = norm(problem, total)
    count = len(masses)
    noise = None
    if count > 1 and survey.count > 1:
        # Var(Σ g_b) is Σ |g_b - m_b g|² over the pieces b of mass m_b, g the whole gradient.
        along = company.total(torch.stack([(a * b).sum() for a, b in zip(weighted, total)]).sum())
        inner = float(company.total(spread) - 2 * along) + float(torch.stack(masses).square().sum()) * length**2
        noise = math.sqrt(max(inner, 0.0) * count / (count - 1))
    return GradientStats(length, noise)


def _pieces(problem: ShardedProblem, joint: JointBatch) -> Iterator[JointBatch]:
    """Yield a joint in as many pieces on every rank as give enough of them in all; samples are dealt out evenly."""
    wanted = math.ceil(PIECES / max(problem.joint_batches_a_sweep, 1))
    batch = joint.batch
    bounds = [batch.count * place // wanted for place in range(wanted + 1)]
    for start, stop in itertools.pairwise(bounds):
        if start == stop:  # more pieces than samples: this rank takes part without weight
            yield JointBatch(Batch(slice_batch(batch.content, 0, 1), batch.start, 1), False)
        else:
            yield JointBatch(
                Batch(slice_batch(batch.content, start, stop), batch.start + start, stop - start), joint.counts
            )
