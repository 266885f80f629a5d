"""What a measure costs alone: sweeps over the data by kind, as numbers or as words that a plan fills in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from spiritlevel.results.cost import PASS_WORDS

# Typical lengths of the adaptive parts, for a plan only: each stops by its own error or residual.
TYPICAL_LANCZOS_STEPS = 20
TYPICAL_EIGEN_PRODUCTS = 20


@dataclass(frozen=True)
class Extent:
    """What decides how many sweeps a word of a cost stands for."""

    columns: int  # of the loss's factor
    weights: int  # weight matrices
    settings: Mapping[str, Any]


# The words that may stand for a number of sweeps, with about how many they will be.
COST_WORDS: dict[str, Callable[[Extent], float]] = {
    "outputs - 1": lambda extent: extent.columns,
    "layers × Lanczos steps": lambda extent: extent.weights * TYPICAL_LANCZOS_STEPS,
    "the top pairs and probes": lambda extent: TYPICAL_EIGEN_PRODUCTS + extent.settings.get("probes", 8),
    "up to 2 × probes": lambda extent: 2 * extent.settings.get("probes", 0),
    "until the residual is met": lambda extent: TYPICAL_EIGEN_PRODUCTS,
    "until the residuals are met": lambda extent: TYPICAL_EIGEN_PRODUCTS,
}


@dataclass(frozen=True)
class Cost:
    """Sweeps over the data by kind, as numbers, or as words of ``COST_WORDS`` or a setting's name, filled in by a plan.

    Attributes
    ----------
    forward : float or str
        Forward passes.
    gradient : float or str
        Gradients: a forward and a backward pass each.
    column : float or str
        Backward passes of the curvature sweep (classes - 1 for cross-entropy); a sampled remainder adds products where
        a layer is not piecewise linear.
    product : float or str
        Products of the Hessian with a vector.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> print(sl.Cost(forward=1, column="outputs - 1"))
    1 forward pass, outputs - 1 VJPs
    >>> print(sl.Cost())
    no pass over the data
    """

    forward: float | str = 0
    gradient: float | str = 0
    column: float | str = 0
    product: float | str = 0

    def __str__(self) -> str:
        counts = {kind: count for kind, count in vars(self).items() if count}
        parts = [f"{count} {PASS_WORDS[kind][0 if count == 1 else 1]}" for kind, count in counts.items()]
        return ", ".join(parts) or "no pass over the data"

    def sweeps(self, extent: Extent) -> dict[str, float]:
        """Return about how many sweeps of each kind that is; words nobody knows stand for a search.

        Parameters
        ----------
        extent : Extent
            What decides how many sweeps a word stands for.

        Returns
        -------
        dict of str to float
            The count by kind, of those that are not 0.
        """
        found = {}
        for kind, count in vars(self).items():
            if isinstance(count, str):
                about = COST_WORDS.get(count)
                count = about(extent) if about else extent.settings.get(count, TYPICAL_EIGEN_PRODUCTS)
            if count:
                found[kind] = float(count)
        return found
