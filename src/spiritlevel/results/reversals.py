"""A rescaling that reverses an ordering."""

from __future__ import annotations

from dataclasses import dataclass, field

from spiritlevel.results.numerals import at_least


@dataclass(frozen=True, kw_only=True)
class Reversal:
    """A rescaling of one network, by factors between 1/factor and factor, that puts it on the other side.

    Attributes
    ----------
    network : str
        The network that is rescaled.
    kind : str
        "layers" or "neurons".
    layers : tuple of str
        The layers that it touches.
    factor : float
        The largest factor.
    before, after : float
        The network's value before and after.
    other : float
        The value of the other network.
    factors : dict
        The factors by symmetry, one for all or one a neuron.
    measurements : int
        How many measurements the search took.
    """

    network: str
    kind: str  # "layers" or "neurons"
    layers: tuple[str, ...]
    factor: float
    before: float
    after: float
    other: float
    factors: dict[str, list[float]] = field(default_factory=dict)  # by symmetry, one for all or one a neuron
    measurements: int = 0

    @property
    def words(self) -> str:
        """The rescaling in words."""
        size = f"×{at_least(self.factor, 3)}"
        if self.kind == "layers":
            if len(self.layers) == 2:
                return f"rescaling layers {' ↔ '.join(self.layers)} by {size} reverses it"
            shown = [*self.layers[:2], f"… ({len(self.layers)} layers)"] if len(self.layers) > 4 else self.layers
            return f"rescaling layer{'s' if len(self.layers) > 1 else ''} {', '.join(shown)} by {size} reverses it"
        return f"rescaling neurons by at most {size} reverses it"
