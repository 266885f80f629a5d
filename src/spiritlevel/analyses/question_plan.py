"""What an audit or a comparison will cost, from the plan of one measurement."""

from __future__ import annotations

from spiritlevel.analyses.auditing import RUNS_A_STRENGTH, RUNS_AT_LEAST, work_of_audit
from spiritlevel.analyses.comparison import work_of_comparison
from spiritlevel.analyses.planning import Plan, about, duration_in_words

# Where part of a network is sampled nothing follows from it, and each network's search measures so often for a measure.
SEARCHED = 8


def planned_audit(plan: Plan, strengths: int, alphas: int) -> str:
    """Say what an audit will cost, with so many ranges of factors and scales of the outputs."""
    follows, measured = work_of_audit(strengths, alphas), RUNS_AT_LEAST + RUNS_A_STRENGTH * strengths + alphas
    return _said("An audit", plan, follows, measured)


def planned_comparison(plan: Plan, networks: int, search: bool) -> str:
    """Say what a comparison of so many networks will cost, each with this plan."""
    measures = len(plan.measures)
    follows = work_of_comparison(networks, measures if search else 0)
    measured = 2 * networks + RUNS_A_STRENGTH + 1 + (SEARCHED * measures if search else 0)
    return _said(f"A comparison of {networks} networks", plan, follows, measured)


def _said(what: str, plan: Plan, follows: float, measured: float) -> str:
    usual = measured if plan.sampled else follows
    limit = plan.limit
    least, seconds, most = (
        min(each, limit)
        for each in (follows * plan.seconds_range[0], usual * plan.seconds, measured * plan.seconds_range[1])
    )
    between = f"{duration_in_words(least)} to {duration_in_words(most)}"
    return f"{what} comes to about {usual:.0f} such measurements: {about(seconds)} ({between})."
