"""What is recorded of a network: its state, and every measure of the group ``papers`` with both of its errors."""

from __future__ import annotations

import math
import statistics
from typing import Any

import spiritlevel as sl
from spiritlevel.analyses.sample_groups import measured_by_group
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.registry import select
from spiritlevel.values.estimate import Estimate
from tests.typical.networks import SEED, STATES, TypicalNetwork

GROUPS = 5  # of samples, for the error over them where a measure has none of its own
DIGITS = 7


def record_of(network: TypicalNetwork) -> dict[str, Any]:
    """Return the record of one network in all of its states."""
    data = network.training_data()
    return {
        "name": network.name,
        "words": network.words,
        "data": f"{network.data}, {len(data):,} images",
        "parameters": sum(parameter.numel() for parameter in network.initialised().parameters()),
        "training": f"SGD, rate {network.rate:g}, batches of {network.batch}; briefly: {network.brief} epochs",
        "states": {state: state_record(network, state) for state in STATES},
    }


def state_record(network: TypicalNetwork, state: str, over_samples: bool = True) -> dict[str, Any]:
    """Return loss and accuracy on all training data, and the measures on a draw of it."""
    problem = network.problem(state)
    whole = sl.training.evaluate(problem.model, network.training_data())
    report = sl.measure(problem, "papers", seed=SEED)
    spread = _spread_over_groups(problem, report) if over_samples else {}
    return {
        "loss": _rounded(whole.loss),
        "accuracy": _rounded(whole.accuracy),
        "samples": report.header.samples,
        "measures": {name: _entry(report[name], spread.get(name)) for name in report},
    }


def _spread_over_groups(problem: sl.Problem, report: sl.Report) -> dict[str, float]:
    """Return the standard error over samples of the measures that give none, from disjoint groups of them."""
    lacking = [own for own in select("papers") if report[own.name].ok and report[own.name].stderr_data is None]
    reports = measured_by_group({"": OpenProblem(problem)}, lacking, GROUPS, settings={}, seed=SEED)[""]
    found = {}
    for own in lacking:
        values = [each[own.name].value for each in reports]
        if all(map(math.isfinite, values)):
            found[own.name] = statistics.stdev(values) / math.sqrt(GROUPS)
    return found


def _entry(estimate: Estimate, over_samples: float | None) -> dict[str, Any]:
    own = estimate.stderr_data if estimate.stderr_data is not None else over_samples
    return {
        "value": _rounded(estimate.value),
        "stderr": _rounded(estimate.stderr),
        "stderr_data": None if own is None else _rounded(own),
        "how": estimate.how,
        "status": estimate.status,
        "reason": estimate.reason,
    }


def _rounded(value: float) -> float | None:
    return float(f"{value:.{DIGITS - 1}e}") if math.isfinite(value) else None
