"""Small networks of curved operations, each as real code writes it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Curve = Callable[[Tensor], Tensor]


class Between(nn.Module):
    """A curved operation between linear layers, over three positions of four numbers."""

    def __init__(self, curve: Curve, extra: nn.Module | None = None) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.curve, self.extra = curve, extra

    def forward(self, x: Tensor) -> Tensor:
        x = self.curve(self.first(x))
        x = x if self.extra is None else self.extra(x)
        return self.head(torch.tanh(self.second(x)).mean(1))


class OtherKind(Between):
    """Takes another operation, of which nothing is known, where its inputs are as ``where`` says."""

    def __init__(self, where: Callable[[Tensor], Tensor]) -> None:
        super().__init__(torch.tanh)
        self.where = where

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = torch.atan2(h, 2 + h.square()) if bool(self.where(x).all()) else self.curve(h)
        return self.head(torch.tanh(self.second(h)).mean(1))


class DifferentiatesInside(nn.Module):
    """A network's outputs with their derivatives in its inputs, as physics-informed networks are written."""

    def __init__(self, curve: Curve) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.curve = curve

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().clone().requires_grad_()
            u = self.head(self.curve(self.second(self.curve(self.first(x))))).mean(1)
            (slope,) = torch.autograd.grad(u.square().sum(), x, create_graph=True)
        return torch.stack([u[:, 0] + slope[:, 0, 0], u[:, 1] * slope[:, 1].sum(-1)], 1)


class BentScales(nn.Module):
    """Scales, decays and weights by their logarithms, as state spaces and contrastive models have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.log_scale, self.log_decay = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.log_step, self.log_weight = nn.Parameter(torch.randn(1, 4)), nn.Parameter(torch.randn(4, 4))
        self.temperature = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x)) * self.log_scale.exp()
        decay = torch.exp(torch.sigmoid(x + self.log_step.exp()) * -torch.exp(self.log_decay))
        state = torch.zeros_like(x[:, 0])
        for position in range(x.shape[1]):
            state = decay[:, position] * state + x[:, position]
        state = F.linear(state * F.softplus(self.log_decay), self.log_weight.sigmoid())
        return self.head(state) * self.temperature.exp()


def written_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x.pow(3))))


def rms(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def attention(x: Tensor) -> Tensor:
    scores = x @ x.transpose(1, 2)
    return scores.softmax(-1) @ x


def shared_part(x: Tensor) -> Tensor:
    inner = torch.tanh(x)
    return inner * x + inner.flip(1)  # a part of an entrywise function that is used elsewhere too


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "gelu": lambda: Between(F.gelu),
    "silu gate": lambda: Between(lambda x: F.silu(x) * x.flip(-1)),
    "written gelu": lambda: Between(written_gelu),
    "shared part": lambda: Between(shared_part),
    "attention": lambda: Between(attention),
    "log softmax": lambda: Between(lambda x: x.log_softmax(-1)),
    "layer norm": lambda: Between(lambda x: x, nn.LayerNorm(4, eps=0.1)),
    "group norm": lambda: Between(lambda x: x, nn.GroupNorm(3, 3, eps=0.1)),
    "rms written out": lambda: Between(rms),
    "quotient": lambda: Between(lambda x: x / (1 + x.abs().sum(-1, keepdim=True))),
    "normalised": lambda: Between(lambda x: F.normalize(x, dim=-1)),
    "standard deviation": lambda: Between(lambda x: x / x.std(-1, keepdim=True)),
    "logsumexp": lambda: Between(lambda x: x - x.logsumexp(-1, keepdim=True)),
    "slope of tanh": lambda: DifferentiatesInside(torch.tanh),
    "slope of a sigmoid": lambda: DifferentiatesInside(torch.sigmoid),
    "slope of softplus": lambda: DifferentiatesInside(lambda x: F.softplus(x, beta=2.0)),
    "slope of softplus, straight in part": lambda: DifferentiatesInside(lambda x: F.softplus(x, threshold=0.3)),
    "slope of gelu": lambda: DifferentiatesInside(F.gelu),
    "logarithms": BentScales,
    "piecewise": lambda: Between(lambda x: x.relu() + F.hardtanh(x)),
}


def data(count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(count, 3, 3, generator=generator).double(), torch.arange(count) % 2
