"""Small problems whose losses are looked at after finite moves."""

from __future__ import annotations

import torch
from torch import Tensor

from spiritlevel.inputs.open_problem import OpenProblem
from tests.helpers import opened

FLOAT = torch.float64


def classes(seed: int, count: int, inputs: int, labels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, inputs, generator=generator, dtype=FLOAT)
    return x, torch.randint(0, labels, (count,), generator=generator)


def trained(problem: OpenProblem, steps: int = 200) -> OpenProblem:
    """Move a small problem's own model to a minimum of its loss by full-batch quasi-Newton steps."""
    (content,) = list(opened(problem.model, classes_of(problem), problem.loss).source.read())
    optimiser = torch.optim.LBFGS(problem.model.parameters(), max_iter=steps, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = problem.loss.per_sample(problem.model(content[0]), content)[0].mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    return problem


def classes_of(problem: OpenProblem) -> tuple[Tensor, Tensor]:
    parts = list(problem.source.read())
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
