"""Errors over samples for any measure: both networks measured on the same disjoint groups of the data.

The spread of the ratio between groups, divided by the root of their number, is the error of the ratio on all samples
to first order in 1/N.  Together the groups cost one more measurement of each network, where leaving out one group at a
time would cost as many as there are groups.

An eigenvalue's first order is vᵀH_g v, with v the eigenvector over all samples.  A group's own largest eigenvalue is no
smaller, and in fifty samples easily twice as large: of LeNet-5 on 500 images its logarithm's spread gave errors of 0.10
and 0.15 where 24 other draws of 500 images lay 0.27 and 0.26 apart (vᵀH_g v: 0.18 and 0.17).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.analyses.measure_settings import wanted_of
from spiritlevel.analyses.measuring import estimates_of
from spiritlevel.engine.blocks import BUDGET
from spiritlevel.engine.estimators.eigenvalues import Eigenpairs, Which
from spiritlevel.engine.estimators.lanczos import wide
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.inputs.contents import Content, count_of, pick_samples
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.workbench import Workbench
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Estimate

FEWEST_SAMPLES = 20  # of a group: fewer say little about a measure that is not a mean


def on_samples(problem: OpenProblem, kept: Tensor) -> OpenProblem:
    """Return the problem on some of its samples, by a mask (N,) in data order."""
    source = problem.source
    if source.some is not None:
        return problem.joined(OpenProblem(problem.given.replaced(source=source.some(kept.nonzero()[:, 0]))))

    def read() -> Iterator[Content]:
        start = 0
        for content in source.read():
            count = count_of(content)
            local = kept[start : start + count]
            start += count
            if bool(local.any()):
                yield pick_samples(content, local)

    indices = source.indices_of(len(kept))[kept]
    own = replace(source, read=read, resized=None, count=None, indices=indices)
    return problem.joined(OpenProblem(problem.given.replaced(source=own)))


def measured_by_group(
    problems: Mapping[str, OpenProblem],
    chosen: list[Measure],
    groups: int,
    *,
    settings: Mapping[str, Mapping[str, Any]],
    known: Mapping[str, Workbench],
    seed: int = 0,
    tolerance: float | None = None,
) -> dict[str, list[dict[str, Estimate]]]:
    """Return by network the values in each group; nothing where samples are too few or influence each other.

    All networks see the same groups, drawn once.  ``known`` are the quantities over all samples.
    """
    surveys = [problem.survey for problem in problems.values()]
    count = surveys[0].count
    groups = min(groups, count // FEWEST_SAMPLES)
    if not chosen or groups < 2 or any(survey.coupled for survey in surveys):
        return {}
    member = torch.from_numpy(np.random.default_rng(seed).permutation(count) % groups)
    found: dict[str, list[dict[str, Estimate]]] = {label: [] for label in problems}
    for group in range(groups):
        for label, problem in problems.items():
            part = on_samples(problem, member == group)
            part.derivatives = problem.derivatives  # checked on samples from all over the data
            if problem.deadline is not None:
                left = groups * len(problems) - sum(map(len, found.values()))
                part.deadline = problem.deadline.elsewhere(1 / left)
            try:
                bench = _GroupWorkbench(known[label], part, chosen, settings, seed=seed, tolerance=tolerance)
                values = estimates_of(bench, chosen, settings)
            except SpiritlevelError:  # all labels of the group ignored, and the like
                return {}
            found[label].append(values)
    return found


class _GroupWorkbench(Workbench):
    """The quantities of a group of samples, with eigenvalues to first order from those of all samples."""

    def __init__(
        self,
        whole: Workbench,
        part: OpenProblem,
        chosen: list[Measure],
        settings: Mapping[str, Mapping[str, Any]],
        *,
        seed: int,
        tolerance: float | None,
    ) -> None:
        budget = BUDGET if part.deadline is None else math.inf
        super().__init__(part, wanted_of(chosen, settings), seed=seed, tolerance=tolerance, budget=budget)
        self._whole = whole

    @property
    def eigen(self) -> Callable[..., Eigenpairs]:
        """What the eigenvalues of all samples' Hessian are of the group's: vᵀH_g v."""

        def find(k: int = 1, which: Which = "largest", tolerance: float | None = None) -> Eigenpairs:
            pairs = self._whole.eigen(k, which, tolerance)
            images = HessianOperator(self.problem) @ pairs.vectors
            values = torch.linalg.vecdot(wide(pairs.vectors.T), wide(images.T))
            apart = wide(images.T) - values[:, None] * wide(pairs.vectors.T)
            return replace(pairs, values=values.cpu(), residuals=torch.linalg.vector_norm(apart, dim=1).cpu())

        return find
