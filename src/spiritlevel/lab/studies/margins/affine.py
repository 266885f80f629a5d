"""Figures 1 and 2 of Lengyel et al. 2021: the affine classifier, whose Hessian trace has a closed form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from spiritlevel.analyses.measuring import per_sample
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, network, points_of, training_data, with_common
from spiritlevel.lab.studies.noisy_trace import affine_draw, stopped_traces
from spiritlevel.lab.studies.quantities import Quantity, all_of, exact, over_seeds, pearson, spearman
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table, trained_by_nothing

PAPER = "Lengyel et al. 2021"


# --- figure 1: 1 - η over the simplex ---------------------------------------------------------------------------------


def _simplex_grid(size: str) -> list[Settings]:
    return [{"steps": 30 if size == "smoke" else 300}]


def _simplex(settings: Settings, trained: Any, place: Place) -> Outcome:
    """Evaluate 1 - Σp² over the simplex of three classes."""
    steps = settings["steps"]
    points = np.array([(i, j, steps - i - j) for i in range(steps + 1) for j in range(steps + 1 - i)]) / steps
    impurity = 1.0 - np.square(points).sum(axis=1)
    vertex = points.max(axis=1) == 1.0
    top = points[impurity.argmax()]
    row = {
        "at_vertices": float(impurity[vertex].max()),
        "smallest_elsewhere": float(impurity[~vertex].min()),
        "largest": float(impurity.max()),
        "distance_of_largest_from_centre": float(np.abs(top - 1 / 3).max()),
    }
    return Outcome([row])


def _simplex_analysis(table: Table) -> dict[str, Quantity]:
    row = table.rows[0]
    names = ("at_vertices", "smallest_elsewhere", "largest", "distance_of_largest_from_centre")
    return {name: exact(row[name]) for name in names}


def _draw_simplex(table: Table) -> Any:
    figure, (axis,) = drawing.panels()
    x, y = np.meshgrid(np.linspace(0, 1, 121), np.linspace(0, 1, 121))
    z = np.where(x + y <= 1, 1 - x**2 - y**2 - (1 - x - y) ** 2, np.nan)
    figure.colorbar(axis.contourf(x, y, z, levels=14, cmap="viridis"), ax=axis)
    drawing.label(axis, "p₁", "p₂", "1 − Σp² over the simplex")
    return figure


FIG1 = Study(
    name="margins-fig1",
    title="1 − η over the simplex of three classes",
    paper=PAPER,
    grid=_simplex_grid,
    train=trained_by_nothing,
    measure=_simplex,
    analyse=_simplex_analysis,
    claims=(
        Claim(
            "zero-only-at-vertices",
            "1 − η is zero only where one class has all the probability",
            "figure 1",
            "0 at the vertices, positive elsewhere",
            (Within("at_vertices", 0.0, 1e-12, 1), Within("smallest_elsewhere", 1e-9, minimum=1)),
        ),
        Claim(
            "largest-at-centre",
            "1 − η is largest where all classes are equally likely",
            "figure 1",
            "2/3 at (1/3, 1/3, 1/3)",
            (Within("largest", 0.6666, 0.6667, 1), Within("distance_of_largest_from_centre", 0.0, 0.02, 1)),
        ),
    ),
    departures=lambda size: ["none: a formula on a grid"],
    figures={"simplex": _draw_simplex},
)


# --- figure 2: ACEHT against the trace --------------------------------------------------------------------------------


def _fig2_grid(size: str) -> list[Settings]:
    data, points, seeds = {
        "smoke": ("digits", 200, 2),
        "small": ("mnist", 1000, 5),
        "medium": ("mnist", 1000, 20),
        "paper": ("mnist", 1000, 1),
    }[size]
    return with_common(
        crossed(scale=[1.0, 10.0], seed=range(seeds)), data=data, net="softmax_regression", points=points
    )


def _fig2(settings: Settings, trained: Any, place: Place) -> Outcome:
    """Compare the closed form with exact traces and with traces as PyHessian's stopping rule leaves them."""
    data = training_data(settings, place)
    data = points_of(data, settings["points"], settings["seed"])
    model = network(settings, data, Place()).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(settings["scale"])
    problem = Problem(model, data.tensors)
    found = per_sample(problem, ["hessian_trace", "aceht", "margin_bound"])
    printed = per_sample(problem, ["margin_bound"], settings={"margin_bound.bound_norm": "l2"})["margin_bound"]
    with torch.no_grad():
        probabilities = torch.softmax(model(data.x.double()), dim=1)
    noisy, probes = stopped_traces(affine_draw(data.x.flatten(1), probabilities), len(data), seed=settings["seed"] + 1)
    trace, aceht, bound = found["hessian_trace"], found["aceht"], found["margin_bound"]
    row = {
        "r_exact": pearson(trace, aceht),
        "relative_error": float(((trace - aceht).abs() / aceht).max()),
        "r_stopped": pearson(noisy, aceht),
        "probes": float(probes.double().mean()),
        "error_grows": spearman((noisy - trace).abs(), trace),
        "share_above_bound": float((trace > bound * (1 + 1e-9)).double().mean()),
        "share_above_printed_bound": float((trace > printed).double().mean()),
    }
    columns = {"aceht": aceht.tolist(), "trace": trace.tolist(), "stopped": noisy.tolist()}
    return Outcome([row], columns if settings["seed"] == 0 else {})


def _fig2_analysis(table: Table) -> dict[str, Quantity]:
    own = table.where(scale=1.0)
    return {
        "r_exact": all_of(table.column("r_exact")),
        "relative_error": all_of(table.column("relative_error")),
        "r_stopped": over_seeds(own.column("r_stopped")),
        "r_stopped_large_weights": over_seeds(table.where(scale=10.0).column("r_stopped")),
        "error_grows": over_seeds(own.column("error_grows")),
        "share_above_bound": all_of(table.column("share_above_bound")),
        "share_above_printed_bound": all_of(table.column("share_above_printed_bound")),
        "probes": over_seeds(own.column("probes")),
    }


def _draw_fig2(table: Table) -> Any:
    figure, axes = drawing.panels(2)
    columns = table.where(scale=1.0, seed=0).runs[0].columns
    for axis, name, title in ((axes[0], "trace", "exact trace"), (axes[1], "stopped", "PyHessian's stopping rule")):
        drawing.dots(axis, {"": (columns["aceht"], columns[name])})
        r = pearson(columns["aceht"], columns[name])
        drawing.label(axis, "ACEHT", "Hessian trace of a sample", f"{title}: r = {r:.4f}")
    return figure


def _fig2_departures(size: str) -> Sequence[str]:
    common = [
        "the paper does not give its parameters or the scale of the inputs: PyTorch's initialisation (and ten times "
        "it) and pixels in [0, 1] here",
        "PyHessian's stopping rule is applied to products computed by formula, not by automatic differentiation",
    ]
    return ["built-in digits in place of MNIST, 200 points", *common] if size == "smoke" else common


FIG2 = Study(
    name="margins-fig2",
    title="ACEHT against the Hessian trace of an affine classifier",
    paper=PAPER,
    grid=_fig2_grid,
    train=trained_by_nothing,
    measure=_fig2,
    analyse=_fig2_analysis,
    claims=(
        Claim(
            "exact-identity",
            "ACEHT is the Hessian trace of an affine classifier",
            "proposition 3.1, figure 2",
            "r = 0.97, 'as would be expected' 1",
            (Within("r_exact", 1 - 1e-9, 1 + 1e-9, 2), Within("relative_error", 0.0, 1e-9, 2)),
        ),
        Claim(
            "estimator-artefact",
            "The measured r falls short of 1 because of the numerical method",
            "section 3.2, figure 2",
            "r = 0.97",
            (Within("r_stopped", 0.90, 0.985),),
        ),
        Claim(
            "errors-grow",
            "The inaccuracies become more pronounced the higher the trace is",
            "section 3.2",
            "direction only",
            (Within("error_grows", 0.0),),
        ),
        Claim(
            "bound-holds",
            "(‖x‖² + 1)(1 − γ²) bounds the trace (the paper's bound with its factor put right)",
            "section 3.2",
            "an upper bound",
            (Within("share_above_bound", 0.0, 0.0, 2),),
        ),
        Claim(
            "printed-bound-holds",
            "‖x‖(1 − γ²), as printed, bounds the trace",
            "section 3.2",
            "an upper bound",
            (Within("share_above_printed_bound", 0.0, 0.0, 2),),
            otherwise="A share of {share_above_printed_bound} of the samples has a trace above the printed bound: the "
            "factor must be ‖x‖² + 1, with which the share is {share_above_bound}.",
        ),
    ),
    departures=_fig2_departures,
    figures={"aceht-and-trace": _draw_fig2},
)
