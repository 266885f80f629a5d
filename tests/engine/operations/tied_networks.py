"""Small networks whose weights are used again behind themselves, and some that would fool who looks for the uses."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WORDS, WIDTH = 6, 4


class TiedLanguage(nn.Module):
    """Embedding, one head of attention, a perceptron; the embedding is the head too."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.joint, self.up = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head, self.scale = nn.Linear(WIDTH, WORDS, bias=False), scale
        nn.init.normal_(self.embedding.weight, std=0.7)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        q, k, v = self.joint(self.norm(x)).chunk(3, -1)
        x = x + F.scaled_dot_product_attention(q, k, v)
        x = x + torch.tanh(self.up(x))
        return self.head(x[:, -1] * self.scale)


class Recurrent(nn.Module):
    """One of torch's recurrent layers over a sequence, the last state classified."""

    def __init__(self, kind: type[nn.RNNBase], batch_first: bool = True) -> None:
        super().__init__()
        self.cell, self.head, self.batch_first = kind(3, 3, batch_first=batch_first), nn.Linear(3, 2), batch_first

    def forward(self, x: Tensor) -> Tensor:
        found = self.cell(x if self.batch_first else x.transpose(0, 1))[0]
        return self.head(found[:, -1] if self.batch_first else found[-1])


class Unrolled(nn.Module):
    """A cell called in a loop over the sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(len(x), 3)
        for t in range(x.shape[1]):
            h = self.cell(x[:, t], h)
        return self.head(h)


class Twice(nn.Module):
    """A linear layer called twice with a curve between; ``again`` makes the second call."""

    def __init__(self, again: Callable[[nn.Linear, Tensor], Tensor] | None = None, bias: bool = True) -> None:
        super().__init__()
        self.same, self.head = nn.Linear(3, 3, bias=bias), nn.Linear(3, 2)
        self.again = again or (lambda layer, x: layer(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.again(self.same, torch.tanh(self.same(x)))).mean(1))


class Branches(nn.Module):
    """Two branches that share a layer, multiplied, one of them through it once more."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        one, two = torch.sigmoid(self.same(x)), F.gelu(self.same(x.flip(1)))
        return self.head((one * two + self.same(one)).mean(1))


class Scaled(nn.Module):
    """One scale of every channel, used before and behind a curve."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.first, self.head = nn.Parameter(torch.randn(3)), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((self.scale * torch.tanh(self.first(x) * self.scale)).mean(1))


class Looped(nn.Module):
    """A layer called as often as the data says, which is another number for other batches."""

    def __init__(self) -> None:
        super().__init__()
        self.same, self.head = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(1 + int(bool((x[0, 0, 0] > 0).all())) * 2):
            x = torch.tanh(self.same(x))
        return self.head(x.mean(1))


def without_gradient(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad():
        shift = layer(x)
    return layer(x) + shift


class Transformed(nn.Module):
    """The weight is used as it is and, behind itself, as something curved or mixed was made of it."""

    def __init__(self, made: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.same, self.head, self.made = nn.Linear(3, 3), nn.Linear(3, 2), made

    def forward(self, x: Tensor) -> Tensor:
        return self.head((torch.tanh(self.same(x)) @ self.made(self.same.weight)).mean(1))


TIED: dict[str, Callable[[], nn.Module]] = {
    "tied language": TiedLanguage,
    "tied and scaled": lambda: TiedLanguage(0.5),
    "lstm": lambda: Recurrent(nn.LSTM),
    "lstm, sequence first": lambda: Recurrent(nn.LSTM, batch_first=False),
    "gru": lambda: Recurrent(nn.GRU),
    "rnn": lambda: Recurrent(nn.RNN),
    "gru cell": Unrolled,
    "twice": Twice,
    "twice without bias": lambda: Twice(bias=False),
    "branches": Branches,
    "scale": Scaled,
    "functional second use": lambda: Twice(lambda layer, x: F.linear(x, layer.weight)),
    "transposed second use": lambda: Twice(lambda layer, x: x @ layer.weight),
}

# What is hard to see through: it must come out right, by whatever way.
HAZARDS: dict[str, Callable[[], nn.Module]] = {
    "hidden third use": lambda: Twice(lambda layer, x: layer(x) + F.linear(torch.sin(x), layer.weight)),
    "data-dependent length": Looped,
    "doubled": lambda: Transformed(lambda w: 2 * w),
    "normalised": lambda: Transformed(lambda w: w / w.norm()),
    "squared": lambda: Transformed(lambda w: w * w),
    "times itself": lambda: Transformed(lambda w: w @ w),
    "stacked with itself": lambda: Transformed(lambda w: torch.cat([w[:2], w.t()[2:]])),
    "part of it": lambda: Transformed(lambda w: F.pad(w[:, 1:], (0, 1))),
    "chosen rows": lambda: Transformed(lambda w: w[[2, 0, 0]]),
    "as one row a sample": lambda: Twice(lambda layer, x: torch.einsum("btj,ij->bti", x, layer.weight)),
}

# What torch calls a gradient is none of the outputs here.
REFUSED: dict[str, Callable[[], nn.Module]] = {
    "detached second use": lambda: Twice(lambda layer, x: F.linear(x, layer.weight.detach(), layer.bias)),
    "second use without gradient": lambda: Twice(without_gradient),
}


def tied_data(name: str, count: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    if "tied" in name:
        tokens = torch.randint(WORDS, (count, 4), generator=generator)
        return tokens, (tokens.sum(1)) % WORDS
    return torch.randn(count, 3, 3, generator=generator).double(), torch.arange(count) % 2
