"""Pieces of random networks, (B, d) -> (B, d'), each of one idea: what they share is that they may meet anywhere."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PIECEWISE: list[Callable[[], nn.Module]] = [
    nn.ReLU,
    lambda: nn.ReLU(inplace=True),
    lambda: nn.LeakyReLU(0.1),
    lambda: nn.LeakyReLU(0.2, inplace=True),
    nn.ReLU6,
    nn.Hardtanh,
    nn.PReLU,
    lambda: Plain(lambda x: x.clamp(min=0)),
    lambda: Plain(torch.abs),
    lambda: Plain(lambda x: torch.maximum(x, 0.3 * x)),
    lambda: Plain(lambda x: torch.where(x > 0, x, -0.5 * x)),
    lambda: Plain(lambda x: x * (x > 0)),
    lambda: Plain(lambda x: F.relu_(x + 0.0)),
    lambda: Plain(lambda x: x[..., torch.arange(x.shape[-1] - 1, -1, -1)].relu()),
    nn.Identity,
]
SMOOTH: list[Callable[[], nn.Module]] = [
    nn.GELU,
    nn.Tanh,
    nn.SiLU,
    nn.Softplus,
    nn.Hardswish,
    nn.Sigmoid,
    nn.ELU,
    nn.Mish,
    lambda: nn.GELU(approximate="tanh"),
    lambda: Plain(torch.sin),
    lambda: Plain(lambda x: x * torch.sigmoid(x)),
    lambda: Plain(lambda x: 0.5 * x.square()),
]


class Plain(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def activation(rng: random.Random, smooth: float) -> nn.Module:
    return rng.choice(SMOOTH if rng.random() < smooth else PIECEWISE)()


class Dense(nn.Module):
    """A linear layer and an activation."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.linear = nn.Linear(d, out, bias=rng.random() < 0.8)
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


class Skip(nn.Module):
    """A residual branch."""

    def __init__(self, rng: random.Random, d: int, smooth: float) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(d, d), activation(rng, smooth), nn.Linear(d, d, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


class Concat(nn.Module):
    """Two branches side by side."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        first = max(1, out // 2)
        self.a, self.b = nn.Linear(d, first), Dense(rng, d, out - first, smooth) if out > first else None

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.a(x)] + ([self.b(x)] if self.b is not None else []), dim=1)


class Reused(nn.Module):
    """One layer called twice."""

    def __init__(self, rng: random.Random, d: int, smooth: float) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(d, d), activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.act(self.linear(x)))


class TiedBack(nn.Module):
    """A layer whose weight is used a second time, transposed, through a function."""

    def __init__(self, rng: random.Random, d: int, smooth: float) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(d, d), activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.act(self.linear(x)), self.linear.weight.t())


class TwoNames(nn.Module):
    """Two modules that own the same weight."""

    def __init__(self, rng: random.Random, d: int, smooth: float) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(d, d), activation(rng, smooth), nn.Linear(d, d, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.act(self.a(x)))


class Functional(nn.Module):
    """Bare parameters that a function uses; one of them belongs to a module that is never called."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(out, d) / d**0.5)
        self.gain = nn.Parameter(torch.ones(out) + 0.1 * torch.randn(out))
        self.holder = nn.Linear(out, 1)
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(torch.einsum("bi,oi->bo", x, self.matrix) * self.gain + self.holder.weight)


class Gated(nn.Module):
    """A layer times another one's sigmoid."""

    def __init__(self, d: int, out: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(d, out), nn.Linear(d, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.value(x) * torch.sigmoid(self.gate(x))


class Maxout(nn.Module):
    """The larger of two layers."""

    def __init__(self, d: int, out: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(d, out), nn.Linear(d, out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.maximum(self.a(x), self.b(x))


class WeightNorm(nn.Module):
    """A layer whose weight is a function of two parameters."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(d, out))
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.linear(x))


class Shared(nn.Module):
    """A layer that sees one row for all samples: its output is added to each of them."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.code, self.linear = nn.Parameter(torch.randn(3)), nn.Linear(3, d)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.code[None]).relu()


class Bilinear(nn.Module):
    """A bilinear layer of the input with itself."""

    def __init__(self, d: int, out: int) -> None:
        super().__init__()
        self.bilinear = nn.Bilinear(d, d, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.bilinear(x, x) / x.shape[1]


class Scaled(nn.Module):
    """A layer of an extreme scale, undone by the next one."""

    def __init__(self, rng: random.Random, d: int, out: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(d, d), nn.Linear(d, out)
        factor = 10.0 ** rng.choice([-4, -2, 2, 4])
        with torch.no_grad():
            self.up.weight.mul_(factor)
            self.up.bias.mul_(factor)
            self.down.weight.div_(factor)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


class Normed(nn.Module):
    """BatchNorm with statistics of its own, or LayerNorm, or GroupNorm."""

    def __init__(self, rng: random.Random, d: int, smooth: float) -> None:
        super().__init__()
        if rng.random() < smooth:
            self.norm: nn.Module = rng.choice([nn.LayerNorm(d), nn.GroupNorm(1, d), nn.RMSNorm(d)])
        else:
            self.norm = nn.BatchNorm1d(d)
            self.norm.running_mean.normal_(0, 0.3)
            self.norm.running_var.uniform_(0.5, 2.0)
        with torch.no_grad():
            self.norm.weight.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Frozen(nn.Module):
    """A layer that may not move, between layers that may."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.linear = nn.Linear(d, out).requires_grad_(False)
        self.partly = nn.Linear(out, out)
        self.partly.bias.requires_grad_(False)
        self.act = activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        return self.partly(self.act(self.linear(x)))


class Unused(nn.Module):
    """A layer with a neighbour that is never called."""

    def __init__(self, d: int, out: int) -> None:
        super().__init__()
        self.idle, self.linear = nn.Linear(2, 3), nn.Linear(d, out)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)


def make_stage(rng: random.Random, d: int, out: int, smooth: float) -> tuple[str, nn.Module, int]:
    """Return the name of a piece, the piece, and its width."""
    same = {"skip": Skip, "reused": Reused, "tied": TiedBack, "two_names": TwoNames, "normed": Normed}
    wide = {"dense": Dense, "concat": Concat, "functional": Functional, "weight_norm": WeightNorm, "frozen": Frozen}
    plain = {"maxout": Maxout, "unused": Unused}
    curved = {"gated": Gated, "bilinear": Bilinear}
    kinds = [*same, *wide, *wide, *plain, "shared", "scaled", *(curved if smooth else ())]
    kind = rng.choice(kinds)
    if kind in same:
        return kind, same[kind](rng, d, smooth), d
    if kind in wide:
        return kind, wide[kind](rng, d, out, smooth), out
    if kind == "shared":
        return kind, Shared(d), d
    if kind == "scaled":
        return kind, Scaled(rng, d, out), out
    return kind, {**plain, **curved}[kind](d, out), out
