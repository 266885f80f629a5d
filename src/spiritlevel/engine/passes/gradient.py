"""The gradient of the mean loss, and how large it would be by the noise of the samples alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.engine.layers.sample_gradients import SampleGradients
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import slice_batch
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.ranks import Ranks

PIECES = 8  # at least this many pieces of the data have their gradients compared, where there are as many samples


@dataclass(frozen=True)
class GradientStats:
    """The mean loss's gradient, with the standard error its norm has from the finite number of samples."""

    norm: float
    noise: float | None  # root of the trace of the gradient's covariance over N; None with one sample


class GradientSums:
    """The gradients of pieces of the data, batch after batch: their sum, and their spread around it."""

    def __init__(self, problem: OpenProblem) -> None:
        self.problem = problem
        count = problem.source.count or problem.survey.count
        self._step = max(1, math.ceil(count / PIECES))
        lengths = [tensor.numel() for tensor in problem.tensors]
        starts = [sum(lengths[:place]) for place in range(len(lengths))]
        self._places = {
            name: slice(start, start + length) for name, start, length in zip(problem.parameters, starts, lengths)
        }
        zeros = torch.zeros(problem.size, dtype=torch.float64, device=problem.device)
        self._total, self._weighted = zeros, zeros.clone()
        self._squares, self._mass_squares = zeros.new_zeros(()), zeros.new_zeros(())
        self._count = 0
        self._pieces: list[slice] = []  # of the present batch
        self._weights = zeros[:0]
        self._vectors = zeros[:0]

    def pieces(self, samples: int) -> list[slice]:
        """Return how a batch is cut.  Samples that influence each other must stay in the batch they belong to."""
        survey = self.problem.known_survey
        step = samples if survey is not None and survey.coupled else self._step
        return [slice(start, min(start + step, samples)) for start in range(0, samples, step)]

    def begin(self, batch: Batch, weights: Tensor) -> None:
        """Begin a batch whose samples have these weights (B,) in the mean loss."""
        self._pieces, self._weights = self.pieces(batch.count), weights
        self._vectors = self._total.new_zeros(len(self._pieces), self.problem.size)

    def add(self, full: str, gradients: SampleGradients, first: int) -> None:
        """Add one parameter's gradients of the batch's samples from ``first`` on."""
        for place, piece in enumerate(self._pieces):
            start, stop = max(piece.start, first), min(piece.stop, first + gradients.samples)
            if start < stop:
                chosen = torch.zeros(1, gradients.samples, dtype=self.problem.dtype, device=self.problem.device)
                chosen[0, start - first : stop - first] = self._weights[start:stop]
                self._vectors[place, self._places[full]] += gradients.combine(chosen).reshape(-1)

    def end(self) -> None:
        """Finish the batch."""
        for piece, vector in zip(self._pieces, self._vectors):
            self.take([vector[place] for place in self._places.values()], self._weights[piece].sum())

    def take(self, parts: Sequence[Tensor], mass: Tensor) -> None:
        """Take in Σ w g of one piece, parameter by parameter, and its Σ w: a large model has no room for copies."""
        for part, place in zip(parts, self._places.values()):
            flat = part.reshape(-1)
            self._total[place] += flat
            self._weighted[place] += mass * flat.double()
            self._squares += torch.linalg.vector_norm(flat, dtype=torch.float64).square()
        self._mass_squares += mass.square()
        self._count += 1

    def unite(self, group: Ranks) -> None:
        """Take in what the other ranks added."""
        if not group.meets:
            return
        own = {
            "total": self._total,
            "weighted": self._weighted,
            "squares": self._squares,
            "mass": self._mass_squares,
            "count": torch.tensor(self._count, device=self._total.device),
        }
        found, _ = group.united(own, device=self.problem.device)
        self._total, self._weighted, self._squares = found["total"], found["weighted"], found["squares"]
        self._mass_squares, self._count = found["mass"], int(found["count"])

    def result(self, total_weight: float) -> GradientStats:
        """Return the mean gradient and its noise, given the weight of all samples."""
        norm = float(self._total.norm()) / total_weight
        noise = None
        if self._count > 1:
            # Independent pieces b of mass m_b: Var(Σ g_b) is Σ |g_b - m_b g|², g the whole gradient.
            along = self._weighted @ self._total / total_weight
            spread = float(self._squares - 2 * along + self._mass_squares * norm**2)
            noise = math.sqrt(max(spread, 0.0) * self._count / (self._count - 1)) / total_weight
        return GradientStats(norm, noise)


def mean_gradient(problem: OpenProblem) -> GradientStats:
    """Sweep the data once; pieces of it are differentiated apart, whose spread gives the noise."""
    survey = problem.survey
    sums = GradientSums(problem)
    with problem.sweep("gradient") as group:
        for batch in problem.batches("gradient"):
            for piece in sums.pieces(batch.count):
                content = slice_batch(batch.content, piece.start, piece.stop)
                losses, weights = problem.loss.per_sample(problem.outputs(content), content)
                problem.agrees(Batch(content, batch.start + piece.start, len(losses)), losses)
                weights = weights.detach()
                parts = torch.autograd.grad(
                    (weights * losses).sum(), problem.tensors, allow_unused=True, materialize_grads=True
                )
                sums.take(parts, weights.sum().double())
    problem.spent["gradient"] += 1
    sums.unite(group)
    return sums.result(survey.total_weight)
