"""What an entry of the zoo is: a network, learnable data, a loss, and a short training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl

POOL = 1000  # samples that exist of every data set; whoever asks for fewer gets the first of them
BATCH = 100  # samples a training step sees

Batch = Any  # (inputs, labels), or a dict with "labels"
PerSample = Callable[[Any, Batch], Tensor]


@dataclass
class ModelOutput:
    """Logits in an object, as transformer libraries return them."""

    logits: Tensor


@dataclass(frozen=True)
class ModernNetwork:
    """One entry; ``make`` and ``draw`` are called with torch's random state and a generator of their own."""

    name: str
    make: Callable[[], nn.Module]
    draw: Callable[[torch.Generator, int], Batch]
    loss: str | PerSample = "cross_entropy"
    steps: int = 120
    rate: float = 1e-2

    def build(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1000 + seed)
            return self.make().double()

    def data(self, count: int, seed: int = 0) -> Batch:
        """The first ``count`` samples of the pool, floating-point entries in float64."""
        whole = self.draw(torch.Generator().manual_seed(2000 + seed), POOL)
        return mapped(whole, lambda t: t[:count].double() if t.is_floating_point() else t[:count])

    def train(self, seed: int = 0) -> Trained:
        """Some steps of Adam on batches from the pool, each sample seen about ten times."""
        model, whole = self.build(seed).train(), self.data(POOL, seed)
        moving = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.Adam(moving, self.rate)
        generator = torch.Generator().manual_seed(3000 + seed)
        before = self.mean_loss(model.eval(), whole)
        model.train()
        for _ in range(self.steps):
            chosen = torch.randperm(POOL, generator=generator)[:BATCH]
            batch = mapped(whole, lambda t, chosen=chosen: t[chosen])
            optimizer.zero_grad()
            total, weight = self.total_loss(outputs_of(model, batch), batch)
            (total / weight).backward()
            optimizer.step()
        optimizer.zero_grad()
        return Trained(self, model.eval(), before, self.mean_loss(model, whole))

    def total_loss(self, outputs: Any, batch: Batch) -> tuple[Tensor, Tensor | float]:
        """The weighted sum of a batch's losses and of their weights, written with torch alone."""
        if callable(self.loss):
            losses = self.loss(outputs, batch)
            return losses.sum(), len(losses)
        return _TOTALS[self.loss](outputs, batch["labels"] if isinstance(batch, Mapping) else batch[1])

    def mean_loss(self, model: nn.Module, batch: Batch) -> float:
        total, weight = self.total_loss(outputs_of(model, batch), batch)
        return float(total.detach() / weight)


@dataclass(frozen=True)
class Trained:
    """A network after its training, with the loss over the pool before and after."""

    network: ModernNetwork
    model: nn.Module
    before: float
    after: float

    def problem(self, count: int, **options: Any) -> sl.Problem:
        return sl.Problem(self.model, self.network.data(count), self.network.loss, **options)


def mapped(batch: Batch, function: Callable[[Tensor], Tensor]) -> Batch:
    """The same batch with every tensor replaced."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: mapped(value, function) for key, value in batch.items()}
    return tuple(mapped(value, function) for value in batch)


def count_in(batch: Batch) -> int:
    """How many samples a batch holds."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    return len(batch)


def outputs_of(model: Callable[..., Any], batch: Batch) -> Any:
    """Call a network as its own training would: a dict's entries by name, without the labels."""
    if isinstance(batch, Mapping):
        found = model(**{key: value for key, value in batch.items() if key != "labels"})
    else:
        inputs = batch[0]
        found = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    return found.logits if isinstance(found, ModelOutput) else found


def _cross_entropy(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(outputs, labels, reduction="sum"), (labels != -100).sum()


def _same_token(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return _cross_entropy(outputs.transpose(1, 2), labels)


def _next_token(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    return _same_token(outputs[:, :-1], labels[:, 1:])


def _mean_squared_error(outputs: Tensor, labels: Tensor) -> tuple[Tensor, float]:
    return (outputs - labels).square().flatten(1).mean(1).sum(), len(outputs)


_TOTALS: dict[str, Callable[[Tensor, Tensor], tuple[Tensor, Any]]] = {
    "cross_entropy": _cross_entropy,
    "same_token": _same_token,
    "next_token": _next_token,
    "mean_squared_error": _mean_squared_error,
}
