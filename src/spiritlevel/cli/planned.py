"""``--dry-run``: the plan on the screen, and the refusal of what cannot fit, with what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spiritlevel.cli.failures import DONE
from spiritlevel.cli.screens import show_lines
from spiritlevel.values.errors import SpiritlevelError

if TYPE_CHECKING:
    from spiritlevel.analyses.planning import Plan


def show_plan(planned: Plan, *more: str) -> int:
    """Print a plan with lines of its own, and refuse what does not fit."""
    show_lines(planned)
    for line in more:
        show_lines(line)
    if planned.refusal:
        raise SpiritlevelError(planned.refusal)
    return DONE
