"""Errors over samples for any measure: both networks measured on the same disjoint groups of the data.

The spread of the ratio between groups, divided by the root of their number, is the error of the ratio on all samples
to first order in 1/N.  Together the groups cost one more measurement of each network, where leaving out one group at a
time would cost as many as there are groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.analyses.measuring import measure
from spiritlevel.inputs.contents import Content, count_of, pick_samples
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.declaration import Measure
from spiritlevel.results import Report
from spiritlevel.values.errors import SpiritlevelError

FEWEST_SAMPLES = 20  # of a group: fewer say little about a measure that is not a mean


def on_samples(problem: OpenProblem, kept: Tensor) -> OpenProblem:
    """Return the problem on some of its samples, by a mask (N,) in data order."""
    source = problem.source

    def read() -> Iterator[Content]:
        start = 0
        for content in source.read():
            count = count_of(content)
            local = kept[start : start + count]
            start += count
            if bool(local.any()):
                yield pick_samples(content, local)

    indices = source.indices_of(len(kept))[kept]
    own = replace(source, read=read, resized=None, count=None, every=None, indices=indices)
    return problem.joined(OpenProblem(problem.given.replaced(source=own)))


def measured_by_group(
    problems: Mapping[str, OpenProblem],
    chosen: list[Measure],
    groups: int,
    *,
    settings: Mapping[str, Any],
    seed: int = 0,
    tolerance: float | None = None,
) -> dict[str, list[Report]]:
    """Return by network one report a group; nothing where samples are too few or influence each other.

    All networks see the same groups, drawn once.
    """
    surveys = [problem.survey for problem in problems.values()]
    count = surveys[0].count
    groups = min(groups, count // FEWEST_SAMPLES)
    if not chosen or groups < 2 or any(survey.coupled for survey in surveys):
        return {}
    member = torch.from_numpy(np.random.default_rng(seed).permutation(count) % groups)
    names = {own.name for own in chosen}
    own_settings = {key: value for key, value in settings.items() if key.partition(".")[0] in names}
    found: dict[str, list[Report]] = {label: [] for label in problems}
    for group in range(groups):
        for label, problem in problems.items():
            part = on_samples(problem, member == group)
            if problem.deadline is not None:
                left = groups * len(problems) - sum(map(len, found.values()))
                part.deadline = problem.deadline.elsewhere(1 / left)
            try:
                report = measure(part, measures=chosen, settings=own_settings, seed=seed, tolerance=tolerance)
            except SpiritlevelError:  # all labels of the group ignored, and the like
                return {}
            found[label].append(report)
    return found
