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
    """Sweeps that sampling takes where its first looks are enough, usually, and at most in gradients."""

    draws: float = 0.0  # of curved operations, two columns each
    probes: float = 0.0  # of parameters, a product with H and one with G each
    most: float = 0.0  # gradients' worth beyond the first looks

    @property
    def first_looks(self) -> float:
        """Gradients' worth that is sampled whatever the errors are."""
        return DRAW_COST * self.draws + PROBE_COST * self.probes

    @property
    def usual(self) -> dict[str, float]:
        """The usual number of sweeps by kind."""
        growth = 1 + min(USUAL_GROWTH - 1, self.most / self.first_looks) if self.first_looks else 0.0
        found = {"forward": 1.0 if self.draws else 0.0, "column": 2 * growth * self.draws}
        return found | {"product": 2 * growth * self.probes}


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
        return SamplingPlan(most=BUDGET if sketched else 0.0)
    draws = 0
    if remainder.operations.rules:
        draws = FIRST_DRAWS_OF_PARTS if remainder.operations.wants else FIRST_DRAWS
    others, probes = remainder.others, 0
    if others.names:
        weights = len(others.names_for("whole")) if "whole" in wants else 0
        # As many probes as there are parameters are unit vectors, which serve all kinds.
        probes = min(FIRST_PROBES * others.kinds, others.size) + weights
    written_out = bool(others.names) and FIRST_PROBES * others.kinds >= others.size
    more = draws or sketched or (others.names and not written_out)
    return SamplingPlan(draws, probes, BUDGET if more else 0.0)
