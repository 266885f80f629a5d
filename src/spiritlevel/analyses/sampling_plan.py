"""What sampling will cost, before it is done: which layers have a remainder is found out on a few samples."""

from __future__ import annotations

from dataclasses import dataclass

from spiritlevel.engine.blocks import BUDGET, Blocks
from spiritlevel.engine.passes.remainder import FIRST_PROBES
from spiritlevel.engine.remainder import DRAW_COST, FIRST_DRAWS, FIRST_DRAWS_OF_PARTS, PROBE_COST
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.values.errors import SpiritlevelError

FEW = 8  # samples that are looked at
# A value most often needs its first look and half as much again.
USUAL_GROWTH = 1.5


@dataclass(frozen=True)
class SamplingPlan:
    """How often sampling sweeps where its first looks are enough, usually, and at most."""

    draws: float = 0.0  # of curved operations, two columns each
    probes: float = 0.0  # of parameters, a product with H and one with G each
    most_draws: float = 0.0  # beyond the first looks; where there are probes too, the budget is either's
    most_probes: float = 0.0

    @property
    def least(self) -> dict[str, float]:
        """Sweeps by kind that are made whatever the errors are."""
        return self._sweeps(self.draws, self.probes)

    @property
    def usual(self) -> dict[str, float]:
        """The usual number of sweeps by kind."""
        half = USUAL_GROWTH - 1
        draws, probes = min(half * self.draws, self.most_draws), min(half * self.probes, self.most_probes)
        return self._sweeps(self.draws + draws, self.probes + probes)

    @property
    def most(self) -> dict[str, float]:
        """Sweeps by kind where the whole budget is spent."""
        # A probe takes more time than a draw of the same cost.
        draws = 0.0 if self.most_probes else self.most_draws
        return self._sweeps(self.draws + draws, self.probes + self.most_probes)

    @staticmethod
    def _sweeps(draws: float, probes: float) -> dict[str, float]:
        return {"forward": 1.0 if draws else 0.0, "column": 2 * draws, "product": 2 * probes}


def plan_sampling(problem: OpenProblem, wants: frozenset[str]) -> SamplingPlan:
    """Return what sampling the diagonal blocks will take; nothing where all of them are exact."""
    few = problem.on_few(FEW)
    with few.session():
        try:
            blocks = Blocks(few, wants)
            remainder = blocks.remainder if blocks.sampled_names else None
        except SpiritlevelError:  # which the measures' rows will say
            return SamplingPlan()
    sketched = blocks.sums is not None and not blocks.sums.exact_columns
    if remainder is None:
        return SamplingPlan(most_draws=BUDGET / DRAW_COST if sketched else 0.0)
    draws = 0
    if remainder.operations.members:
        draws = FIRST_DRAWS_OF_PARTS if remainder.operations.wants else FIRST_DRAWS
    others, probes = remainder.others, 0
    written_out = bool(others.names) and others.writes_out(FIRST_PROBES)
    if others.names:
        weights = len(others.names_for("whole")) if "whole" in wants else 0
        probes = (others.size if written_out else FIRST_PROBES * others.kinds) + weights
    more_probes = bool(others.names) and not written_out
    return SamplingPlan(
        draws,
        probes,
        most_draws=BUDGET / DRAW_COST * (bool(draws) + sketched),  # sketches have a budget of their own
        most_probes=BUDGET / PROBE_COST if more_probes else 0.0,
    )
