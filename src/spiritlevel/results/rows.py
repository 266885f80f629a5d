"""One measure over all networks of a comparison: the contrasts of all pairs, and whether the ordering holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from spiritlevel.results.contrasts import Contrast, flattest_of
from spiritlevel.results.reversals import Reversal

HoldingKind = Literal[
    "invariant",  # to every rescaling found in these networks
    "reversible",  # by a rescaling that was found
    "changes",  # under a rescaling, without a reversal being found
    "scales_with_logits",
    "undecided",
    "no_direction",  # larger is neither flatter nor sharper
    "not_comparable",
    "not_tried",  # no symmetry was found, so nothing could be tried
]


@dataclass(frozen=True)
class Holding:
    """Whether an ordering holds: its kind, in words, and the rescaling that reverses it where one was found.

    Attributes
    ----------
    kind : str
        "invariant" (to every rescaling found in these networks), "reversible" (by one that was found), "changes"
        (without a reversal being found), "scales_with_logits", "undecided", "no_direction" (larger is neither flatter
        nor sharper), "not_comparable" or "not_tried" (no symmetry was found).
    words : str
        It in words.
    checked : bool
        Whether it was measured on changed copies; otherwise it is taken from the declaration.
    changed_by : tuple of str
        Symmetries under which the value changed.
    scales_with_outputs : bool
        Whether scaling the outputs changes the value; None where that is not known.
    reversal : Reversal
        The rescaling that reverses it, where one was found.
    """

    kind: HoldingKind
    words: str
    checked: bool = True  # measured on changed copies; otherwise taken from the declaration
    changed_by: tuple[str, ...] = ()  # symmetries under which the value changed
    scales_with_outputs: bool | None = None
    reversal: Reversal | None = None


@dataclass(frozen=True)
class ComparisonRow:
    """One measure over all networks.

    Attributes
    ----------
    name, title : str
        The measure, and its title.
    sharper_when : str
        "larger", "smaller", or nothing where it has no direction.
    contrasts : tuple of Contrast
        Every pair of networks, in their order.
    holding : Holding
        Whether the ordering holds under rescaling.
    """

    name: str
    title: str
    sharper_when: str
    contrasts: tuple[Contrast, ...]  # every pair of networks, in their order
    holding: Holding

    @property
    def flattest(self) -> str | None:
        """The network that is told apart from all others as flatter, None where there is none."""
        return flattest_of(self.contrasts)

    def between(self, first: str, second: str) -> Contrast | None:
        """Return the contrast of a pair, in the order of the comparison.

        Parameters
        ----------
        first : str
            A network's label.
        second : str
            Another one's.

        Returns
        -------
        Contrast or None
            The one that holds both, None where they cannot be compared by this measure.
        """
        return next((c for c in self.contrasts if {c.first, c.second} == {first, second}), None)

    def record(self) -> dict[str, Any]:
        """Return the row as plain values."""
        return {
            "name": self.name,
            "title": self.title,
            "sharper_when": self.sharper_when,
            "contrasts": [contrast.record() for contrast in self.contrasts],
            "flattest": self.flattest,
            "holding": asdict(self.holding),
        }


@dataclass(frozen=True)
class Margins:
    """The distribution of one network's output margins, on bins shared by all networks.

    Attributes
    ----------
    summary : dict
        Quartiles, skewness and the like, by name.
    counts : list of int
        How many samples are in each bin.
    """

    summary: dict[str, float | None]
    counts: list[int]


def read_row(entry: dict[str, Any]) -> ComparisonRow:
    """Return the row of a record."""
    holding = entry["holding"]
    return ComparisonRow(
        name=entry["name"],
        title=entry["title"],
        sharper_when=entry["sharper_when"],
        contrasts=tuple(Contrast.read(contrast, entry["sharper_when"]) for contrast in entry["contrasts"]),
        holding=Holding(
            **{
                **holding,
                "changed_by": tuple(holding["changed_by"]),
                "reversal": None
                if holding["reversal"] is None
                else Reversal(**{**holding["reversal"], "layers": tuple(holding["reversal"]["layers"])}),
            }
        ),
    )
