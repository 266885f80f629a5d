"""What was found in many networks, as a record."""

from __future__ import annotations

import json
import platform
import warnings
from collections import Counter
from typing import Any

import torch

from tests.attack.corpus import make_case
from tests.attack.verdict import judge


def judged(seed: int) -> dict[str, Any]:
    """Measure one network; what comes back can be pickled."""
    case = make_case(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = judge(case)
    failures = [json.loads(json.dumps(failure.record(), default=str)) for failure in found.failures]
    lines = [f"{seed} {f.what} {f.quantity} {f.got} {f.truth} {f.label} {f.error}" for f in found.failures]
    return {
        "hazard": str(case.traits["hazard"]),
        "compared": dict(found.compared),
        "failures": failures,
        "lines": lines,
    }


def record_of(seeds: list[int], found: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the findings of all networks together."""
    compared: Counter[str] = Counter()
    for one in found:
        compared.update(one["compared"])
    failures = [failure for one in found for failure in one["failures"]]
    return {
        "networks": len(seeds),
        "first_seed": seeds[0],
        "failed": sum(bool(one["failures"]) for one in found),
        "compared": dict(compared),
        "hazards": dict(sorted(Counter(one["hazard"] for one in found).items())),
        "failures": failures,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
