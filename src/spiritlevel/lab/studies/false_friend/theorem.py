"""Theorem 1 of Granziol 2021 as an experiment: λ₁, trace and Frobenius norm while the loss goes to zero."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import nn

from spiritlevel.lab.datasets import LabelledData
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, trained_alone, training_data, with_common
from spiritlevel.lab.studies.quantities import Quantity, over_seeds, spearman
from spiritlevel.lab.studies.spectra_of import norm_of_weights, spectrum_row
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table
from spiritlevel.lab.training import evaluate

NAMES = ("top_eigenvalue", "trace", "frobenius")


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"data": "mnist", "net": "mlp_petzka", "images": 1000, "steps": 6000}
    if size == "smoke":
        common = {"data": "digits", "net": "digits_mlp", "images": 150, "steps": 500}
    elif size in ("medium", "paper"):
        common |= {"images": 5000, "steps": 30000}
    seeds = {"smoke": 1, "small": 3, "medium": 5, "paper": 1}[size]
    return with_common(crossed(seed=range(seeds)), optimizer="sgd", lr=0.05, momentum=0.9, batch_size=100, **common)


def _train(group: Sequence[Settings], place: Place) -> list[list[tuple[int, nn.Module, LabelledData]]]:
    (settings,) = group
    data = training_data(settings, place)
    shares = (0.02, 0.05, 0.1, 0.15, 0.25, 0.4, 0.6, 0.8, 1.0)
    when = {round(settings["steps"] * share) for share in shares}
    kept: list[tuple[int, nn.Module, LabelledData]] = []

    def keep(step: int, model: nn.Module, loss: Any) -> None:
        if step in when:
            kept.append((step, copy.deepcopy(model).eval().double(), data))

    trained_alone(settings, data, place, on_step=keep)
    return [kept]


def _measure(settings: Settings, kept: Any, place: Place) -> Outcome:
    rows = []
    for step, model, data in kept:
        found = evaluate(model, data)
        spectrum = spectrum_row(model, data)
        rows.append(
            {
                "step": step,
                "loss": found.loss,
                "accuracy": found.accuracy,
                "weight_norm": norm_of_weights(model),
                **spectrum,
            }
        )
    return Outcome(rows)


def _analyse(table: Table) -> dict[str, Quantity]:
    values: dict[str, list[float]] = {}
    for _, own in table.by("run"):
        loss = own.column("loss")
        fitted = own.column("accuracy") >= 0.999
        for name in NAMES:
            curve = own.column(name)
            values.setdefault(f"{name}_left", []).append(curve[-1] / curve.max())
            values.setdefault(f"{name}_follows_loss", []).append(spearman(curve[fitted], loss[fitted]))
            values.setdefault(f"{name}_early", []).append(spearman(curve[~fitted], loss[~fitted]))
        values.setdefault("last_loss", []).append(loss[-1])
        values.setdefault("norm_growth", []).append(own.column("weight_norm")[-1] / own.column("weight_norm")[0])
    return {name: over_seeds(found) for name, found in values.items()}


def _draw(table: Table) -> Any:
    figure, axes = drawing.panels(3)
    for axis, name in zip(axes, NAMES):
        groups = {f"seed {own.rows[0]['seed']}": (own.column("loss"), own.column(name)) for _, own in table.by("run")}
        drawing.lines(axis, groups)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.invert_xaxis()
        drawing.label(axis, "training loss", name.replace("_", " "))
    return figure


STUDY = Study(
    name="false-friend-theorem1",
    title="Theorem 1 in practice: curvature while the loss goes to zero",
    paper="Granziol 2021",
    grid=_grid, train=_train, measure=_measure, analyse=_analyse,
    claims=(
        Claim("vanishes", "As the loss goes to zero the largest eigenvalue goes to zero", "theorem 1, (10)-(12)",
              "0 as L → 0", (Within("top_eigenvalue_left", -1.0, 0.1),),
              shown=("top_eigenvalue_left", "last_loss")),
        Claim("trace-frobenius", "So do the trace and the Frobenius norm", "theorem 1", "0 as L → 0",
              (Within("trace_left", -1.0, 0.1), Within("frobenius_left", -1.0, 0.1))),
        Claim("follows", "Once all points are correct, the smaller the loss the smaller the largest eigenvalue",
              "section 3, remark", "direction only", (Within("top_eigenvalue_follows_loss", 0.5),),
              otherwise="Spearman's correlation of λ₁ and loss over looks with full accuracy is "
              "{top_eigenvalue_follows_loss}, before that {top_eigenvalue_early}; λ₁ ends at {top_eigenvalue_left} of "
              "its largest value."),
        Claim("by-larger-weights", "It happens through growing weights", "section 3", "large weights overfit",
              (Within("norm_growth", 1.0),)),
    ),
    departures=lambda size: [
        "the paper proves and does not track: an MLP of 784-50-50-50-30-10 (digits: 64-32-32-10) without weight decay, "
        "looked at nine times, in float64; the theorem as stated is examined in false-friend-counterexample",
    ],
    figures={"curve": _draw},
)  # fmt: skip
