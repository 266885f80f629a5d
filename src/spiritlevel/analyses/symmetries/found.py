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

    Attributes
    ----------
    kind : str
        One of layers, neurons, output_scale (which multiplies the outputs by α) and permutation.
    name : str
        The name by which `rescale_neurons` takes factors.
    layers : tuple of str
        The layers that share it.
    factors : int
        How many factors are free; of a permutation, how many units can change places.
    exact : bool
        Whether the function is kept exactly, and not but for the ε of a normalisation.
    reason : str
        Why it is not exact.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> found = sl.symmetries.find(model, torch.zeros(2, 1, 8, 8))
    >>> first = next(iter(found))
    >>> first.kind, first.layers, first.factors, first.how
    ('layers', ('1',), 1, 'exact')
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
    """Every symmetry found in a network, in the order of its layers; iterates over them.

    Printed, it is a list of them and of what was left alone.

    Attributes
    ----------
    symmetries : tuple of Symmetry
        What was found.
    left_alone : tuple of pairs of str
        Operations that leave no freedom: where, and why.
    reason : str
        Why nothing was found, where the network could not be traced.
    mode : str
        "eval" or "train".
    analysis : Analysis
        What the maps need; None where the network could not be traced.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> found = sl.symmetries.find(model, torch.zeros(2, 1, 8, 8))
    >>> len(found), found.free_factors("layers"), found.free_factors("neurons")
    (7, 2, 64)
    >>> [symmetry.layers for symmetry in found.of_kind("neurons")]
    [('1',), ('3',)]
    """

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
        """Return the symmetries of one kind, exact ones unless said otherwise.

        Parameters
        ----------
        kind : str
            One of layers, neurons, output_scale and permutation.
        exact : bool
            Whether to return the exact ones, or those that are exact but for the ε of a normalisation.

        Returns
        -------
        tuple of Symmetry
            Those of that kind.
        """
        return tuple(each for each in self.symmetries if each.kind == kind and each.exact == exact)

    def free_factors(self, kind: str) -> int:
        """Count the independent exact factors of one kind.

        Parameters
        ----------
        kind : str
            One of layers, neurons, output_scale and permutation.

        Returns
        -------
        int
            The count.
        """
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
