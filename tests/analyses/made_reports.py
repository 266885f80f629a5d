"""Reports made by hand, for comparisons."""

from __future__ import annotations

from spiritlevel.results import Report
from spiritlevel.results.header import Header
from spiritlevel.values.estimate import Estimate


def made(label: str, values: dict[str, Estimate], **header: object) -> Report:
    head = {
        "model": "net", "weights": label, "fingerprint": "abc", "loss_name": "cross_entropy", "mode": "eval",
        "dtype": "float64", "samples": 100, "loss": 0.1, "at_minimum": True, "trained": True, **header,
    }  # fmt: skip
    return Report(estimates=values, header=Header.of(head))


def pair(b: float = 2.0, stderr: float = 0.0, **header: object) -> dict[str, Report]:
    names = ("hessian_trace", "rho_sum", "normalized_sharpness")
    return {
        "A": made("A", {name: Estimate(1.0, stderr=stderr) for name in names}),
        "B": made("B", {name: Estimate(b, stderr=stderr) for name in names}, **header),
    }
