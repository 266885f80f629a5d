"""What was found in a network: its symmetries, and the operations that leave no freedom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from spiritlevel.analyses.symmetries.scales import Classes
from spiritlevel.analyses.symmetries.walking import Walk
from spiritlevel.values.symmetries import SYMMETRIES


@dataclass(frozen=True)
class Symmetry:
    """One map of the parameters that keeps the function: which layers share it and how many factors are free.

    ``kind`` is one of layers, neurons, output_scale (which multiplies the outputs by α) and permutation (where
    ``factors`` counts the units that can change places).
    """

    kind: str
    name: str
    layers: tuple[str, ...]
    factors: int
    exact: bool = True
    reason: str = ""

    @property
    def how(self) -> str:
        """Whether the map is exact, or exact but for the ε of a normalisation."""
        return "exact" if self.exact else "approximate (epsilon)"

    def __str__(self) -> str:
        what = "units" if self.kind == "permutation" else "factor" if self.factors == 1 else "factors"
        because = f": {self.reason}" if self.reason else ""
        return f"{', '.join(self.layers)}: {self.factors} {what}, {self.how}{because}"


@dataclass(frozen=True)
class Analysis:
    """What the maps need: the walk over scales, its classes with and without the ε's demands, the walk over units."""

    walk: Walk
    exact: Classes
    loose: Classes
    units: Walk


@dataclass(frozen=True)
class Symmetries:
    """Every symmetry found in a network, in the order of its layers; iterates over them."""

    symmetries: tuple[Symmetry, ...]
    left_alone: tuple[tuple[str, str], ...]
    reason: str = ""
    mode: str = "eval"
    analysis: Analysis | None = field(default=None, repr=False, compare=False)

    def __iter__(self) -> Iterator[Symmetry]:
        return iter(self.symmetries)

    def __len__(self) -> int:
        return len(self.symmetries)

    def of_kind(self, kind: str, *, exact: bool = True) -> tuple[Symmetry, ...]:
        """Return the symmetries of one kind, exact ones unless said otherwise."""
        return tuple(each for each in self.symmetries if each.kind == kind and each.exact == exact)

    def free_factors(self, kind: str) -> int:
        """Count the independent exact factors of one kind."""
        return sum(each.factors for each in self.of_kind(kind))

    def __str__(self) -> str:
        lines = []
        for declared in SYMMETRIES.values():
            of_kind = [each for each in self.symmetries if each.kind == declared.kind]
            if of_kind:
                lines += [f"{declared.listed_as}:", *(f"  {each}" for each in of_kind)]
        if not lines:
            lines.append("no symmetry found" + (f": {self.reason}" if self.reason else ""))
        if self.left_alone:
            lines += ["left alone:", *(f"  {where}: {reason}" for where, reason in self.left_alone)]
        return "\n".join(lines)
