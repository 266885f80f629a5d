"""A small transformer, sharded block by block, and data of which every rank has its own part."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

CLASSES, WORDS = 3, 7
Data = tuple[Tensor, Tensor]


class OnceTanh(torch.autograd.Function):
    """A function without a second derivative, which it does not say."""

    @staticmethod
    def forward(ctx: Any, given: Tensor) -> Tensor:
        found = torch.tanh(given)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (1 - ctx.saved_tensors[0].square())


class Block(nn.Module):
    def __init__(self, width: int, way: str) -> None:
        super().__init__()
        self.way = way
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def through(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        hidden = self.wide(self.between(x))
        bent = {"once": OnceTanh.apply, "tanh": torch.tanh}.get(self.way, gelu)(hidden)
        # as a matrix, and transposed: weights are used in more ways than by layers
        return x + torch.addmm(self.narrow.bias, bent.flatten(0, 1), self.narrow.weight.T).view_as(x)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.through, x, use_reentrant=False) if self.way == "recomputed" else self.through(x)


class Transformer(nn.Module):
    def __init__(self, way: str = "", width: int = 4, depth: int = 2, words: int = WORDS) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList([Block(width, way) for _ in range(depth)])
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def network(way: str = "", dtype: torch.dtype = torch.float64) -> Transformer:
    torch.manual_seed(0)
    return Transformer(way).to(dtype)


def samples(count: int = 29) -> Data:
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, WORDS, (count, 5), generator=generator)
    return tokens, torch.randint(0, CLASSES, (count,), generator=generator)


def part_of(data: Data, rank: int, bounds: tuple[int, ...]) -> Data:
    """Return one rank's samples: from one bound to the next."""
    begin, end = bounds[rank], bounds[rank + 1]
    return data[0][begin:end], data[1][begin:end]
