"""Random networks: a trunk for the kind of input, a few pieces, a head."""

from __future__ import annotations

import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.attack.routing import make_routing
from tests.attack.stages import activation, make_stage

VOCABULARY = 5


class Net(nn.Module):
    """A trunk, pieces and a head; ``form`` is how the outputs are handed over."""

    def __init__(self, trunk: nn.Module, stages: list[nn.Module], head: nn.Module, form: str) -> None:
        super().__init__()
        self.trunk, self.stages, self.head, self.form = trunk, nn.ModuleList(stages), head, form

    def forward(self, x: Tensor) -> object:
        h = self.trunk(x)
        for stage in self.stages:
            h = stage(h)
        outputs = self.head(h)
        if self.form == "flat":
            return outputs[:, 0]
        if self.form == "object":
            return SimpleNamespace(logits=outputs)
        return {"logits": outputs} if self.form == "dict" else outputs


class Embedded(nn.Module):
    """Tokens, embedded and averaged, or through an EmbeddingBag, which torch cannot differentiate twice."""

    honest = False

    def __init__(self, rng: random.Random, d: int) -> None:
        super().__init__()
        self.bag = rng.random() < 0.3
        padding = 0 if rng.random() < 0.3 and not self.bag else None
        kind = nn.EmbeddingBag if self.bag else nn.Embedding
        self.table = kind(VOCABULARY, d, padding_idx=padding)

    def forward(self, x: Tensor) -> Tensor:
        if self.bag and self.honest:
            return F.embedding(x, self.table.weight).mean(1)
        return self.table(x) if self.bag else self.table(x).mean(1)


class Recurrent(nn.Module):
    """An LSTM, GRU or plain recurrent layer; its last step, or its mean."""

    def __init__(self, rng: random.Random, d: int, out: int, tokens: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, d) if tokens else None
        self.first = rng.random() < 0.6
        kind = rng.choice([nn.LSTM, nn.GRU, nn.RNN])
        self.layer = kind(d, out, batch_first=self.first)
        self.last = rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.table is None else self.table(x)
        h, _ = self.layer(h if self.first else h.transpose(0, 1))
        h = h if self.first else h.transpose(0, 1)
        return h[:, -1] if self.last else h.mean(1)


class Attending(nn.Module):
    """Small attention: torch's own layer, a transformer block, or written out."""

    def __init__(self, rng: random.Random, d: int, tokens: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, d) if tokens else None
        self.kind = rng.choice(["layer", "block", "own", "fused"])
        if self.kind == "layer":
            self.attention = nn.MultiheadAttention(d, 2, batch_first=True)
        elif self.kind == "block":
            self.block = nn.TransformerEncoderLayer(d, 2, 3, batch_first=True, norm_first=rng.random() < 0.5)
        else:
            self.mix = nn.Linear(d, 3 * d, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = x if self.table is None else self.table(x)
        if self.kind == "layer":
            h = h + self.attention(h, h, h, need_weights=False)[0]
        elif self.kind == "block":
            h = self.block(h)
        else:
            q, k, v = self.mix(h).chunk(3, -1)
            if self.kind == "fused":
                h = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
            else:
                h = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v
        return h.mean(1)


def convolutional(rng: random.Random, channels: int, dimensions: int, smooth: float) -> nn.Module:
    """A convolution or two with pooling and normalisation, flattened to a few features."""
    conv = nn.Conv2d if dimensions == 2 else nn.Conv1d
    norm = nn.BatchNorm2d if dimensions == 2 else nn.BatchNorm1d
    most = nn.MaxPool2d if dimensions == 2 else nn.MaxPool1d
    mean = nn.AvgPool2d if dimensions == 2 else nn.AvgPool1d
    adaptive = nn.AdaptiveAvgPool2d if dimensions == 2 else nn.AdaptiveAvgPool1d
    width = rng.choice([2, 3])
    groups = channels if channels == 2 and width == 2 and rng.random() < 0.5 else 1
    mode = rng.choice(["zeros", "zeros", "circular", "reflect"])
    kernel, padding, stride = rng.choice([2, 3]), rng.choice([0, 1]), rng.choice([1, 1, 2])
    dilation, bias = rng.choice([1, 1, 2]) if mode == "zeros" else 1, rng.random() < 0.7
    stride = 1 if dilation == 2 and not padding else stride  # something must be left to pool
    options = {"stride": stride, "padding": padding, "dilation": dilation, "padding_mode": mode}
    pieces: list[nn.Module] = [conv(channels, width, kernel, groups=groups, bias=bias, **options)]
    if rng.random() < 0.4:
        pieces.append(norm(width))
        pieces[-1].running_mean.normal_(0, 0.2)
        pieces[-1].running_var.uniform_(0.5, 2.0)
    plain = activation(rng, smooth)
    while type(plain).__name__ == "Plain":  # some of these reorder features
        plain = activation(rng, smooth)
    pieces.append(plain)
    if rng.random() < 0.3:
        pieces.append(conv(width, width, 1))
        pieces.append(nn.ReLU())
    if rng.random() < 0.5:
        pieces.append(most(2, stride=1) if rng.random() < 0.5 else mean(2, stride=1))
    pieces += [adaptive(1 if rng.random() < 0.5 else 2), nn.Flatten()]
    return nn.Sequential(*pieces)


def make_trunk(rng: random.Random, smooth: float) -> tuple[str, nn.Module, tuple[int, ...], bool, int]:
    """Return the trunk's kind, the trunk, the shape of one input, whether inputs are tokens, and the width."""
    kinds = ["vector"] * 6 + ["image", "image", "signal"] + (["recurrent", "attention"] if smooth else []) + ["tokens"]
    kind = rng.choice(kinds)
    if kind == "vector":
        d = rng.choice([3, 4, 5])
        return kind, nn.Identity(), (d,), False, d
    if kind in ("image", "signal"):
        channels = rng.choice([1, 2])
        trunk = convolutional(rng, channels, 2 if kind == "image" else 1, smooth)
        shape = (channels, 6, 6) if kind == "image" else (channels, 8)
        with torch.no_grad():
            width = trunk.eval()(torch.randn(2, *shape)).shape[1]
        trunk.train()
        return kind, trunk, shape, False, width
    if kind == "tokens":
        return kind, Embedded(rng, 3), (4,), True, 3
    tokens = rng.random() < 0.3
    shape = (3,) if tokens else (3, 2 if kind == "recurrent" else 4)
    if kind == "recurrent":
        return kind, Recurrent(rng, 2, 3, tokens), shape, tokens, 3
    return kind, Attending(rng, 4, tokens), shape, tokens, 4


def make_network(
    rng: random.Random, outputs: int, form: str, batch: int, *, routed: bool, extra: list[nn.Module]
) -> tuple[Net, dict[str, object], tuple[int, ...], bool]:
    """Return a network, what it is made of, the shape of one input and whether inputs are tokens."""
    smooth = rng.choice([0.0, 0.0, 0.0, 0.5, 1.0])
    kind, trunk, shape, tokens, d = make_trunk(rng, smooth)
    stages: list[nn.Module] = []
    names = []
    count = rng.choice([0, 1, 1, 2]) if kind == "vector" or routed else rng.choice([0, 0, 1])
    places = ["stage"] * count + ["routing"] * (rng.choice([1, 1, 2]) if routed else 0)
    rng.shuffle(places)
    for place in places:
        out = rng.choice([2, 3, 4])
        make = make_stage(rng, d, out, smooth) if place == "stage" else make_routing(rng, d, out, smooth, batch)
        names.append(make[0])
        stages.append(make[1])
        d = make[2]
    for piece in extra:
        stages.insert(rng.randrange(len(stages) + 1), piece)
    net = Net(trunk, stages, nn.Linear(d, outputs), form)
    return net, {"trunk": kind, "stages": names, "smooth": smooth}, shape, tokens
