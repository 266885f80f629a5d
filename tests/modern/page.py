"""The record of the zoo as a page of the documentation."""

from __future__ import annotations

import statistics
from typing import Any

from tests.modern.coverage import LAYERS, TRACES
from tests.modern.verdict import COVERED

ESTIMATED = {
    "hessian_trace": "trace",
    "normalized_sharpness": "normalised sharpness",
    "kappa_tau_sum": "κτ",
    "rho_sum": "ρ",
}
COVERED_OVER = {**ESTIMATED, LAYERS: LAYERS, TRACES: TRACES}

MOST, MEDIAN = 150, 60  # gradient passes that the default group is to take on a network, and in the median over them

HEAD = """# Networks as they are written today

{count} small networks, each briefly trained, on {samples:,} samples in float64: every default value beside a dense
Hessian by differentiating twice. A gradient pass is the median CPU time of one forward and backward pass over the same
samples, in the batches that the measurement takes, on one thread; the cost is the default group's CPU time over it,
with every sample's Hessian trace and its error, the median over seeds. Of each estimated value stand, for the first
seed, its standard error relative to it, with the status `budget_spent` where that is above 5%, and how many of its
errors it is off the truth. This page is made by
`python -m tests.modern --seeds {seeds} --cover 50 --json docs/results/modern.json --page docs/results/modern.md`.
"""


def page_of(records: list[dict[str, Any]]) -> str:
    """Return the page, from records as they stand in JSON."""
    ran = [record for record in records if record["passes"]]
    costs = [statistics.median(record["passes"]) for record in ran]
    wrong = sum(not verdict["right"] for record in ran for of_seed in record["verdicts"] for verdict in of_seed)
    lines = [HEAD.format(count=len(records), samples=records[0]["samples"], seeds=len(records[0]["passes"]))]
    above = [record["name"] for record, cost in zip(ran, costs) if cost > MOST]
    lines.append(
        f"Cost: median {statistics.median(costs):.0f} gradient passes (the aim: {MEDIAN}), at most {max(costs):.0f}; "
        f"above {MOST}: {', '.join(above) or 'none'}. Values off by more than three errors: {wrong} of "
        f"{_counted(ran)} that are sampled or bounds. Networks refused: {len(records) - len(ran)}.\n"
    )
    lines += _table(["network", "parameters", "passes", "λ₁", *ESTIMATED.values()], [_row(record) for record in ran])
    covered = [record for record in ran if record.get("coverage")]
    if covered:
        lines.append(
            f"\n## Coverage\n\nShares of errors within {COVERED} of those stated, over many seeds on few samples.\n"
        )
        lines += _table(
            ["network", "seeds", *COVERED_OVER.values()],
            [*(_coverage_row(record) for record in covered), _coverage_of_all(covered)],
        )
    return "\n".join(lines) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    rule = "|---|" + "---:|" * (len(head) - 1)
    return [f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)]


def _row(record: dict[str, Any]) -> list[str]:
    verdicts = {verdict["measure"]: verdict for verdict in record["verdicts"][0]}
    top = verdicts["hessian_top_eigenvalue"]
    off = abs(top["value"] - top["truth"]) / abs(top["truth"])
    passes = f"{statistics.median(record['passes']):.0f}"
    values = [_value(verdicts.get(name)) for name in ESTIMATED]
    return [record["name"], f"{record['parameters']:,}", passes, f"off by {off:.0e}", *values]


def _value(verdict: dict[str, Any] | None) -> str:
    if verdict is None or verdict["truth"] is None:
        return "–"
    if verdict["z"] is None:
        return "exact"
    spent = "" if verdict["status"] == "ok" else f" `{verdict['status']}`"
    bound = " bound" if verdict["how"].endswith("bound") else ""
    return f"{verdict['stderr'] / abs(verdict['value']):.1%}{bound}{spent}, z = {verdict['z']:+.1f}"


def _counted(records: list[dict[str, Any]]) -> int:
    return sum(verdict["z"] is not None for record in records for of_seed in record["verdicts"] for verdict in of_seed)


def _coverage_row(record: dict[str, Any]) -> list[str]:
    found = record["coverage"]
    shares = (f"{found[name]['covered']:.0%}" if name in found else "–" for name in COVERED_OVER)
    return [record["name"], str(record["coverage_seeds"]), *shares]


def _coverage_of_all(records: list[dict[str, Any]]) -> list[str]:
    shares = []
    for name in COVERED_OVER:
        found = [record["coverage"][name] for record in records if name in record["coverage"]]
        count = sum(one["count"] for one in found)
        covered = sum(one["covered"] * one["count"] for one in found)
        shares.append(f"{covered / count:.1%} of {count:,.0f}" if count else "–")
    return ["all", "", *shares]
