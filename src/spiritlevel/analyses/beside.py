"""What saved reports that stand beside each other say of each other, without measuring anything."""

from __future__ import annotations

from collections.abc import Mapping

from spiritlevel.analyses.comparable import declared_for
from spiritlevel.analyses.comparison import assemble
from spiritlevel.results import Report
from spiritlevel.results.compared import Comparison

FEWEST_RANKED = 3


def ranked_beside(reports: Mapping[str, Report]) -> Comparison | None:
    """Return what saved reports say of each other; None where they are few or were not measured alike."""
    heads = [report.header for report in reports.values()]
    if len(heads) < FEWEST_RANKED:
        return None
    alike = len({(head.fingerprint, head.loss_name, head.mode) for head in heads}) == 1 and heads[0].fingerprint
    shared = set.intersection(*map(set, reports.values()))
    return assemble(reports, declared_for(reports)) if alike and shared else None
