"""The lines around the answer: who was measured, how, where the networks stand, what it cost, what fell short."""

from __future__ import annotations

from collections.abc import Iterable

from spiritlevel.page.content import PageContent
from spiritlevel.results import Report
from spiritlevel.results.numerals import percent, plain
from spiritlevel.results.standing import standing_words
from spiritlevel.results.wording import data_words

MOST = 4  # networks whose facts stand side by side


def settings_line(reports: Iterable[Report]) -> str:
    """Return how the networks were measured, in one line; what differs between them is left out."""
    lines = []
    for report in reports:
        head = report.header
        facts = [str(head.model or "network")]
        if head.parameters is not None:
            facts[0] += f", {head.parameters:,} parameters"
        facts.append(data_words(report))
        if head.seed is not None:
            facts.append(f"seed {head.seed}")
        lines.append(" · ".join(facts).split(" · "))
    shared = [fact for fact in lines[0] if all(fact in line for line in lines)]
    return " · ".join(shared)


def facts(content: PageContent) -> list[tuple[str, str]]:
    """Return loss, accuracies, gradient norm and cost, one value a network."""
    reports = list(content.reports.values())
    joint = " / "
    ends = content.runs.ends
    if ends:  # no arrow leads from one run to another
        reports = [content.reports[label] for label in ends.values()][:MOST]
    elif len(reports) > MOST:  # curves and the table show them
        reports, joint = [reports[0], reports[-1]], " → " if content.one_training else " … "
    found = [("loss", joint.join(plain(report.loss, 3) for report in reports))]
    if any(report.accuracy is not None for report in reports):
        found.append(("accuracy", joint.join(percent(report.accuracy) for report in reports)))
    test = content.comparison.test if content.comparison is not None else {}
    if any(entry.get("accuracy") is not None for entry in test.values()):
        shown = [percent(test.get(label, {}).get("accuracy")) for label in content.reports]
        found.append(("test accuracy", joint.join(shown)))
    if any(entry.get("loss") is not None for entry in test.values()):
        found.append(("test loss", joint.join(plain(test.get(label, {}).get("loss"), 3) for label in content.reports)))
    if any(report.gradient_norm is not None for report in reports):
        found.append(("‖gradient‖", joint.join(_gradient(report) for report in reports)))
    cost = content.cost.words
    return [*found, ("cost", cost)] if cost else found


def _gradient(report: Report) -> str:
    words = standing_words(report.header)
    return plain(report.gradient_norm, 2) + (f" ({words})" if words else "")


def notes(content: PageContent) -> list[str]:
    """Return what fell short and what a reader must know, each once."""
    found = {f"{label} was not measured: {reason}": None for label, reason in content.failures.items()}
    if content.comparison is not None:
        said = content.comparison.reading
        found |= dict.fromkeys(
            line for line in [*content.comparison.headings, *content.comparison.notes] if line not in said
        )
    for label, report in content.reports.items():
        where = f" of {label}" if content.several else ""
        for name, estimate in report.items():
            if estimate.ok:
                continue
            what = {
                "budget_spent": "stopped at its budget",
                "not_applicable": "could not be computed",
                "not_finite": "is not finite",
            }[estimate.status]
            bound = {"lower_bound": "; its value is a lower bound", "upper_bound": "; its value is an upper bound"}
            extra = bound.get(estimate.how, "") if estimate.status == "budget_spent" else ""
            reason = f": {estimate.reason}" if estimate.reason else ""
            found[f"{name}{where} {what}{extra}{reason}"] = None
        for line in report.header.notes:
            found[str(line)] = None
    return list(found)
