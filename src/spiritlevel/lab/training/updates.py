"""SGD, Adam and AdamW on stacked parameters, where each network of the stack has its own rate and weight decay.

torch's optimisers admit one of each a parameter; otherwise these are the same formulas, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from spiritlevel.values.errors import UsageError

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


class StackedOptimizer:
    """One step for K networks at once: parameters and gradients have the network as their first axis."""

    def __init__(
        self, name: str, params: dict[str, Tensor], momentum: float, weight_decay: float | Sequence[float]
    ) -> None:
        if name not in ("sgd", "adam", "adamw"):
            raise UsageError(f"No optimizer is called {name!r}: the names are sgd, adam, adamw.")
        self.name = name
        self.momentum = momentum
        first = next(iter(params.values()))
        # One decay for all stays a number, so that such stacks compute what they always did.
        self.weight_decay: float | Tensor = (
            weight_decay
            if isinstance(weight_decay, int | float)
            else torch.tensor(list(weight_decay), dtype=first.dtype, device=first.device)
        )
        self.decays = isinstance(self.weight_decay, Tensor) or self.weight_decay != 0
        self.steps = 0
        moments = {"sgd": 1 if momentum else 0, "adam": 2, "adamw": 2}[name]
        self.moments = [{key: torch.zeros_like(value) for key, value in params.items()} for _ in range(moments)]

    def step(self, params: dict[str, Tensor], gradients: dict[str, Tensor], lr: Tensor) -> None:
        """Update the parameters in place; ``lr`` has one entry a network."""
        self.steps += 1
        with torch.no_grad():
            for key, value in params.items():
                rate = lr.to(value).view(-1, *[1] * (value.dim() - 1))
                gradient = gradients[key]
                if self.decays and self.name != "adamw":
                    gradient = gradient + self._decay(value) * value
                if self.name == "sgd":
                    value.sub_(rate * self._momentum(key, gradient))
                else:
                    self._adam(key, value, gradient, rate)

    def keep(self, networks: Tensor) -> None:
        """Forget the networks that are not listed."""
        self.moments = [{key: value[networks] for key, value in moment.items()} for moment in self.moments]
        if isinstance(self.weight_decay, Tensor):
            self.weight_decay = self.weight_decay[networks]

    def _decay(self, value: Tensor) -> float | Tensor:
        """The weight decay as it multiplies one stacked parameter."""
        if isinstance(self.weight_decay, Tensor):
            return self.weight_decay.view(-1, *[1] * (value.dim() - 1))
        return self.weight_decay

    def _momentum(self, key: str, gradient: Tensor) -> Tensor:
        """z ← μ z + g (Granziol 2021, eq. 20); the first z is g, as z starts from zero."""
        if not self.momentum:
            return gradient
        return self.moments[0][key].mul_(self.momentum).add_(gradient)

    def _adam(self, key: str, value: Tensor, gradient: Tensor, rate: Tensor) -> None:
        if self.name == "adamw":
            value.mul_(1.0 - rate * self._decay(value))
        first = self.moments[0][key].lerp_(gradient, 1.0 - BETA_1)
        second = self.moments[1][key].mul_(BETA_2).addcmul_(gradient, gradient, value=1.0 - BETA_2)
        correction_1, correction_2 = 1.0 - BETA_1**self.steps, 1.0 - BETA_2**self.steps
        value.sub_(rate / correction_1 * first / (second.sqrt() / math.sqrt(correction_2) + EPSILON))
