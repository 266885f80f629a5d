"""The gradient of the mean loss, and how large it would be by the noise of the samples alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.data import slice_batch
from spiritlevel.problem import Batch, Problem

PIECES = 8  # at least this many pieces of the data have their gradients compared, where there are as many samples


@dataclass(frozen=True)
class GradientStats:
    """The mean loss's gradient, with the standard error its norm has from the finite number of samples."""

    vector: Tensor  # (P,) float64, CPU
    norm: float
    noise: float | None  # root of the trace of the gradient's covariance over N; None with one sample

    @property
    def at_minimum(self) -> bool | None:
        """Whether the gradient is within twice its own noise: nothing more can be told from these samples."""
        return None if self.noise is None else self.norm <= 2 * self.noise


def mean_gradient(problem: Problem) -> GradientStats:
    """Sweep the data once; pieces of it are differentiated apart, whose spread gives the noise."""
    survey = problem.survey
    piece = max(1, math.ceil(survey.count / PIECES))
    total = torch.zeros(problem.size, dtype=torch.float64)
    weighted = torch.zeros_like(total)
    squares = mass_squares = 0.0
    pieces = 0
    with problem.session():
        for batch in problem.batches("gradient"):
            # Coupled samples must stay in the batch they belong to.
            step = batch.count if survey.coupled else min(piece, batch.count)
            for start in range(0, batch.count, step):
                content = slice_batch(batch.content, start, start + step)
                losses, weights = problem.loss.per_sample(problem.outputs(content), content)
                problem.agrees(Batch(content, batch.start + start, len(losses)), losses)
                share = weights.detach() / survey.total_weight
                parts = torch.autograd.grad(
                    (share * losses).sum(), problem.tensors, allow_unused=True, materialize_grads=True
                )
                vector = torch.cat([part.reshape(-1) for part in parts]).double().cpu()
                mass = float(share.sum())
                total += vector
                weighted += mass * vector
                squares += float(vector @ vector)
                mass_squares += mass**2
                pieces += 1
    problem.spent["gradient"] += 1
    norm = float(total.norm())
    noise = None
    if pieces > 1:
        # Independent pieces b of mass m_b: Var(Σ g_b) is Σ |g_b - m_b g|², g the whole gradient.
        spread = squares - 2 * float(weighted @ total) + mass_squares * norm**2
        noise = math.sqrt(max(spread, 0.0) * pieces / (pieces - 1))
    return GradientStats(total, norm, noise)
