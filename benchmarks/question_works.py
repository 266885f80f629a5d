"""Works around questions: what a comparison and an audit cost beside one plain measurement of the same network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import spiritlevel as sl
from benchmarks import material
from benchmarks.exact import gradient_pass
from benchmarks.timing import Contender, Work

ONE = "one measurement of the default group"
# A question may cost so many measurements; a contender's time over ours is at least the inverse.
COMPARISON, AUDIT = 8, 6


def questions(device: torch.device, samples: int) -> tuple[Callable[[], Work], Callable[[], Work]]:
    """A comparison of two LeNet-5 and an audit of one, each beside measuring one."""

    def networks() -> tuple[Any, Any, Any]:
        data = material.images(samples)
        first, shared = material.on(device, material.lenet5(), data)
        second, _ = material.on(device, material.lenet5(1), data)
        return first, second, shared

    def comparison() -> Work:
        first, second, data = networks()
        truth = sl.measure(sl.Problem(first, data))["hessian_trace"].value

        def error(found: Any) -> float:
            report = found.reports["a"] if isinstance(found, sl.Comparison) else found
            return float(abs(report["hessian_trace"].value / truth - 1))

        return Work(
            "comparison",
            f"Comparing two LeNet-5, {samples:,} images, with the rescalings that reverse orderings",
            gradient_pass(first, data),
            [
                Contender(
                    "Spiritlevel",
                    lambda: sl.compare({"a": sl.Problem(first, data), "b": sl.Problem(second, data)}),
                    error,
                    "both networks, groups of samples, rescaled copies, the search",
                ),
                Contender(ONE, lambda: sl.measure(sl.Problem(first, data)), error, "of the first network alone"),
            ],
            {ONE: 1 / COMPARISON},
            error_meaning="of the first network's trace, relative to its own measurement",
        )

    def audit() -> Work:
        first, _, data = networks()
        truth = sl.measure(sl.Problem(first, data))["hessian_trace"].value

        def error(found: Any) -> float:
            report = found.base if isinstance(found, sl.Audit) else found
            return float(abs(report["hessian_trace"].value / truth - 1))

        return Work(
            "audit",
            f"Auditing LeNet-5, {samples:,} images",
            gradient_pass(first, data),
            [
                Contender("Spiritlevel", lambda: sl.audit(sl.Problem(first, data)), error, "three ranges, T_α"),
                Contender(ONE, lambda: sl.measure(sl.Problem(first, data)), error, "the same network"),
            ],
            {ONE: 1 / AUDIT},
            error_meaning="of the trace, relative to its own measurement",
        )

    return comparison, audit
