"""Results for the tests of the page: a small network whose layers have the worst names, and reports made by hand."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from benchmarks.page import columns_of
from spiritlevel.engine.problem import Problem
from spiritlevel.lab import datasets
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results import Report
from spiritlevel.results.audits import Audit
from spiritlevel.results.header import Header
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.results.verdicts import Sweep, Trial, Verdict
from spiritlevel.values.estimate import Estimate

SYMMETRIES = ("layer_rescaling", "neuron_rescaling", "permutation", "output_scaling")  # permuting changes nothing
HOSTILE = ("<b>x</b>", "<img src=x onerror=alert(1)>", "</script>")
VALUES = {
    "hessian_trace": 10.0,
    "hessian_top_eigenvalue": 2.0,
    "normalized_sharpness": 30.0,
    "kappa_tau_sum": 100.0,
    "rho_sum": 5.0,
    "output_margin": 4.0,
}
HEADER = {
    "model": "mlp", "weights": "runs/a.pt", "data": "digits", "split": "train", "samples": 400, "samples_total": 400,
    "loss_name": "cross_entropy", "loss": 0.01, "accuracy": 0.99, "gradient_norm": 0.001, "gradient_noise": 0.01,
    "at_minimum": True, "seed": 0, "fingerprint": "ab12", "mode": "eval", "dtype": "float32", "device": "cpu",
    "parameters": 1234, "notes": [], "trained": True, "passes": {"forward": 2, "column": 9}, "wall_time": 1.5,
}  # fmt: skip


def made_report(scale: float = 1.0, *, error: float = 0.0, layers: bool = True, **header: Any) -> Report:
    """Return a report with the default six, every value multiplied by a scale (margins divided by it)."""
    values = {name: value * (1 / scale if name == "output_margin" else scale) for name, value in VALUES.items()}
    estimates = {
        name: Estimate(value, stderr=error, how="estimated" if error else "exact", verified=not error, samples=400)
        for name, value in values.items()
    }
    per_layer = {
        "hessian_trace": {"fc1": Estimate(7.0 * scale), "fc2": Estimate(3.0 * scale)},
        "normalized_sharpness": {"fc1": Estimate(10.0 * scale), "fc2": Estimate(20.0 * scale)},
    }
    return Report(
        estimates=estimates,
        per_layer=per_layer if layers else {},
        header=Header.of({**HEADER, **header}),
        settings={name: dict(MEASURES[name].settings) for name in values},
        titles={name: MEASURES[name].title for name in values},
    )


def sampled_report(count: int, seed: int = 0) -> Report:
    """Return a report with five quantities of so many samples, some of them misclassified."""
    report = made_report(samples=count, samples_total=count)
    return replace(report, per_sample=columns_of(count, seed), sample_indices=torch.arange(count))


def hostile_problem(seed: int = 0, samples: int = 200) -> Problem:
    """Return a trained-looking small network whose layers are named like markup."""
    torch.manual_seed(seed)
    names = iter(HOSTILE)
    model = nn.Sequential(
        OrderedDict(
            [
                (next(names), nn.Linear(64, 12)),
                ("relu", nn.ReLU()),
                (next(names), nn.Linear(12, 10)),
                ("again", nn.ReLU()),
                (next(names), nn.Linear(10, 10)),
            ]
        )
    )
    data = datasets.load("digits", "train")
    x, y = data.x[:samples].flatten(1), data.y[:samples]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return Problem(model, (x, y))


def is_close(a: float, b: float) -> bool:
    """Whether two numbers are one, up to the last digit of a drawing."""
    return math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-300)


def made_audit(answers: dict[str, str], *, declared: bool | None = None, factor: float = 12.0) -> Audit:
    """Return an audit in which each measure keeps or changes its value under all rescalings."""
    base = made_report()
    verdicts = {}
    for name, answer_ in answers.items():
        row = {}
        for symmetry in SYMMETRIES:
            before = base[name]
            word = "invariant" if symmetry == "permutation" else answer_
            after = replace(before, value=before.value * (factor if word == "changes" else 1.0))
            trial = Trial(name, symmetry, "usual", before, after, word)  # type: ignore[arg-type]
            own = MEASURES[name].invariances[symmetry] if declared is None else declared
            row[symmetry] = Verdict(name, symmetry, word, own, (trial,))  # type: ignore[arg-type]
        verdicts[name] = row
    sweep = Sweep([0.1, 1.0, 10.0], {"hessian_trace": [Estimate(v) for v in (20.0, 10.0, 1e-3)]}, {}, [1, 0.1, 2], [])
    return Audit(verdicts=verdicts, base=base, strengths={"usual": (5.0, 25.0)}, sweep=sweep)


def made_spectrum(largest: float = 2.0, interval: tuple[float, float] = (1.9, 2.1)) -> Spectrum:
    nodes = torch.linspace(-0.1, largest, 12, dtype=torch.float64).repeat(3, 1)
    weights = torch.full_like(nodes, 1 / 12)
    return Spectrum(
        operator="hessian",
        size=100,
        eigenvalue_max=Estimate(largest, how="estimated", interval=interval, samples=50),
        eigenvalue_min=Estimate(-0.1, how="estimated", interval=(-0.11, -0.09), samples=50),
        trace=Estimate(30.0),
        frobenius_squared=Estimate(40.0, stderr=1.0, how="estimated"),
        nodes=nodes,
        weights=weights,
        residuals=torch.full_like(nodes, 1e-6),
        top_values=torch.tensor([largest], dtype=torch.float64),
        top_residuals=torch.tensor([1e-6], dtype=torch.float64),
        rounding=1e-15,
        classes=10,
        header=Header(model="mlp", loss=0.1),
    )
