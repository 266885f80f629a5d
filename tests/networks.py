"""Small networks of every kind the tests need, under 300 parameters, and what each is tried on.

``SMOOTH`` names the layers whose blocks are *not* their Gauss–Newton blocks; all other layers are exact.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers import Case


class Residual(nn.Module):
    """A skip connection around two layers, and one around a projection."""

    def __init__(self, width: int = 4, classes: int = 3) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.project, self.head = nn.Linear(width, width, bias=False), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.second(F.relu(self.first(x)))
        return self.head(F.relu(x) + self.project(x))


def small_net(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Return a convolution with a pooling behind it, one without, and two linear layers, for images of 8 by 8."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        activation(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3),
        activation(),
        nn.Flatten(),
        nn.Linear(16, 6),
        activation(),
        nn.Linear(6, 3),
    ).double()


class Centred(nn.Module):
    """A network whose samples influence each other: the mean of the batch is taken from each."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x - x.mean(0))
        return found


class Concatenation(nn.Module):
    """Two branches side by side, whose input also reaches the head."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.head = nn.Linear(4, 3), nn.Linear(4, 2), nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([F.relu(self.left(x)), self.right(x).abs(), x], 1))


class ParallelTwice(nn.Module):
    """One layer applied to two halves of the input, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return self.head(F.relu(self.shared(a)) + F.relu(self.shared(b)))


class SequenceTwice(nn.Module):
    """One layer applied after itself."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.shared(F.relu(self.shared(x)))))


class Tokens(nn.Module):
    """Token embeddings with a padding row, averaged."""

    def __init__(self, tied: bool = False, classes: int = 3) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4, padding_idx=0)
        self.hidden, self.head = nn.Linear(4, 4), nn.Linear(4, classes, bias=False)
        self.tied = tied

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.relu(self.hidden(self.embed(tokens)))
        return self.head(x).mean(1) if not self.tied else (x @ self.embed.weight.T).mean(1)


class Functional(nn.Module):
    """Weights used through functions, so that no module's rule sees them."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(0.5 * torch.randn(4, 4))
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.linear(x, self.matrix))
        return self.head(F.relu(F.linear(x, self.inner.weight, self.inner.bias)))


class Attention(nn.Module):
    """One attention layer between an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(F.relu(x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


class Recurrent(nn.Module):
    """An LSTM whose last state is classified."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.cell, self.head = kind(3, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


class Gated(nn.Module):
    """A gated linear unit."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 8), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.glu(self.inner(x)))


class SquareFunction(torch.autograd.Function):
    """x², with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * ctx.saved_tensors[0] * grad


class CustomFunction(nn.Module):
    """A custom autograd function in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(SquareFunction.apply(self.inner(x)))


class Positions(nn.Module):
    """Scores for every position, (B, T, C)."""

    def __init__(self, tokens: int = 5, classes: int = 3) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(tokens, 3), nn.Linear(3, 4), nn.Linear(4, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.embed(tokens))))


def _tied_linear() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model[2].weight = model[0].weight
    return model


def _weight_norm() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 3))


def _conv2d(convolution: Callable[[], nn.Module], features: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(convolution(), nn.ReLU(), nn.Flatten(), nn.Linear(features, 3))


def _chain(*makers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(make() for make in makers))


# Networks all of whose layers are exact: piecewise linear in each layer's weights.
PIECEWISE_LINEAR: dict[str, Case] = {
    "affine": Case(lambda: nn.Sequential(nn.Linear(4, 3))),
    "mlp": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4), nn.LeakyReLU(0.2), nn.Linear(4, 3))),
    "two_classes": Case(lambda: nn.Sequential(nn.Linear(4, 5), nn.Hardtanh(), nn.Linear(5, 2)), classes=2),
    "inplace_relu": Case(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 4), nn.ReLU6(True), nn.Linear(4, 3))
    ),
    "conv1d_reflect": Case(
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)
        ),
        (2, 6),
    ),
    "conv1d_replicate_strided": Case(
        lambda: nn.Sequential(
            nn.Conv1d(2, 4, 3, stride=2, padding=2, padding_mode="replicate", groups=2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        (2, 6),
    ),
    "conv2d_strided_padded": Case(_conv2d(lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1), 27), (2, 5, 5)),
    "conv2d_dilated_grouped": Case(
        _conv2d(lambda: nn.Conv2d(2, 4, (2, 3), dilation=(1, 2), padding=(0, 2), groups=2, bias=False), 64), (2, 5, 4)
    ),
    "conv2d_same_uneven": Case(_conv2d(lambda: nn.Conv2d(1, 2, (2, 4), padding="same"), 32), (1, 4, 4)),
    "conv2d_circular": Case(_conv2d(lambda: nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"), 32), (1, 4, 4)),
    "conv3d": Case(
        lambda: nn.Sequential(
            nn.Conv3d(1, 2, 2, stride=(1, 2, 1), padding=(1, 0, 0)), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
        ),
        (1, 3, 4, 4),
    ),
    "conv_transposed": Case(_conv2d(lambda: nn.ConvTranspose2d(2, 4, 2, stride=2, groups=2), 64), (2, 2, 2)),
    "max_pool": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.Flatten(), nn.Linear(4, 3)
        ),
        (1, 4, 4),
    ),
    "avg_pool": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(3, 4, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        ),
        (1, 4, 4),
    ),
    "residual": Case(Residual),
    "concatenation": Case(Concatenation),
    "batch_norm_1d": Case(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)),
    ),
    "batch_norm_2d": Case(
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 3)
        ),
        (1, 4, 4),
    ),
    "embedding": Case(Tokens, (5,), tokens=6),
    "prelu": Case(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.PReLU(5), nn.Linear(5, 4), nn.PReLU(), nn.Linear(4, 3)),
    ),
    "parallel_twice": Case(ParallelTwice, (6,)),
    "functional": Case(Functional),
    "linear_with_positions": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2), nn.Flatten(), nn.Linear(8, 3)), (4, 3)
    ),
    "max_pool_1d": Case(
        lambda: nn.Sequential(
            nn.Linear(4, 4), nn.Unflatten(1, (1, 4)), nn.MaxPool1d(2), nn.Flatten(), nn.ReLU(), nn.Linear(2, 3)
        ),
    ),
    "after_layer_norm": Case(
        lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)),
    ),
    "after_group_norm": Case(
        lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Conv1d(4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 3)), (4, 3)
    ),
    "after_rms_norm": Case(
        lambda: nn.Sequential(nn.RMSNorm(4), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)),
    ),
}

# Networks with layers whose remainder has to be sampled.
SMOOTH: dict[str, Case] = {
    "gelu": Case(
        _chain(lambda: nn.Linear(4, 5), nn.GELU, lambda: nn.Linear(5, 4), nn.ReLU, lambda: nn.Linear(4, 3)),
        smooth=frozenset({"0"}),
    ),
    "tanh": Case(
        _chain(lambda: nn.Linear(4, 4), nn.Tanh, lambda: nn.Linear(4, 4), nn.Tanh, lambda: nn.Linear(4, 3)),
        smooth=frozenset({"0", "2"}),
    ),
    "hardswish": Case(_chain(lambda: nn.Linear(4, 5), nn.Hardswish, lambda: nn.Linear(5, 3)), smooth=frozenset({"0"})),
    "layer_norm": Case(
        _chain(lambda: nn.Linear(4, 5), lambda: nn.LayerNorm(5), nn.ReLU, lambda: nn.Linear(5, 3)),
        smooth=frozenset({"0"}),
    ),
    "attention": Case(Attention, (3, 3), smooth=frozenset({"embed", "attention"})),
    "lstm": Case(Recurrent, (4, 3), smooth=frozenset({"cell"})),
    "weight_norm": Case(_weight_norm, smooth=frozenset({"0.parametrizations.weight"})),
    "tied": Case(_tied_linear, smooth=frozenset({"0"})),
    "sequence_twice": Case(SequenceTwice, smooth=frozenset({"shared"})),
    "glu": Case(Gated, smooth=frozenset({"inner"})),
    "custom_function": Case(CustomFunction, smooth=frozenset({"inner"})),
    "tied_embedding": Case(lambda: Tokens(tied=True), (5,), classes=6, tokens=6, smooth=frozenset({"embed"})),
}
