"""What the Hessian's diagonal says a measure becomes when the network is rescaled."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spiritlevel.analyses.rescaling_directions import Array, Direction, Side
from spiritlevel.measures.declaration import Measure


class Surrogate:
    """What the diagonal says a measure becomes: a trace, or squared norms times traces summed over weights."""

    def __init__(self, side: Side, form: str) -> None:
        self.squares = side.squares
        self.form = form
        # Whether the measure is this very function of a diagonal that is known exactly.
        self.exact = side.exact_diagonal and form not in ("like_trace", "like_kappa")
        weights = side.equivalents.problem.weights
        self.names = list(weights.values()) if form.startswith("kappa") else list(self.squares)
        if form == "kappa_last" and weights:
            self.names = self.names[-1:]

    def along(self, direction: Direction) -> Callable[[float], float]:
        """Return the surrogate as a function of the direction's size t."""
        # Entries of one exponent move together, so few sums are enough for every t.
        sums = []
        for name in self.names:
            w2, h = self.squares[name]
            exponents = direction.exponents.get(name, np.zeros(w2.shape))
            values, index = np.unique(np.round(exponents, 9), return_inverse=True)
            flat = index.ravel()
            sums.append((values, np.bincount(flat, w2.ravel()), np.bincount(flat, h.ravel())))

        def value(t: float) -> float:
            parts = [
                (float((np.exp(2 * t * k) * w2).sum()), float((np.exp(-2 * t * k) * h).sum())) for k, w2, h in sums
            ]
            return self._reduced(parts)

        return value

    def _reduced(self, parts: list[tuple[float, float]]) -> float:
        if self.form in ("trace", "like_trace"):
            return sum(h for _, h in parts)
        if self.form == "root":
            return sum(math.sqrt(max(w2 * h, 0.0)) for w2, h in parts)
        products = [w2 * h for w2, h in parts] or [0.0]
        return max(products) if self.form == "kappa_max" else sum(products)

    def slopes(self, exponents: Mapping[str, Array], t: float) -> dict[str, Array]:
        """Return the slope of the surrogate along every entry's own exponent, at size t of a direction."""
        found: dict[str, Array] = {}
        moved = {}
        for name in self.names:
            w2, h = self.squares[name]
            k = exponents.get(name, np.zeros(w2.shape))
            moved[name] = np.exp(2 * t * k) * w2, np.exp(-2 * t * k) * h
        products = {name: float(w2.sum()) * float(h.sum()) for name, (w2, h) in moved.items()}
        for name, (w2, h) in moved.items():
            if self.form in ("trace", "like_trace"):
                found[name] = -2 * h
            elif self.form != "kappa_max" or products[name] == max(products.values()):
                root = 2 * math.sqrt(max(products[name], 1e-300)) if self.form == "root" else 1.0
                found[name] = 2 * (w2 * float(h.sum()) - float(w2.sum()) * h) / root
        return found


def form_of(own: Measure, settings: Mapping[str, Any], kind: str) -> str:
    """Return which function of the diagonal stands for a measure; one that only resembles it has "like" in its name.

    ``settings`` are the measure's own.
    """
    plain = all(settings.get(key, value) == value for key, value in own.settings.items())
    like = "like_trace" if kind == "layers" else "like_kappa"
    return own.surrogate if own.surrogate and plain else like
