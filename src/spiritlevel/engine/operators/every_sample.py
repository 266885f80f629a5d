"""All samples' derivatives against central differences, where something in the graph could hide what they are.

A function written in Python has a backward of its own; a value that left the graph (detach, ``.item()``) comes back as
a constant.  Either may be right for most samples and wrong for one, which a check of a few samples would not show.  So
batches in which such a thing was seen are looked at whole: a random combination of all samples' outputs has its first
and second derivative along a random direction taken both ways, in float64 at two generic points, one near the
parameters and one next to them, and must agree so closely that one sample's part, were it wrong, would stand out.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.operators.differentiation import gradient_graph, hessian_vectors
from spiritlevel.engine.operators.generic_point import AWAY, CLOSE_BY, ROUNDINGS, STEPS, GenericPoint
from spiritlevel.engine.passes.graph import Graph
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.errors import SpiritlevelError

# Of the sum over samples of the sizes: far below one sample's part.  Models that do not run in float64 show less.
CLOSE, CLOSE_OTHERWISE = 1e-7, 0.05
# A difference that rounding blurs by more than this part of one sample's share decides nothing.
BLURRED, BLURRED_OTHERWISE = 0.1, 100.0
# A tensor whose gradient is small moves further, up to so many times: its part, were it wrong, must stand out as well.
FURTHER = 1e4


def vet(problem: OpenProblem, batch: Batch, graph: Graph, *, order: Literal[1, 2]) -> None:
    """Refuse a batch in which autograd is wrong for any sample, where its graph leaves that open.

    ``order``: of the derivatives that are wanted.  A batch is looked at once.
    """
    if not graph.before_custom and not problem.watch.values_left_the_graph:
        return
    if problem.vetted.get(batch.start, 0) >= order:
        return
    for dtype in dict.fromkeys((torch.float64, problem.dtype)):
        try:
            found = (_Combination(problem, batch, dtype, d).what_is_wrong(order) for d in (AWAY, CLOSE_BY))
            wrong = next(filter(None, found), "")
        except (RuntimeError, TypeError, NotImplementedError) as error:
            if dtype == problem.dtype:
                raise SpiritlevelError(
                    f"derivatives of the model's own functions cannot be checked ({type(error).__name__}: "
                    f"{' '.join(str(error).split())[:120]}), so nothing is known of their curvature"
                ) from error
            continue  # constants of another dtype inside the model
        if wrong:
            first, last = (problem.source.index(batch.start + place) for place in (0, batch.count - 1))
            raise SpiritlevelError(
                f"{wrong} for some of the samples {first} to {last} (a custom backward, "
                "a detach or a straight-through estimator lies between), so there is no Hessian to measure; measure "
                "the network without that operation"
            )
        break
    problem.vetted[batch.start] = order


class _Combination:
    """A random combination of a batch's outputs as a function of a step along one direction."""

    def __init__(self, problem: OpenProblem, batch: Batch, dtype: torch.dtype, distance: float) -> None:
        self.dtype, self.samples = dtype, batch.count
        self.at = GenericPoint(problem, dtype, distance)
        self.content = self.at.cast(batch.content)
        self.mixture: Tensor | None = None
        self._generator = seeded_generator(problem.seed, 9)

    def what_is_wrong(self, order: Literal[1, 2]) -> str:
        """Return which derivative no step of a difference agrees with, in words; empty where all is well."""
        self._balance()
        _, sizes, slope, bend = self._derivatives(0.0, order)
        plain = self.dtype == torch.float64 and not self.at.in_part
        close, blurred = (CLOSE, BLURRED) if plain else (CLOSE_OTHERWISE, BLURRED_OTHERWISE)
        slope_agrees, bend_agrees, bend_refuted, decided = False, bend is None, False, False
        rounding = ROUNDINGS * torch.finfo(self.dtype).eps
        before: tuple[float, float, float] | None = None  # what the step before gave, and how it was rounded
        for step in STEPS[self.dtype]:
            ahead, behind = (self._derivatives(size, 1) for size in (step, -step))
            by_sample = (ahead[0] - behind[0]) / (2 * step)
            first, second = float(by_sample.sum()), (ahead[2] - behind[2]) / (2 * step)
            total, blur = float(by_sample.abs().sum()), rounding * float(sizes.sum()) / step
            # Two steps tell how sharp a difference is: a kink in between, a curvature of extreme scale.
            apart = (0.0, 0.0) if before is None else (abs(first - before[0]), abs(second - before[1]))
            rounded = rounding * total / step
            if blur + apart[0] <= blurred * total / self.samples:
                decided = True
                slope_agrees |= abs(slope - first) <= close * total + blur + 3 * apart[0]
            if bend is not None:
                allowed, gap = 10 * close * max(abs(second), abs(bend)), abs(bend - second)
                bend_agrees |= gap <= allowed + rounded + 3 * apart[1]
                # Two steps that agree with each other and not with it: no later one, across a kink, can save it.
                sharpest = math.inf if before is None else min(rounded, before[2]) + 10 * apart[1]
                bend_refuted |= gap > allowed + sharpest
            bend_agrees &= not bend_refuted
            before = first, second, rounded
            # In float64 a later step is rounded more: it could not refute what agrees to the rounding of this one.
            if slope_agrees and bend_agrees and (bend is None or plain or step != STEPS[self.dtype][0]):
                return ""
        if decided and not slope_agrees:
            return "the gradient that torch computes is not the derivative of the outputs"
        if bend_agrees:
            return ""  # no difference was sharp enough to tell anything; a few samples were looked at elsewhere
        return "the second derivative that torch computes is not the derivative of the gradient"

    def _balance(self) -> None:
        """Let every tensor's part of the slope be of about one size, and all of one sign: they may not cancel."""
        gradient, _, _ = self._gradient(0.0, 1)
        parts = dict(zip(self.at.scales, self.at.slopes(gradient).tolist()))
        largest = max(map(abs, parts.values()), default=0.0)
        for name, part in parts.items():
            if part != 0:  # one that takes no gradient at all moves as it is
                self.at.further[name] = math.copysign(min(largest / abs(part), FURTHER), part)

    def _derivatives(self, step: float, order: Literal[1, 2]) -> tuple[Tensor, Tensor, float, float | None]:
        """Return each sample's part, the size of what it is made of, and the sum's derivatives along the direction."""
        gradient, parts, bend = self._gradient(step, order)
        return parts.sum(1), parts.abs().sum(1), float(self.at.slopes(gradient).sum()), bend

    def _gradient(self, step: float, order: Literal[1, 2]) -> tuple[list[Tensor], Tensor, float | None]:
        """Return the gradient of the combination, its parts (B, ...) and, where asked for, its second derivative."""
        leaves = self.at.leaves(step)
        outputs = self.at.outputs(self.content, leaves)
        if self.mixture is None:
            drawn = torch.randn(outputs.shape, generator=self._generator, dtype=torch.float64)
            self.mixture = drawn.to(outputs)
        parts = (self.mixture * outputs).reshape(len(outputs), -1)
        tensors = list(leaves.values())
        total, bend = parts.sum(), None
        gradient = gradient_graph(total, tensors) if order == 2 else _plain_gradient(total, tensors)
        if order == 2:
            bent = hessian_vectors(gradient, tensors, [self.at.direction(name)[None] for name in leaves])
            bend = float(self.at.slopes([part[0] for part in bent]).sum())
        filled = [torch.zeros_like(t) if g is None else g.detach() for g, t in zip(gradient, tensors)]
        return filled, parts.detach().double(), bend


def _plain_gradient(total: Tensor, tensors: list[Tensor]) -> list[Tensor | None]:
    if not total.requires_grad:
        return [None] * len(tensors)
    return list(torch.autograd.grad(total, tensors, allow_unused=True))
