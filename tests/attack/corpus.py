"""One integer makes one case: a network, its data and loss, a hazard or none, and how it is to be measured."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.attack.data import LossCase, hand_over, make_data, make_loss
from tests.attack.hazards import Hazard
from tests.attack.hooks import hazards
from tests.attack.networks import make_network
from tests.attack.truth import Truth

LARGEST = 260  # parameters that may move
HAZARDS = hazards()


@dataclass
class Case:
    """Everything about one network to be measured, and what may come of it."""

    seed: int
    model: nn.Module
    x: Tensor
    y: Tensor
    data: Any
    loss: LossCase
    options: dict[str, Any]
    sizes: list[int]
    hazard: Hazard | None
    policy: str
    coupled: bool
    traits: dict[str, Any] = field(default_factory=dict)

    @property
    def around(self) -> Callable[[], contextlib.AbstractContextManager[Any]]:
        return self.hazard.around if self.hazard is not None and self.hazard.around else contextlib.nullcontext

    def truth(self) -> Truth:
        """Return the truth, to be computed in the surroundings that are part of the function."""
        chosen = list(_chosen(self.model, self.options.get("parameters")))
        train = self.options.get("mode") == "train"
        # Samples that know nothing of each other are taken in one batch, whatever batches were asked for.
        sizes = self.sizes if self.coupled else [len(self.x)]
        return Truth(self.model, self.x, self.y, self.loss.total, sizes, chosen, train)


def _chosen(model: nn.Module, pattern: str | None) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    if pattern is None:
        return {name: p for name, p in named.items() if p.requires_grad}
    end = pattern.strip("*")
    inside = {name: p for name, p in named.items() if (name.startswith(end) if pattern[-1] == "*" else True)}
    return {name: p for name, p in inside.items() if pattern[0] != "*" or pattern == "*" or name.endswith(end)}


def make_case(seed: int, largest: int = LARGEST) -> Case:
    """Return the case of a seed; networks that came out too large, or that may not move at all, are drawn again."""
    attempt = 0
    while True:
        torch.manual_seed(1000 * seed + attempt)
        case = _draw(random.Random(f"{seed}.{attempt}"), seed)
        size = sum(p.numel() for p in _chosen(case.model, case.options.get("parameters")).values())
        if 0 < size <= largest:
            return case
        attempt += 1


def _draw(rng: random.Random, seed: int) -> Case:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return _drawn(rng, seed)
    finally:
        torch.set_default_dtype(before)


def _drawn(rng: random.Random, seed: int) -> Case:
    loss = make_loss(rng)
    count = rng.randrange(6, 41)
    size = rng.choice([None, None, None, 1, 2, 3, 5, 16, 17, count - 1, count])
    if size is not None and size <= 3:  # many batches take long
        count = rng.randrange(6, 13)
    hazard = rng.choice(HAZARDS) if rng.random() < 0.5 else None
    routed = rng.random() < (0.25 if hazard else 0.5)
    extra = [hazard.piece(rng)] if hazard is not None and hazard.piece is not None else []
    model, traits, shape, tokens = make_network(rng, loss.outputs, loss.form, size or 128, routed=routed, extra=extra)
    x, y, orders = make_data(rng, count, shape, tokens, loss)
    dtype = torch.float64
    if hazard is not None and hazard.dtype is not None:
        dtype = hazard.dtype
    elif rng.random() < 0.1:
        dtype = torch.float32
    model = model.to(dtype)
    x, y = (t.to(dtype) if t.is_floating_point() else t for t in (x, y))
    if hazard is not None and hazard.act is not None:
        hazard.act(rng, model)
    form, data, asked, sizes = hand_over(rng, x, y, size)
    options: dict[str, Any] = {} if asked is None else {"batch_size": asked}
    pattern = rng.choice([None] * 6 + ["head.*", "*.weight", "*"])
    if pattern is not None and not _chosen(model, pattern):
        pattern = None
    if pattern is not None:
        options["parameters"] = pattern
    coupled = hazard is not None and hazard.coupled
    policy = hazard.policy if hazard is not None else "right"
    if policy == "right" and any(isinstance(m, nn.EmbeddingBag) for m in model.modules()):
        policy = "honest"  # torch has no second derivative of it
    if hazard is not None and hazard.act is not None and "columns" in traits["stages"]:
        coupled, policy = True, "honest" if policy == "right" else policy  # a hook's rows are then not the samples
    if rng.random() < 0.08:
        options["mode"] = "train"
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        if normed and 1 in sizes:  # torch itself refuses a batch of one
            del options["mode"]
            normed = False
        dropped = "mode" in options and any(isinstance(m, nn.TransformerEncoderLayer) for m in model.modules())
        if normed:
            coupled, policy = True, "honest" if policy == "right" else policy
        if dropped:
            policy = "undefined"
    model.train(rng.random() < 0.5)
    if rng.random() < 0.3:
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
    routes = {**traits, "hazard": hazard.name if hazard else None, "loss": loss.name, "data": form, "orders": orders}
    routes |= {"dtype": str(dtype), "samples": count, "form": loss.form, **options}
    return Case(seed, model, x, y, data, loss, options, sizes, hazard, policy, coupled, routes)
