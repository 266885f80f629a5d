"""Results that say what they cost as a whole, and not what their plain measurements alone did."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from spiritlevel.inputs.process.ranks import ranks
from spiritlevel.inputs.spending import Spending
from spiritlevel.results.audits import Audit
from spiritlevel.results.compared import Comparison
from spiritlevel.results.cost import ResultCost

Arguments = ParamSpec("Arguments")
CostedResult = TypeVar("CostedResult", Audit, Comparison)


def costed(question: Callable[Arguments, CostedResult]) -> Callable[Arguments, CostedResult]:
    """Return the function with its wall time and its passes in the result; without a pass nothing was measured."""

    @functools.wraps(question)
    def asked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> CostedResult:
        start = time.perf_counter()
        with Spending() as spending:
            found = question(*args, **kwargs)
        # Other ranks may have looked at a few samples which the first one, having the first batch, had seen.
        passes = ranks().meet("the cost", spending.passes(_samples(found)))[0]
        return replace(found, cost=ResultCost(time.perf_counter() - start, passes)) if passes else found

    return asked


def _samples(found: Audit | Comparison) -> int | None:
    report = found.base if isinstance(found, Audit) else next(iter(found.reports.values()))
    return report.header.samples
