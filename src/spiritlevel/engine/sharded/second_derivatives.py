"""Whether differentiating twice gives a sharded model's second derivative: one product against differences.

A random combination of the outputs is added to the loss, which shows nothing where it is at its minimum.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from spiritlevel.engine.operators.derivative_check import DerivativePath
from spiritlevel.engine.operators.differentiation import gradient_graph, hessian_vectors
from spiritlevel.engine.operators.extrapolation import extrapolated
from spiritlevel.engine.operators.generic_point import SMALLEST_SCALE
from spiritlevel.engine.sharded.open_sharded import ShardedProblem
from spiritlevel.engine.sharded.vectors import local_signs, norm, split, squares
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import slice_batch
from spiritlevel.inputs.splitmix import splitmix64
from spiritlevel.values.errors import SpiritlevelError

SAMPLES = 8  # of every rank
# Steps in units of the parameters' own size; what derivatives may differ by; what of that a difference may be off by.
STEPS = {torch.float64: (1e-5, 1e-6, 1e-4, 1e-3), torch.float32: (3e-3, 1e-3, 1e-2)}
TOLERANCE = {torch.float64: 2e-3, torch.float32: 0.05}
SLOPE = 0.05
USABLE = 0.2


def checked_path(problem: ShardedProblem) -> DerivativePath:
    """Return how products are to be made, refusing a gradient that is not the derivative of the loss."""
    with problem.session(), problem.gathering.keeping_parts():
        check = _ShardedCheck(problem)
        path = check.path()
    if path.differences:
        problem.notes.append(f"Products with the Hessian are {path.label}, because {path.reason}.")
    return path


class _ShardedCheck:
    def __init__(self, problem: ShardedProblem) -> None:
        self.problem = problem
        self.joint = next(problem.joint_batches())
        batch = self.joint.batch
        count = min(SAMPLES, batch.count)
        self.batch = Batch(slice_batch(batch.content, 0, count), 0, count)
        rms = (problem.company.total(squares(problem.tensors)) / self._sizes()).sqrt().clamp_min(SMALLEST_SCALE)
        self.scales: list[float] = rms.tolist()
        signs = split(problem, local_signs(problem, 1, seed=problem.seed + 1))
        self.along = [scale * part[0] for scale, part in zip(self.scales, signs)]
        self.measure = functools.partial(norm, problem)
        self.mixture: Tensor | None = None

    def _sizes(self) -> Tensor:
        sizes = [self.problem.layouts[name].shape.numel() for name in self.problem.parameters]
        return torch.tensor(sizes, dtype=torch.float64, device=self.problem.device)

    def _loss(self, parameters: dict[str, Tensor] | None) -> Tensor:
        outputs = self.problem.outputs(self.batch.content, parameters)
        losses, weights = self.problem.loss.per_sample(outputs, self.batch.content)
        if self.mixture is None:
            entries = torch.arange(outputs.numel(), device=outputs.device) + 7919 * self.problem.company.rank
            drawn = (splitmix64(self.problem.seed, entries) % 2001).to(outputs.dtype) / 1000 - 1
            self.mixture = drawn.reshape(outputs.shape) / (float(outputs.detach().abs().max()) or 1.0) / len(outputs)
        share = weights.detach() / weights.detach().sum().clamp_min(1e-30)
        return (share * losses).sum() + (self.mixture * outputs).sum()

    def _moved(self, step: float) -> dict[str, Tensor]:
        return {
            name: (part.detach() + step * along).requires_grad_()
            for (name, part), along in zip(self.problem.chosen_parameters.items(), self.along)
        }

    def _gradient(self, step: float) -> list[Tensor]:
        leaves = self._moved(step)
        found = torch.autograd.grad(
            self._loss(leaves), list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        return list(found)

    def _loss_at(self, step: float) -> list[Tensor]:
        with torch.no_grad():
            return [self.problem.company.over_data(self._loss(self._moved(step)).reshape(1))]

    def path(self) -> DerivativePath:
        """Look at the gradient first, and then at a product."""
        steps = STEPS[self.problem.dtype]
        self._require_slope(steps)
        path = DerivativePath()
        try:
            twice = self._twice()
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            path.hessian = "finite differences"
            said = " ".join(str(error).split())[:160]
            path.reason = f"autograd has no second derivative of an operation here ({said})"
            return path
        right = torch.zeros(len(twice), dtype=torch.bool)
        for step in steps:
            right |= self._agree(twice, step)
            if bool(right.all()):
                return path
        wrong = [name for name, agrees in zip(self.problem.parameters, right.tolist()) if not agrees]
        path.hessian, path.wrong = "finite differences", frozenset(wrong)
        path.reason = (
            f"an operation gives a wrong second derivative without saying so (first seen in {wrong[0]}): a backward "
            "that is once_differentiable or cuts the graph"
        )
        return path

    def _twice(self) -> list[Tensor]:
        tensors = self.problem.tensors
        gradient = gradient_graph(self._loss(None), tensors)
        return [part[0] for part in hessian_vectors(gradient, tensors, [part[None] for part in self.along])]

    def _agree(self, twice: Sequence[Tensor], step: float) -> Tensor:
        """Return which parameters' products agree with a difference, each in units of its own scale."""
        wide, narrow = (extrapolated(self._gradient, size, self.measure) for size in (step, step / 3))
        lists = (
            [a - b for a, b in zip(twice, narrow.parts)],
            [a - b for a, b in zip(wide.parts, narrow.parts)],
            narrow.parts,
        )
        scales = torch.tensor(self.scales, dtype=torch.float64, device=self.problem.device)
        sums = self.problem.company.total(torch.stack([squares(parts) for parts in lists]))
        apart, gap, size = sums.sqrt() * scales
        whole = size.norm()
        tolerance = TOLERANCE[self.problem.dtype]
        allowed = tolerance * size + 0.01 * tolerance * whole + 3 * gap
        usable: Tensor = gap <= USABLE * size + 0.01 * whole
        return torch.logical_and(apart <= allowed, usable).cpu()

    def _require_slope(self, steps: Sequence[float]) -> None:
        gradient = self._gradient(0.0)
        total = self.problem.company.total
        own = torch.stack([(a.double() * b.double()).sum() for a, b in zip(gradient, self.along)])
        slope = float(total(own.sum()))
        scaled = torch.tensor(self.scales, dtype=torch.float64, device=self.problem.device)
        size = float((total(squares(gradient)).sqrt() * scaled).norm())
        for step in steps:
            found = extrapolated(self._loss_at, step, lambda parts: float(torch.stack(list(parts)).norm()))
            if abs(float(found.parts[0]) - slope) <= SLOPE * size + found.gap:
                return
        raise SpiritlevelError(
            "the gradient that torch computes is not the derivative of the loss (a detach, a straight-through "
            "estimator, a custom backward or half precision lies between), so there is no Hessian to measure; "
            "measure the network without that operation"
        )
