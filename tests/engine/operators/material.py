"""Vectors and the distance of products, for the tests of operators."""

from __future__ import annotations

import torch
from torch import Tensor

from spiritlevel.inputs.open_problem import OpenProblem
from tests.networks import PIECEWISE_LINEAR, SMOOTH

CASES = {**PIECEWISE_LINEAR, **SMOOTH}


def vectors(problem: OpenProblem, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randn(problem.size, count, generator=generator, dtype=torch.float64).to(problem.dtype)


def distance(found: Tensor, wanted: Tensor) -> float:
    return float((found.double() - wanted).norm() / wanted.norm())
