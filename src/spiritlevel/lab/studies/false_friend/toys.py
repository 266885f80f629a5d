"""Formulas of Granziol 2021 on toys: a counterexample to theorem 1, the deep linear network, Keskar's sharpness."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from spiritlevel.analyses.measuring import measure
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.lab.datasets import LabelledData
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, trained_alone, training_data, with_common
from spiritlevel.lab.studies.quantities import Quantity, all_of, exact
from spiritlevel.lab.studies.spectra_of import top_eigenvalue
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table, trained_by_nothing

PAPER = "Granziol 2021"


# --- theorem 1 as stated -------------------------------------------------------------------------------------------


def _counterexample(settings: Settings, trained: Any, place: Place) -> Outcome:
    """Two paths that cancel: z = (K+m+2) relu(w₁x) − K relu(w₂x), K = eᵐ, loss log(1 + e⁻ᶻ), all weights at least 1."""
    rows = []
    for m in settings["m"]:
        size = math.exp(m)
        weights = torch.tensor([size + m + 2, size, 1.0, 1.0], dtype=torch.float64)

        def loss(w: Tensor) -> Tensor:
            z = w[0] * torch.relu(w[2]) - w[1] * torch.relu(w[3])
            return torch.nn.functional.softplus(-z)

        hessian = torch.autograd.functional.hessian(loss, weights)
        along = torch.linalg.eigvalsh(hessian)
        # Along the ray from the origin, the case the theorem's proof has in mind, curvature does vanish.
        scaled = torch.tensor([m / 2 + 1, 0.5, 1.0, 1.0], dtype=torch.float64)
        on_ray = torch.linalg.eigvalsh(torch.autograd.functional.hessian(loss, scaled * 2))
        rows.append(
            {
                "m": m,
                "loss": float(loss(weights)),
                "top_eigenvalue": float(along[-1]),
                "smallest_weight": float(weights.abs().min()),
                "plain_loss": float(loss(scaled * 2)),
                "plain_top_eigenvalue": float(on_ray[-1]),
            }
        )
    return Outcome(rows)


def _counter_analysis(table: Table) -> dict[str, Quantity]:
    last = table.rows[-1]
    values = table.column("top_eigenvalue")
    return {
        "loss": exact(last["loss"]),
        "top_eigenvalue": exact(last["top_eigenvalue"]),
        "smallest_weight": exact(last["smallest_weight"]),
        "growth": exact(float(values[-1] / values[0])),
        "plain_top_eigenvalue": exact(last["plain_top_eigenvalue"]),
    }


def _draw_counterexample(table: Table) -> Any:
    figure, (axis,) = drawing.panels()
    groups = {
        "cancelling paths": (table.column("loss"), table.column("top_eigenvalue")),
        "one path": (table.column("plain_loss"), table.column("plain_top_eigenvalue")),
    }
    drawing.lines(axis, groups)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.invert_xaxis()
    drawing.label(axis, "loss", "λ₁")
    return figure


COUNTEREXAMPLE = Study(
    name="false-friend-counterexample",
    title="Theorem 1 as stated: a counterexample",
    paper=PAPER,
    grid=lambda size: [{"m": [4.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0]}],
    train=trained_by_nothing,
    measure=_counterexample,
    analyse=_counter_analysis,
    claims=(
        Claim("theorem-as-stated", "A loss that goes to zero takes the largest eigenvalue with it, whatever the "
                                   "weights",
              "theorem 1", "0 as L → 0", (Within("top_eigenvalue", -1.0, 1.0, 1),),
              shown=("top_eigenvalue", "loss", "smallest_weight"),
              otherwise="With two cancelling paths the loss is {loss} and λ₁ is {top_eigenvalue}, all weights at least "
              "{smallest_weight} in size: each path's weights are of order eᵐ, and the derivative of the output grows "
              "faster than the softmax's curvature falls. With one path λ₁ is {plain_top_eigenvalue} at a comparable "
              "loss: the theorem holds along rays, where all of a trained network's correct outputs grow together."),
    ),
    departures=lambda size: ["none: a formula; the theorem's wording is taken literally"],
    figures={"counterexample": _draw_counterexample},
)  # fmt: skip


# --- the deep linear network ----------------------------------------------------------------------------------------


def _deep_linear(settings: Settings, trained: Any, place: Place) -> Outcome:
    """L = exp(w₁w₂w₃X): its exact Hessian against the printed (3) and (4)."""
    generator = torch.Generator().manual_seed(settings["seed"])
    w = torch.rand(3, generator=generator, dtype=torch.float64) + 0.5
    x = -settings["exponent"] / float(w.prod())

    def loss(w: Tensor) -> Tensor:
        return torch.exp(w.prod() * x)

    hessian = torch.autograd.functional.hessian(loss, w)
    values = torch.linalg.eigvalsh(hessian)
    a, b, c = w.tolist()
    squares = x**2 * ((b * c) ** 2 + (a * c) ** 2 + (a * b) ** 2) * float(loss(w))
    row = {
        "loss": float(loss(w)),
        "trace_error": abs(float(hessian.trace()) - squares) / abs(squares),
        "eigenvalue_over_trace": float(values[-1] / hessian.trace()),
        "printed_trace_error": abs(float(hessian.trace()) - squares / x**2) / abs(float(hessian.trace())),
        "top_eigenvalue": float(values[-1]),
    }
    return Outcome([row])


def _linear_analysis(table: Table) -> dict[str, Quantity]:
    near, far = table.where(exponent=1.0), table.where(exponent=60.0)
    return {
        "trace_error": all_of(table.column("trace_error")),
        "printed_trace_error": all_of(table.column("printed_trace_error")),
        "eigenvalue_over_trace": all_of(near.column("eigenvalue_over_trace")),
        "largest_deviation": exact(float(np.abs(near.column("eigenvalue_over_trace") - 1).max()), len(near), "points"),
        "eigenvalue_over_trace_small_loss": all_of(far.column("eigenvalue_over_trace")),
        "top_eigenvalue_small_loss": all_of(far.column("top_eigenvalue")),
    }


DEEP_LINEAR = Study(
    name="false-friend-deep-linear",
    title="The deep linear toy and its Hessian",
    paper=PAPER,
    grid=lambda size: crossed(exponent=[1.0, 60.0], seed=range(5)),
    train=trained_by_nothing,
    measure=_deep_linear,
    analyse=_linear_analysis,
    claims=(
        Claim("trace-formula", "The trace is the sum of squared path products times the loss, as printed without X²",
              "(3), (4)", "as printed", (Within("printed_trace_error", 0.0, 1e-9, 2),),
              otherwise="The printed sum lacks the factor X² (relative error {printed_trace_error}); with it the "
                        "trace is "
              "exact to {trace_error}."),
        Claim("trace-is-eigenvalue", "The trace equals the largest eigenvalue", "(4)", "Tr(H) = λ₁",
              (Within("largest_deviation", 0.0, 1e-3, 2),), shown=("eigenvalue_over_trace",),
              otherwise="λ₁/Tr is {eigenvalue_over_trace}: the off-diagonal entries also carry the terms w_k X "
                        "e^(·), so "
              "only the rank-one part has its trace as its eigenvalue; far out, where the loss is small, the ratio is "
              "{eigenvalue_over_trace_small_loss}."),
        Claim("vanishes", "All of it vanishes as the loss goes to zero", "section 3", "0 as L → 0",
              (Within("top_eigenvalue_small_loss", -1e-3, 1e-3, 2),)),
    ),
    departures=lambda size: [
        "none: a formula at random points, the loss going to zero through w₁w₂w₃X → −∞",
        "the rule on λ₁ = Tr asked for a range before it was computed and asks for the largest deviation now",
        "after a first look the grid sets the exponent w₁w₂w₃X (1 and 60) in place of the scale of X (1 and 30)",
    ],
)  # fmt: skip


# --- Keskar's sharpness ----------------------------------------------------------------------------------------------


def _keskar_grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"data": "mnist", "net": "mlp_9960", "images": 1000, "epochs": 60}
    if size == "smoke":
        common = {"data": "digits", "net": "digits_mlp", "args": {"widths": [8]}, "images": 150, "epochs": 20}
    seeds = {"smoke": 2, "small": 3, "medium": 5, "paper": 1}[size]
    return with_common(crossed(seed=range(seeds)), optimizer="sgd", lr=0.1, momentum=0.9, batch_size=50, **common)


def _keskar_train(group: Sequence[Settings], place: Place) -> list[tuple[nn.Module, LabelledData]]:
    (settings,) = group
    data = training_data(settings, place)
    model, _ = trained_alone(settings, data, place)
    return [(model, data)]


def _keskar(settings: Settings, trained: Any, place: Place) -> Outcome:
    model, data = trained
    model = model.cpu().double()
    problem = open_problem(Problem(model, (data.x.double(), data.y)))
    top = top_eigenvalue(problem)
    rows = []
    for eps in (1e-5, 1e-4, 1e-3, 1e-2):
        found = measure(problem, measures=["keskar_sharpness"], settings={"keskar_sharpness.eps": eps})
        own = found["keskar_sharpness"]
        second = 100 * top * own.details["box_norm_squared"] / 2 / (1 + problem.survey.loss)
        ball = 100 * top * eps**2 / 2 / (1 + problem.survey.loss)
        rows.append(
            {
                "eps": eps,
                "sharpness": float(own),
                "over_bound": float(own) / (own.details["first_order"] + second),
                "over_ball": float(own) / ball,
            }
        )
    return Outcome(rows)


def _keskar_analysis(table: Table) -> dict[str, Quantity]:
    found = {}
    for eps, word in ((1e-5, "1e5"), (1e-4, "1e4"), (1e-3, "1e3"), (1e-2, "1e2")):
        part = table.where(eps=eps)
        found[f"over_bound_{word}"] = all_of(part.column("over_bound"))
        found[f"over_ball_{word}"] = all_of(part.column("over_ball"))
    return found


def _draw_keskar(table: Table) -> Any:
    figure, (axis,) = drawing.panels()
    groups = {}
    for name, title in (("over_bound", "over the box's bound"), ("over_ball", "over λ₁ε²/2(1+L)")):
        eps = table.values("eps")
        groups[title] = (eps, [float(np.mean(table.where(eps=e).column(name))) for e in eps])
    drawing.lines(axis, groups)
    axis.set_xscale("log")
    axis.set_yscale("log")
    drawing.label(axis, "ε", "Keskar sharpness, found")
    return figure


KESKAR = Study(
    name="false-friend-keskar",
    title="Keskar's sharpness against the largest eigenvalue",
    paper=PAPER,
    grid=_keskar_grid,
    train=_keskar_train,
    measure=_keskar,
    analyse=_keskar_analysis,
    claims=(
        Claim("bounded", "Keskar's sharpness is bounded by a multiple of λ₁ (small boxes, with the first-order "
                         "term)", "(2)",
              "≤ κ(ε) λ₁", (Within("over_bound_1e4", -1.0, 1.0, 2),),
              shown=("over_bound_1e5", "over_bound_1e4", "over_bound_1e3")),
        Claim("about-ball", "It is about λ₁ε²/2(1+L)", "(2), after Dinh et al. 2017", "≈",
              (Within("over_ball_1e4", 0.5, 2.0, 2),),
              otherwise="The value found is {over_ball_1e4} times λ₁ε²/2(1+L) at ε = 1e-4: that formula is for a "
                        "ball of "
              "radius ε, while the box |z_i| ≤ ε(|w_i|+1) has a diagonal longer by about √P; against the box's own "
              "bound, "
              "gradient included, it is {over_bound_1e4}."),
    ),
    departures=lambda size: [
        "a small MLP on 1,000 images (smoke: digits) in float64; every value is a lower bound, found from random "
        "starts",
    ],
    figures={"sharpness": _draw_keskar},
)  # fmt: skip

STUDIES = (COUNTEREXAMPLE, DEEP_LINEAR, KESKAR)
