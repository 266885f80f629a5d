"""Section 6 of Lengyel et al. 2021, after Sagun et al. 2017: as many outlying eigenvalues as classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from spiritlevel.engine.estimators.eigenvalues import top_eigenpairs
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, sample_indices, trained_alone, training_data, with_common
from spiritlevel.lab.studies.quantities import Quantity, all_of, over_seeds
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table

COUNT = 24


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"data": "mnist", "net": "mlp_petzka", "images": 12000, "points": 2000, "steps": 2000}
    if size == "smoke":
        common = {"data": "digits", "net": "digits_mlp", "points": 300, "steps": 300}
    elif size in ("medium", "paper"):
        common = {"data": "mnist", "net": "lenet5", "points": 4000, "steps": 10000}
    seeds = {"smoke": 2, "small": 5, "medium": 5, "paper": 1}[size]
    return with_common(
        crossed(seed=range(seeds)), optimizer="sgd", lr=0.1, momentum=0.9, batch_size=128, schedule="linear", **common
    )


def _train(group: Sequence[Settings], place: Place) -> list[nn.Module]:
    (settings,) = group
    model, _ = trained_alone(settings, training_data(settings, place), place)
    return [model]


def _measure(settings: Settings, model: nn.Module, place: Place) -> Outcome:
    data = training_data(settings, place)
    data = data.subset(sample_indices(len(data), settings["points"], settings["seed"]))
    problem = open_problem(Problem(model, data.tensors))
    found = top_eigenpairs(
        HessianOperator(problem).matvec,
        problem.size,
        COUNT,
        dtype=problem.dtype,
        device=problem.device,
        tolerance=1e-2,
        max_basis=4 * COUNT,
        max_sweeps=60,
        seed=settings["seed"],
    )
    values = found.values.clamp_min(1e-30)
    gaps = torch.log(values[:-1] / values[1:])
    # The first gap separates the uniform direction of a network that is not yet certain; outliers end at a later one.
    place_of_gap = int(gaps[1:].argmax()) + 2
    row = {
        "outliers": place_of_gap,
        "classes": data.classes,
        "gap": float(gaps[place_of_gap - 1].exp()),
        "above_tenth_of_ninth": int((values > 0.1 * values[data.classes - 2]).sum()),
        "loss": problem.survey.loss,
        "accuracy": problem.survey.accuracy,
    }
    return Outcome([row], {"eigenvalues": values.tolist()})


def _analyse(table: Table) -> dict[str, Quantity]:
    return {
        "outliers": over_seeds(table.column("outliers")),
        "every_run": all_of(table.column("outliers")),
        "gap": over_seeds(table.column("gap")),
        "accuracy": over_seeds(table.column("accuracy")),
    }


def _draw(table: Table) -> Any:
    figure, (axis,) = drawing.panels()
    groups = {f"seed {run.settings['seed']}": (np.arange(1, len(run.columns["eigenvalues"]) + 1),
              run.columns["eigenvalues"]) for run in table.runs}  # fmt: skip
    drawing.lines(axis, groups)
    axis.set_yscale("log")
    axis.axvline(10, color="#bbb", linewidth=0.8)
    drawing.label(axis, "rank", "eigenvalue of the Hessian")
    return figure


STUDY = Study(
    name="margins-outliers",
    title="Outlying eigenvalues and classes",
    paper="Lengyel et al. 2021",
    grid=_grid,
    train=_train,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim(
            "as-many-as-classes",
            "At the end of training the Hessian has about as many outlying eigenvalues as there are classes",
            "section 6, after Sagun et al. 2017",
            "10 (the number of classes)",
            (Within("outliers", 8.0, 12.0),),
            shown=("outliers", "gap"),
            otherwise="The widest gap among the largest 24 eigenvalues (the first excepted) comes after {outliers} of "
            "them and is a factor of {gap}: there is no clear edge at the number of classes in these networks.",
        ),
    ),
    departures=lambda size: [
        "the paper quotes the observation and gives no experiment: ours is the network and size stated, the edge is "
        "the "
        "widest gap between consecutive logarithms of the 24 largest eigenvalues, the first gap excepted",
    ],
    figures={"eigenvalues": _draw},
)
