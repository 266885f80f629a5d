"""Pieces in which a layer's rows are not the samples: fewer, more, in another order, or folded with something else."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from tests.attack.stages import activation


class MaskRoute(nn.Module):
    """Rows go to one of two layers by the sign of a feature."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(d, out), nn.Linear(d, out), activation(rng, smooth)
        self.kind, self.feature = rng.choice(["mask", "copy", "where", "loop"]), rng.randrange(d)

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, self.feature] > 0
        if self.kind == "where":
            return torch.where(first[:, None], self.act(self.a(x)), self.b(x))
        if self.kind == "loop":
            return torch.cat([self.a(row) if yes else self.b(row) for row, yes in zip(x.split(1), first)])
        one, other = first.nonzero()[:, 0], (~first).nonzero()[:, 0]
        found = x.new_zeros(len(x), self.a.out_features)
        if self.kind == "copy":
            found = found.index_copy(0, one, self.act(self.a(x[one])))
            return found.index_copy(0, other, self.b(x[other]))
        found[first] = self.act(self.a(x[first]))
        found[~first] = self.b(x[~first])
        return found


class Experts(nn.Module):
    """A mixture of experts, the best one taken, with or without its gate's weight; empty experts are left out."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.gate = nn.Linear(d, 3)
        self.experts = nn.ModuleList(nn.Linear(d, out) for _ in range(3))
        self.weighted, self.act = rng.random() < max(smooth, 0.2), activation(rng, smooth)

    def forward(self, x: Tensor) -> Tensor:
        scores = self.gate(x)
        best = scores.argmax(1)
        found = x.new_zeros(len(x), self.experts[0].out_features)
        for number, expert in enumerate(self.experts):
            rows = best == number
            if bool(rows.any()):
                found = found.masked_scatter(rows[:, None].expand_as(found), self.act(expert(x[rows])))
        return found * scores.softmax(1).amax(1, keepdim=True) if self.weighted else found


class Permuted(nn.Module):
    """As many rows as samples, in another order; sorted by a feature, or turned round."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(d, out), activation(rng, smooth)
        self.kind = rng.choice(["sort", "flip", "roll"])

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "sort":
            order = x[:, 0].argsort()
            return self.act(self.linear(x[order]))[order.argsort()]
        if self.kind == "flip":
            return self.act(self.linear(x.flip(0))).flip(0)
        return self.act(self.linear(x.roll(1, 0))).roll(-1, 0)


class Duplicated(nn.Module):
    """Twice the rows, or each distinct row once."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(d, out), activation(rng, smooth)
        self.kind = rng.choice(["twice", "interleaved", "unique", "negated"])

    def forward(self, x: Tensor) -> Tensor:
        n = len(x)
        if self.kind == "twice":
            both = self.act(self.linear(torch.cat([x, 0.5 * x])))
            return both[:n] + both[n:]
        if self.kind == "interleaved":
            return self.act(self.linear(x.repeat_interleave(2, 0))).reshape(n, 2, -1).mean(1)
        if self.kind == "unique":
            rows, back = torch.unique(x.detach(), dim=0, return_inverse=True)
            first = torch.full((len(rows),), n).scatter_reduce(0, back, torch.arange(n), "amin")
            return self.act(self.linear(x[first]))[back]
        both = self.act(self.linear(torch.stack([x, -x]).flatten(0, 1)))
        return both.reshape(2, n, -1)[0] - 0.3 * both.reshape(2, n, -1)[1]


class Folded(nn.Module):
    """Features cut into steps that go through one layer, folded into the rows or before them."""

    def __init__(self, rng: random.Random, d: int, out: int, smooth: float, steps: int) -> None:
        super().__init__()
        self.steps, self.kind = steps, rng.choice(["rows", "steps_first", "flat_steps_first", "middle"])
        self.spread = nn.Linear(d, 2 * steps)
        self.linear, self.act, self.out = nn.Linear(2, 2), activation(rng, smooth), nn.Linear(2 * steps, out)

    def forward(self, x: Tensor) -> Tensor:
        n, h = len(x), self.spread(x).reshape(len(x), self.steps, 2)
        if self.kind == "rows":
            h = self.act(self.linear(h.reshape(n * self.steps, 2))).reshape(n, self.steps, 2)
        elif self.kind == "steps_first":  # where a batch has as many samples as there are steps, nothing shows it
            h = self.act(self.linear(h.transpose(0, 1))).transpose(0, 1)
        elif self.kind == "flat_steps_first":
            h = self.act(self.linear(h.transpose(0, 1).reshape(-1, 2))).reshape(self.steps, n, 2).transpose(0, 1)
        else:
            h = self.act(self.linear(h))
        return self.out(h.flatten(1))


class Columns(nn.Module):
    """A layer that mixes the samples' features seen as rows: (d, B) goes in where one expects (B, d)."""

    def __init__(self, rng: random.Random, d: int) -> None:
        super().__init__()
        self.gain, self.linear = nn.Parameter(torch.ones(d, 1)), nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear((self.gain * x.t())[..., None])[..., 0].t()


class Heads(nn.Module):
    """One head for each kind of sample, some of them for a single sample."""

    def __init__(self, rng: random.Random, d: int, out: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(d, out) for _ in range(3))
        self.levels = (rng.uniform(-0.5, 0.2), rng.uniform(0.3, 1.5))

    def forward(self, x: Tensor) -> Tensor:
        which = torch.bucketize(x[:, 0].detach().contiguous(), torch.tensor(self.levels, dtype=x.dtype))
        parts, order = [], []
        for number, head in enumerate(self.heads):
            rows = (which == number).nonzero()[:, 0]
            if len(rows):
                parts.append(head(x[rows]))
                order.append(rows)
        return torch.cat(parts)[torch.cat(order).argsort()]


def make_routing(rng: random.Random, d: int, out: int, smooth: float, batch: int) -> tuple[str, nn.Module, int]:
    kinds = {"mask": MaskRoute, "experts": Experts, "permuted": Permuted, "duplicated": Duplicated}
    kind = rng.choice([*kinds, "mask", "folded", "folded", "heads", "columns"])
    if kind == "folded":
        steps = batch if batch <= 5 and rng.random() < 0.6 else rng.choice([2, 3])
        return kind, Folded(rng, d, out, smooth, steps), out
    if kind == "heads":
        return kind, Heads(rng, d, out), out
    if kind == "columns":
        return kind, Columns(rng, d), d
    return kind, kinds[kind](rng, d, out, smooth), out
