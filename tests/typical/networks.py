"""The networks whose values stand on the site: what they are, the data they see, how they are trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.lab.datasets import LabelledData

SEED = 0
STATES = ("initialised", "briefly trained", "interpolating")


class RowTransformer(nn.Module):
    """One block of attention and GELU with LayerNorm before both; an image's rows are the tokens."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(0.02 * torch.randn(8, width))
        self.before_attention, self.before_mlp, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.head = nn.Linear(width, 10)  # declared last, for the measures of the last layer

    def forward(self, x: Tensor) -> Tensor:
        """Classify images (B, 1, 8, 8)."""
        tokens = self.embed(x.flatten(1, 2)) + self.place
        read = self.before_attention(tokens)
        tokens = tokens + self.attention(read, read, read, need_weights=False)[0]
        tokens = tokens + self.mlp(self.before_mlp(tokens))
        return self.head(self.last(tokens).mean(1))


def gelu_mlp() -> nn.Module:
    """``digits_mlp`` with GELU in place of ReLU."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 10))


@dataclass(frozen=True)
class TypicalNetwork:
    """One entry: SGD without momentum, for a few epochs or until the loss is so small that every sample is right."""

    name: str
    words: str
    build: Callable[[], nn.Module]
    data: str
    images: int | None = None  # the first so many; None for all
    brief: int = 2  # epochs
    rate: float = 0.1
    batch: int = 32
    samples: int = 500  # that are measured

    def initialised(self) -> nn.Module:
        """Build the network from the seed, in float64: what is trained then is the same on any machine, to rounding."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return self.build().double().eval()

    def training_data(self) -> LabelledData:
        """Return what it is trained on."""
        return _loaded(self.data).subset(slice(self.images))

    def in_state(self, state: str) -> nn.Module:
        """Return the network in one of ``STATES``."""
        model = self.initialised()
        if state == "initialised":
            return model
        data = self.training_data()
        epochs, stop = (self.brief, None) if state == "briefly trained" else (MOST, sl.training.LossTarget(LOSS))
        sl.training.train(model, data, lr=self.rate, batch_size=self.batch, epochs=epochs, seed=SEED, stop=stop)
        if stop is not None and sl.training.evaluate(model, data).accuracy < 1:
            raise RuntimeError(f"{self.name} has wrong samples left at a loss of {LOSS}, or after {MOST} epochs")
        return model

    def problem(self, state: str) -> sl.Problem:
        """Return the network in a state with the samples it is measured on, a draw stratified by class."""
        return sl.Problem(self.in_state(state), self.training_data(), samples=self.samples)


LOSS, MOST = 0.003, 400  # of the last epoch, as it was trained; epochs
NETWORKS = {
    each.name: each
    for each in (
        TypicalNetwork("digits_mlp", "64-32-32-10, ReLU", lambda: sl.nets.build("digits_mlp"), "digits", brief=10),
        TypicalNetwork("digits_cnn", "two convolutions, ReLU", lambda: sl.nets.build("digits_cnn"), "digits", brief=10),
        TypicalNetwork("lenet5", "LeNet-5, ReLU and max-pooling", lambda: sl.nets.build("lenet5"), "mnist", 5000),
        TypicalNetwork(
            "fcnbn", "784-128-128-128-10, BatchNorm and ReLU",
            lambda: sl.nets.build("fcnbn", widths=(128, 128, 128)), "mnist", 5000,
        ),
        TypicalNetwork("gelu_mlp", "64-32-32-10, GELU", gelu_mlp, "digits", brief=10),
        TypicalNetwork("row_transformer", "attention, GELU, LayerNorm; width 16", RowTransformer, "digits", brief=10),
    )
}  # fmt: skip


@cache
def _loaded(name: str) -> LabelledData:
    return sl.datasets.load(name, "train")
