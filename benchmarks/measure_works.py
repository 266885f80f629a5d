"""Works around measures: normalised sharpness against gradient descent, and the papers' measures all together."""

from __future__ import annotations

import cProfile
import functools
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import spiritlevel as sl
from benchmarks import material
from benchmarks.exact import diagonals, gradient_pass
from benchmarks.timing import Contender, Work, relative
from spiritlevel.engine.estimators.balancing import balance
from spiritlevel.measures.declaration import QUANTITIES
from spiritlevel.measures.registry import GROUPS, MEASURES

OPTIMALITY = 1e-6
Pairs = list[tuple[Tensor, Tensor]]  # (diagonal of the Hessian, squared weights) of each matrix


def descend(pairs: Pairs, values: list[float], rate: float, momentum: float, limit: int) -> tuple[float, int]:
    """Minimise by gradient descent on the logarithms of the scales (Tsuzuku et al. 2019, algorithm 1).

    Every matrix stops at ``OPTIMALITY`` above its minimum, which is told here and which a user would not know.
    Return the sum and the steps taken.
    """
    total, steps = 0.0, 0
    for (h, w2), minimum in zip(pairs, values):
        x = torch.zeros(h.shape[0], 1, dtype=h.dtype)
        y = torch.zeros(1, h.shape[1], dtype=h.dtype)
        # A common factor first, without which no step size suits all matrices.
        x += 0.25 * torch.log(w2.sum() / h.sum())
        speed_x, speed_y = torch.zeros_like(x), torch.zeros_like(y)
        value = float("inf")
        for _ in range(limit):
            scale = (2 * (x + y)).exp()
            up, down = h * scale, w2 / scale
            value = float(up.sum() + down.sum())
            if value <= minimum * (1 + OPTIMALITY):
                break
            # The derivative in log σ, over the value so that one rate serves every matrix.
            slope = 2 * (up - down) / value
            speed_x = momentum * speed_x - rate * slope.sum(1, keepdim=True)
            speed_y = momentum * speed_y - rate * slope.sum(0, keepdim=True)
            x, y, steps = x + speed_x, y + speed_y, steps + 1
        total += value
    return total, steps


def normalised_sharpness(device: torch.device, samples: int, limit: int) -> Work:
    """The minimisation inside normalised sharpness, from one and the same diagonal of the Hessian."""
    model, data = material.on(device, material.mlp(), material.images(samples))
    found = sl.curvature(sl.Problem(model, data)).diagonal
    weights = {name: t.detach().double().cpu() for name, t in model.named_parameters() if t.ndim == 2}
    pairs: Pairs = [(found[name].double(), weight.square()) for name, weight in weights.items()]
    # Dead neurons and unused inputs take no part in the minimum, and gradient descent would never finish with them.
    alive = [(h[h.sum(1) > 0][:, h.sum(0) > 0], w2[h.sum(1) > 0][:, h.sum(0) > 0]) for h, w2 in pairs]
    values = [balance(h, w2, tolerance=1e-13).value for h, w2 in alive]
    exact = sum(values)

    def ours() -> float:
        return sum(balance(h, w2).value for h, w2 in pairs)

    # The best rate and momentum for a short run are taken for the long one.
    trials = {
        (rate, momentum): descend(alive, values, rate, momentum, 60)[0]
        for rate in (1.0, 3.0, 10.0, 30.0, 100.0)
        for momentum in (0.0, 0.9)
    }
    rate, momentum = min(trials, key=lambda pair: trials[pair] if trials[pair] == trials[pair] else float("inf"))

    def by_descent() -> tuple[float, int]:
        return descend(alive, values, rate, momentum, limit)

    def error(found: float) -> float:
        return abs(found / exact - 1)

    return Work(
        "normalised_sharpness",
        f"Normalised sharpness of a 784-512-512-10 network from its Hessian's diagonal, to {OPTIMALITY:g}",
        gradient_pass(model, data),
        [
            Contender("Spiritlevel", ours, error, "alternating closed forms, with a certificate"),
            Contender(
                "gradient descent (Tsuzuku et al. 2019)",
                by_descent,
                lambda answer: error(answer[0]),
                f"rate {rate:g}, momentum {momentum:g}, the best of ten; told the minimum; at most {limit:,} steps",
            ),
        ],
        {"gradient descent (Tsuzuku et al. 2019)": 100.0},
        error_meaning="distance above the minimum, relative",
    )


# What needs products with the Hessian, or losses and gradients at other parameters.
_BEYOND_ONE_PASS = {"eigen", "layer_eigen", "perturbed"}
_SEARCHES = {"keskar_sharpness", "feature_robustness", "noise_curvature", "hessian_frobenius"}


def from_one_pass() -> list[str]:
    """Names of the papers' measures that come from forward passes and the curvature pass alone."""
    return [
        name for name in GROUPS["papers"] if name not in _SEARCHES and not _BEYOND_ONE_PASS & set(MEASURES[name].needs)
    ]


def by_quantity(run: Callable[[], Any], lines: int = 8) -> list[tuple[str, float]]:
    """Return the measures, and the quantities they share, that take the most time of a run, each with its share."""
    with cProfile.Profile() as record:
        run()
    spent = {key: entry[3] for key, entry in pstats.Stats(record).stats.items()}  # type: ignore[attr-defined]
    whole = max(spent.values())
    own = {
        name: seconds / whole
        for (file, _, name), seconds in spent.items()
        if (name in MEASURES and "measures" in Path(file).parts)
        or (name in QUANTITIES and file.endswith("workbench.py"))
    }
    return sorted(own.items(), key=lambda pair: -pair[1])[:lines]


def papers(device: torch.device, samples: int, *, one_pass: bool) -> Work:
    """All measures of the papers, sharing their passes."""
    model, data = material.on(device, material.lenet5(), material.images(samples))
    names = from_one_pass() if one_pass else list(GROUPS["papers"])
    checked = min(samples, 256)
    exact = diagonals(model, (data[0][:checked], data[1][:checked]))[1]

    def ours() -> Any:
        settings = {
            f"{name}.tolerance": value
            for name, value in {
                "hessian_top_eigenvalue": 1e-2,
                "hessian_spectral_norm": 1e-2,
                "hessian_log_volume": 1e-2,
                "hessian_frobenius": 0.05,
            }.items()
            if name in names
        }
        return sl.measure(sl.Problem(model, data), names, settings=settings)

    def error(report: Any) -> float:
        return relative(report.per_sample["hessian_trace"][:checked], exact)

    limit = 12 if one_pass else 150
    what = "measures from forward and curvature passes alone" if one_pass else "measures of the papers"
    return Work(
        "papers_one_pass" if one_pass else "papers",
        f"The {len(names)} {what}, LeNet-5, {samples:,} images",
        gradient_pass(model, data),
        [Contender("Spiritlevel", ours, error, "all in one call, sharing passes and products")],
        error_meaning=f"relative error in norm of the traces of {checked} samples",
        limits={"passes": limit} if device.type == "cpu" else {},  # a GPU's gradient pass is mostly launches
        shares=functools.partial(by_quantity, ours),
    )


def all_measure_works(device: torch.device, sizes: dict[str, int]) -> list[Callable[[], Work]]:
    """The three works of this file."""
    return [
        lambda: normalised_sharpness(device, 256, sizes["descent_steps"]),
        lambda: papers(device, sizes["papers"], one_pass=True),
        lambda: papers(device, sizes["papers"], one_pass=False),
    ]
