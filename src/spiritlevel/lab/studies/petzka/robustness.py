"""Appendix D of Petzka et al. 2019: flatness bounds how features may be moved before the loss answers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from spiritlevel.analyses.measuring import measure
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, points_of, train_one, with_common
from spiritlevel.lab.studies.quantities import Quantity, all_of, over_seeds
from spiritlevel.lab.studies.study import Outcome, Place, Row, Settings, Study, Table

DELTAS = (1e-3, 1e-2, 3e-2)


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"net": "mlp_petzka", "data": "mnist", "images": 2000, "epochs": 60, "points": 500}
    if size == "smoke":
        common = {"net": "digits_mlp", "data": "digits", "images": 300, "epochs": 20, "points": 100}
    draws = 50 if size == "smoke" else 400
    seeds = {"smoke": 2, "small": 5, "medium": 10, "paper": 5}[size]
    return with_common(
        crossed(seed=range(seeds)), optimizer="sgd", lr=0.05, momentum=0.9, batch_size=64, draws=draws, **common
    )


def haar(size: int, generator: torch.Generator) -> Tensor:
    """Return an orthogonal matrix drawn uniformly."""
    q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    drawn: Tensor = q * torch.sign(torch.diagonal(r))
    return drawn


def _measure(settings: Settings, trained: Any, place: Place) -> Outcome:
    """Move the last layer's features by δAφ: at random, and along the worst A that a search finds."""
    model, data = trained
    model = model.cpu().double()
    points = points_of(data, settings["points"], settings["seed"])
    x, y = points.x.double(), points.y
    body, head = model[:-1], model[-1]
    with torch.no_grad():
        features = body(x)
    weight, bias = head.weight.detach(), head.bias.detach()

    def loss(moved: Tensor) -> Tensor:
        return functional.cross_entropy(moved @ weight.T + bias, y)

    start = float(loss(features))
    report = measure(Problem(model, (x, y)), measures=["relative_flatness", "kappa_last"])
    flatness, kappa = float(report["relative_flatness"]), float(report["kappa_last"])
    # The first-order term vanishes at a minimum only: δ‖WᵀG‖_* with G the gradient over the head's weight.
    leaf = features.clone().requires_grad_()
    (at_features,) = torch.autograd.grad(loss(leaf), leaf)
    slope = at_features.T @ features  # d loss / d A at A = 0
    first = float(torch.linalg.matrix_norm(slope, "nuc"))
    size = features.shape[1]
    generator = torch.Generator().manual_seed(settings["seed"])
    rows: list[Row] = []
    for delta in DELTAS:
        total = 0.0
        for _ in range(settings["draws"]):
            turn = haar(size, generator)
            # A and −A together: the first-order term cancels in every pair.
            both = [float(loss(features + sign * delta * features @ turn.T)) for sign in (1, -1)]
            total += sum(both) / 2 - start
        mean = total / settings["draws"]
        worst = _worst(features, weight, bias, y, delta, slope) - start
        rows.append(
            {
                "delta": delta,
                "mean_over_formula": mean / (delta**2 / (2 * size) * flatness),
                "worst_over_bound": worst / (delta**2 / 2 * kappa),
                "worst_over_full_bound": worst / (delta * first + delta**2 / 2 * kappa),
                "first_order_share": delta * first / (delta * first + delta**2 / 2 * kappa),
            }
        )
    return Outcome(rows)


def _worst(features: Tensor, weight: Tensor, bias: Tensor, y: Tensor, delta: float, slope: Tensor) -> float:
    """Search for the A of spectral norm at most 1 with the largest loss, by ascent with projection."""

    def loss(a: Tensor) -> Tensor:
        return functional.cross_entropy((features + delta * features @ a.T) @ weight.T + bias, y)

    u, _, vh = torch.linalg.svd(slope)
    a = u @ vh
    best = float(loss(a))
    for _ in range(30):
        leaf = a.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf)
        u, _, vh = torch.linalg.svd(gradient)
        a = u @ vh  # the vertex of the unit ball that the gradient points to
        best = max(best, float(loss(a)))
    return best


def _analyse(table: Table) -> dict[str, Quantity]:
    found: dict[str, Quantity] = {}
    for delta, word in ((1e-3, "small"), (1e-2, "middle"), (3e-2, "large")):
        part = table.where(delta=delta)
        found[f"mean_over_formula_{word}"] = over_seeds(part.column("mean_over_formula"))
        found[f"worst_over_bound_{word}"] = all_of(part.column("worst_over_bound"))
        found[f"worst_over_full_bound_{word}"] = all_of(part.column("worst_over_full_bound"))
        found[f"first_order_share_{word}"] = all_of(part.column("first_order_share"))
    return found


def _draw(table: Table) -> Any:
    figure, (axis,) = drawing.panels()
    groups = {}
    for name in ("mean_over_formula", "worst_over_bound", "worst_over_full_bound"):
        means = [math.fsum(table.where(delta=d).column(name)) / len(table.where(delta=d)) for d in DELTAS]
        groups[name.replace("_", " ")] = (list(DELTAS), means)
    drawing.lines(axis, groups)
    axis.set_xscale("log")
    axis.set_yscale("log")
    drawing.label(axis, "δ", "measured / formula")
    return figure


STUDY = Study(
    name="petzka-robustness",
    title="Feature robustness and flatness",
    paper="Petzka et al. 2019",
    grid=_grid,
    train=train_one,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim("bounded-at-minimum", "The worst rise of the loss under features moved by δAφ, ‖A‖ ≤ 1, is at most "
                                    "δ²κ/2 + O(δ³)",
              "appendices C.1, D.1", "≤ δ²/2 ‖w‖² λ_max", (Within("worst_over_bound_small", -1.0, 1.0, 2),),
              shown=("worst_over_bound_small", "first_order_share_small"),
              otherwise="The worst rise found is {worst_over_bound_small} times that bound at δ = 1e-3: training stops "
              "near a minimum and not at one, and the first-order term, which the bound leaves out, makes up "
              "{first_order_share_small} of the bound with it; with it the ratio is {worst_over_full_bound_small}."),
        Claim("bounded-with-gradient", "With the first-order term added the bound holds off a minimum too",
              "appendix D.1, completed", "≤", (Within("worst_over_full_bound_small", -1.0, 1.0, 2),)),
        Claim("mean-is-relative-flatness", "Averaged over orthogonal A the rise is δ²/2m times relative flatness",
              "appendix D.1 (noise form), Petzka et al. 2021", "δ²/(2m) · κ",
              (Within("mean_over_formula_small", 0.9, 1.1, 2),),
              shown=("mean_over_formula_small", "mean_over_formula_middle", "mean_over_formula_large")),
    ),
    departures=lambda size: [
        "the paper states a bound and gives no experiment: the last layer of an MLP of 784-50-50-50-30-10 (digits: "
        "64-32-32-10), in float64; the worst A is what a search finds, a lower bound",
    ],
    figures={"robustness": _draw},
)  # fmt: skip
