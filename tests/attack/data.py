"""Losses and data of a case: inputs, labels, their order and the forms in which they are handed over."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tests.attack.networks import VOCABULARY

# A batch's (Σ wℓ, Σ w, the samples' own losses), written from torch's definitions alone.
Total = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass
class LossCase:
    """A loss as it is given to the instrument, and the same loss written out."""

    name: str
    given: Any
    total: Total
    outputs: int
    form: str
    classes: bool


def _mean(losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return losses.sum(), torch.tensor(float(len(losses)), dtype=torch.float64), losses


def _well(outputs: Tensor, batch: Any) -> Tensor:
    """A loss of one's own that is not convex in the outputs."""
    labels = batch["y"] if isinstance(batch, dict) else batch[1]
    return (1 - torch.exp(-0.2 * (outputs - labels).square())).sum(1)


def _weighted(outputs: Tensor, batch: Any) -> tuple[Tensor, Tensor]:
    labels = batch["y"] if isinstance(batch, dict) else batch[1]
    return F.smooth_l1_loss(outputs, labels, reduction="none").mean(1), 0.5 + labels.detach().abs().sum(1)


def make_loss(rng: random.Random) -> LossCase:
    kind = rng.choice(["ce"] * 4 + ["weights", "smooth", "ignore", "soft", "mse", "mse", "bce", "flat", "own", "pair"])
    count = rng.choice([2, 3, 4])
    form = rng.choice(["tensor"] * 6 + ["object", "dict"])
    if kind in ("ce", "ignore", "soft"):
        total = _mean_cross_entropy if kind != "ignore" else _cross_entropy(None, 0.0)
        return LossCase(kind, "cross_entropy", total, count, form, kind != "soft")
    if kind in ("weights", "smooth"):
        weights = torch.rand(count, dtype=torch.float64) + 0.2 if kind == "weights" or rng.random() < 0.5 else None
        smoothing = 0.1 if kind == "smooth" else 0.0
        given = nn.CrossEntropyLoss(weight=weights, label_smoothing=smoothing)
        return LossCase(kind, given, _cross_entropy(weights, smoothing), count, form, True)
    if kind == "mse":
        return LossCase(kind, "mse", lambda f, y: _mean((f - y).square().mean(1)), count, form, False)
    if kind == "flat":
        form = "flat"
        return LossCase(kind, "bce", lambda f, y: _mean(F.softplus(f) - y * f), 1, form, False)
    if kind == "bce":
        return LossCase(kind, "bce", lambda f, y: _mean((F.softplus(f) - y * f).mean(1)), count, form, False)
    if kind == "own":
        return LossCase(kind, _well, lambda f, y: _mean(_well(f, (None, y))), count, form, False)

    def pair(f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        losses, weights = _weighted(f, (None, y))
        return (losses * weights).sum(), weights.sum(), losses

    return LossCase(kind, _weighted, pair, count, form, False)


def _mean_cross_entropy(f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    target = y if y.is_floating_point() else F.one_hot(y, f.shape[1]).to(f)
    return _mean(-(target * f.log_softmax(1)).sum(1))


def _cross_entropy(weights: Tensor | None, smoothing: float) -> Total:
    def total(f: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        w = torch.ones(f.shape[1], dtype=f.dtype) if weights is None else weights.to(f)
        kept = y != -100
        own = torch.where(kept, w[y.clamp(min=0)], torch.zeros((), dtype=f.dtype))
        options = {"weight": weights if weights is None else weights.to(f), "label_smoothing": smoothing}
        losses = F.cross_entropy(f, y, reduction="none", **options)
        return losses.sum(), own.sum(), losses / own.where(own > 0, 1.0)

    return total


def make_data(
    rng: random.Random, count: int, shape: tuple[int, ...], tokens: bool, loss: LossCase
) -> tuple[Tensor, Tensor, list[str]]:
    """Return inputs and labels in float64 and what was done to their order."""
    if tokens:
        x = torch.randint(VOCABULARY, (count, *shape))
    else:
        x = torch.randn(count, *shape, dtype=torch.float64)
    traits = []
    if rng.random() < 0.15 and count > 4:
        x[1], x[-1] = x[0], x[count // 2]
        traits.append("duplicates")
    order = rng.choice(["as drawn", "sorted", "sorted", "reversed", "one last"])
    if order != "as drawn" and not tokens:
        key = x.flatten(1)[:, 0]
        if order == "one last":  # the only one of its kind comes at the end
            x.flatten(1)[:, 0] = -key.abs()
            x.view(count, -1)[-1, 0] = 1.5
        else:
            x = x[key.argsort(descending=order == "reversed")]
        traits.append(order)
    if loss.name in ("ce", "weights", "smooth", "ignore"):
        y = torch.randint(loss.outputs, (count,))
        if rng.random() < 0.4:
            y = y.sort().values
            traits.append("labels sorted")
        if loss.name == "ignore":
            y[rng.randrange(1, count) :: 3] = -100
    elif loss.name == "soft":
        y = torch.randn(count, loss.outputs, dtype=torch.float64).softmax(1)
    elif loss.name == "flat":
        y = torch.randint(2, (count,)).double()
    elif loss.name == "bce":
        y = torch.randint(2, (count, loss.outputs)).double()
    else:
        y = torch.randn(count, loss.outputs, dtype=torch.float64)
    return x, y, traits


class Pairs(Dataset):
    """A plain map-style dataset."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.x[place], self.y[place]


def hand_over(rng: random.Random, x: Tensor, y: Tensor, size: int | None) -> tuple[str, Any, int | None, list[int]]:
    """Return a form's name, the data in it, the batch size to ask for, and the sizes of the batches declared."""
    count = len(x)
    form = rng.choice(["tensors"] * 5 + ["batches", "uneven", "loader", "dataset", "dict"])
    if form == "uneven":
        sizes = []
        while sum(sizes) < count:
            sizes.append(min(rng.choice([1, 3, 8, 17]), count - sum(sizes)))
        return form, list(zip(x.split(sizes), y.split(sizes))), None, sizes
    if form == "batches":
        size = size or -(-count // rng.choice([2, 3, 5]))
        return form, list(zip(x.split(size), y.split(size))), None, _sizes(count, size)
    if form == "loader":
        size = size or 7
        loader = DataLoader(TensorDataset(x, y), batch_size=size, shuffle=rng.random() < 0.5)
        return form, loader, None, _sizes(count, size)
    if form == "dataset":
        return form, Pairs(x, y), size, _sizes(count, size or 128)
    data = {"x": x, "y": y} if form == "dict" else (x, y)
    return form, data, size, _sizes(count, size or 128)


def _sizes(count: int, size: int) -> list[int]:
    return [min(size, count - start) for start in range(0, count, size)]
