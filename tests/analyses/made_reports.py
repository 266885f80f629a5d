"""Reports made by hand, for comparisons."""

from __future__ import annotations

import numpy as np
import torch

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


def made_runs(runs: int = 5, epochs: int = 12, *, samples: int = 0, **header: object) -> dict[str, Report]:
    """Return networks of several runs, by folder and epoch; every later one is flatter, and so is every later run.

    Of two measures one is exact and one has an error as large as the step from one epoch to the next.
    """
    found = {}
    rng = np.random.default_rng(0)
    for run in range(runs):
        for epoch in range(1, epochs + 1):
            value = 1 / (1 + run) / epoch
            noisy = Estimate(value, stderr=value / epochs, how="estimated")
            name = f"kind-{run // 3}/seed-{run % 3}/epoch-{epoch}.pt"
            head = {"loss": 2 * value, "accuracy": 1 - value / 2, "gradient_norm": 0.1, "gradient_noise": 0.2, **header}
            found[name] = made(name, {"hessian_trace": noisy, "rho_sum": Estimate(value)}, **head)
            if samples:
                found[name].per_sample["output_margin"] = torch.from_numpy(rng.normal(1 / value, 1, samples))
    return found
