"""What stands beside the rows of a comparison: how far its measures agree, and the distributions of margins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spiritlevel.analyses.measuring import per_sample
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.over_samples import Distribution
from spiritlevel.results import Report
from spiritlevel.results.rows import ComparisonRow, Margins
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.statistics import rank_correlation

BINS = 30
FEWEST_FOR_CORRELATION = 4


def agreement(rows: Mapping[str, ComparisonRow], reports: Mapping[str, Report]) -> dict[str, Any]:
    """Count pairs of decided measures that name the same network; with more networks, correlate their orders."""
    decided = {name: row.flattest for name, row in rows.items() if row.flattest is not None}
    pairs = list(combinations(decided, 2))
    found: dict[str, Any] = {
        "decided": len(decided),
        "pairs": len(pairs),
        "agree": sum(decided[a] == decided[b] for a, b in pairs),
        "disagreeing": [[a, b] for a, b in pairs if decided[a] != decided[b]],
    }
    if len(reports) >= FEWEST_FOR_CORRELATION:
        usable = [name for name, row in rows.items() if row.sharper_when and row.holding.kind != "not_comparable"]
        sharpness = {
            name: [
                (1 if rows[name].sharper_when == "larger" else -1) * report[name].value for report in reports.values()
            ]
            for name in usable
        }
        found["spearman"] = [
            {"first": a, "second": b, **vars(rank_correlation(sharpness[a], sharpness[b]))}
            for a, b in combinations(usable, 2)
        ]
    return found


def margins_of(
    reports: Mapping[str, Report], problems: Mapping[str, OpenProblem] | None
) -> tuple[list[float], dict[str, Margins]]:
    """Return the distributions of the output margins, on bins shared by all networks; nothing where there are none."""
    values: dict[str, Tensor] = {}
    for label, report in reports.items():
        own = report.per_sample.get("output_margin")
        if own is None and problems is not None:
            try:
                own = per_sample(problems[label], "output_margin")["output_margin"]
            except SpiritlevelError:  # no classes, so no margins
                own = None
        if own is None:
            return [], {}
        values[label] = own
    finite = torch.cat([each[each.isfinite()] for each in values.values()])
    if not len(finite):
        return [], {}
    low, high = float(finite.min()), float(finite.max())
    edges = np.linspace(low, high if high > low else low + 1.0, BINS + 1)
    weights = {label: torch.ones(len(each), dtype=torch.float64) for label, each in values.items()}
    if problems is not None:
        weights = {label: problems[label].survey.weights for label in values}
    found = {}
    for label, each in values.items():
        spread = Distribution(each, weights[label])
        below = float(spread.shares[spread.values < 0].sum())
        summary = {**spread.details(), "share_negative": below}
        counts = np.histogram(spread.values, edges)[0]
        found[label] = Margins({key: _finite(value) for key, value in summary.items()}, counts.tolist())
    return edges.tolist(), found


def _finite(value: Any) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)
