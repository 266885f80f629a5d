"""Claims of the papers and the rules that decide them: pure functions of an analysis, fixed before its runs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from spiritlevel.lab.studies.quantities import Quantity

ClaimVerdict = Literal["holds", "does not hold", "undecided", "not run"]
Quantities = Mapping[str, Quantity]


@dataclass(frozen=True)
class Within:
    """One condition: the whole interval of a quantity lies between two bounds.

    It holds when the interval is inside, does not hold when the interval is outside, and is undecided when the interval
    reaches over a bound or fewer than ``minimum`` independent seeds (or networks) stand behind it.
    """

    quantity: str
    at_least: float = -math.inf
    at_most: float = math.inf
    minimum: int = 3

    def decide(self, analysis: Quantities) -> ClaimVerdict:
        """Return the verdict on this condition alone."""
        found = analysis.get(self.quantity)
        if found is None or found.count < self.minimum or not math.isfinite(found.value):
            return "undecided"
        if found.low >= self.at_least and found.high <= self.at_most:
            return "holds"
        if found.high < self.at_least or found.low > self.at_most:
            return "does not hold"
        return "undecided"

    def __str__(self) -> str:
        if self.at_most == math.inf:
            return f"{self.quantity} ≥ {self.at_least:.10g}"
        if self.at_least == -math.inf:
            return f"{self.quantity} ≤ {self.at_most:.10g}"
        return f"{self.at_least:.10g} ≤ {self.quantity} ≤ {self.at_most:.10g}"


@dataclass(frozen=True)
class Claim:
    """A sentence of a paper, where it stands, the number or direction it gives, and the conditions that decide it.

    ``shown`` names the quantity whose value the table prints, by default that of the first condition. ``otherwise`` is
    what the data show where the claim does not hold, a template filled with the analysis's quantities by name.
    """

    name: str
    statement: str
    place: str
    paper: str
    rules: tuple[Within, ...]
    shown: tuple[str, ...] = ()
    otherwise: str = ""

    @property
    def quantities(self) -> tuple[str, ...]:
        """The quantities to print beside the paper's number."""
        return self.shown or tuple(rule.quantity for rule in self.rules)


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict, the measured quantities and, where it fails, why as far as the data show."""

    claim: Claim
    verdict: ClaimVerdict
    measured: dict[str, Quantity]
    remark: str = ""

    @property
    def words(self) -> str:
        """The measured quantities in one cell."""
        several = len(self.measured) > 1
        parts = [f"{name} = {quantity}" if several else str(quantity) for name, quantity in self.measured.items()]
        return "; ".join(parts) or "-"


def judge_claim(claim: Claim, analysis: Quantities, explaining: Quantities | None = None) -> Judgement:
    """Decide a claim: it holds if every condition does, fails if one fails, and is undecided otherwise.

    ``explaining`` holds quantities for the remark alone.
    """
    verdicts = [rule.decide(analysis) for rule in claim.rules]
    verdict: ClaimVerdict = "holds"
    if "does not hold" in verdicts:
        verdict = "does not hold"
    elif "undecided" in verdicts:
        verdict = "undecided"
    measured = {name: analysis[name] for name in claim.quantities if name in analysis}
    remark = ""
    if claim.otherwise and verdict == "does not hold":
        remark = claim.otherwise.format_map(_Shown({**analysis, **(explaining or {})}))
    return Judgement(claim, verdict, measured, remark)


class _Shown(dict[str, str]):
    """Quantities by name as text; one that was not measured says so."""

    def __init__(self, analysis: Quantities) -> None:
        super().__init__({name: str(quantity) for name, quantity in analysis.items()})

    def __missing__(self, name: str) -> str:
        return f"({name} not measured)"
