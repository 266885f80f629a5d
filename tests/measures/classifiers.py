"""Small classifiers and their data, for margins and Fisher–Rao norms."""

import torch
from torch import Tensor, nn

from spiritlevel.inputs.losses import CrossEntropy
from spiritlevel.inputs.open_problem import OpenProblem
from tests.helpers import opened


def data(count: int = 41, features: int = 5, classes: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, features, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, classes, (count,), generator=generator)


def network(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "relu":
        return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 4)).double()
    if kind == "tanh without head bias":
        return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4, bias=False)).double()
    return nn.Sequential(
        nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 4, bias=False)
    ).double()


def problems() -> dict[str, OpenProblem]:
    weighted = CrossEntropy(class_weights=[1.0, 2.0, 0.5, 3.0])
    return {
        "relu": opened(network("relu"), data(), batch_size=7),
        "class weights": opened(network("tanh without head bias"), data(), weighted, batch_size=16),
    }
