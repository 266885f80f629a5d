"""Appendix C of Granziol 2021: the mode of BatchNorm decides what the Hessian of a network is."""

from __future__ import annotations

from typing import Any

from torch import nn

from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, points_of, train_stack, training_data, with_common
from spiritlevel.lab.studies.quantities import Quantity, over_seeds, ratio_over_seeds
from spiritlevel.lab.studies.spectra_of import norm_of_weights, spectrum_row
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table
from spiritlevel.lab.training import evaluate

GAMMAS = [0.0, 5e-4]


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"net": "fcnbn", "data": "mnist", "epochs": 20, "points": 1000}
    if size == "smoke":
        common |= {"data": "digits", "images": 300, "args": {"widths": [32, 32]}, "epochs": 5, "points": 100}
    elif size == "small":
        common |= {"images": 10000, "args": {"widths": [128, 128, 128]}}
    else:
        common |= {"points": 2000}
    seeds = {"smoke": 2, "small": 3, "medium": 5, "paper": 1}[size]
    runs = crossed(weight_decay=GAMMAS, seed=range(seeds))
    return with_common(runs, optimizer="sgd", lr=0.1, momentum=0.9, batch_size=128, schedule="linear", **common)


def _measure(settings: Settings, model: nn.Module, place: Place) -> Outcome:
    data = training_data(settings, place)
    points = points_of(data, settings["points"], settings["seed"])
    row: dict[str, Any] = {"train_loss": evaluate(model, data).loss, "weight_norm": norm_of_weights(model)}
    for mode in ("train", "eval"):
        row.update({f"{name}_{mode}": value for name, value in spectrum_row(model, points, mode=mode).items()})
    return Outcome([row])


def _analyse(table: Table) -> dict[str, Quantity]:
    none, most = (table.where(weight_decay=gamma) for gamma in GAMMAS)
    found: dict[str, Quantity] = {}
    for name in ("top_eigenvalue", "frobenius", "trace"):
        for mode in ("train", "eval"):
            found[f"{name}_ratio_{mode}"] = ratio_over_seeds(
                most.column(f"{name}_{mode}"), none.column(f"{name}_{mode}")
            )
        found[f"{name}_train_over_eval_none"] = ratio_over_seeds(
            none.column(f"{name}_train"), none.column(f"{name}_eval")
        )
        found[f"{name}_train_over_eval_most"] = ratio_over_seeds(
            most.column(f"{name}_train"), most.column(f"{name}_eval")
        )
    for gamma, part in (("none", none), ("most", most)):
        for mode in ("train", "eval"):
            found[f"top_eigenvalue_{mode}_{gamma}"] = over_seeds(part.column(f"top_eigenvalue_{mode}"))
        found[f"train_loss_{gamma}"] = over_seeds(part.column("train_loss"))
    ratio = found["top_eigenvalue_train_over_eval_none"]
    # How far apart, whichever mode has the larger value.
    if ratio.value < 1:
        ratio = Quantity(1 / ratio.value, 1 / ratio.high, 1 / max(ratio.low, 1e-300), ratio.count)
    found["modes_apart"] = ratio
    return found


def _draw(table: Table) -> Any:
    figure, (axis,) = drawing.panels()
    for place, mode in enumerate(("train", "eval")):
        for shift, gamma in enumerate(GAMMAS):
            values = table.where(weight_decay=gamma).column(f"top_eigenvalue_{mode}")
            axis.plot([2 * place + shift] * len(values), values, "o", markersize=4, color=drawing.COLOURS[shift])
    axis.set_yscale("log")
    axis.set_xticks(range(4), ["train, 0", "train, 5e-4", "eval, 0", "eval, 5e-4"], fontsize=6)
    drawing.label(axis, "BatchNorm mode, weight decay", "λ₁")
    return figure


_WHY = (
    "λ₁ in training mode is {top_eigenvalue_train_none} without and {top_eigenvalue_train_most} with weight decay, in "
    "evaluation mode {top_eigenvalue_eval_none} and {top_eigenvalue_eval_most}; the training losses are "
    "{train_loss_none} "
    "and {train_loss_most}."
)

STUDY = Study(
    name="false-friend-bnmode",
    title="BatchNorm in training and in evaluation mode: two Hessians",
    paper="Granziol 2021",
    grid=_grid,
    train=train_stack,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim("modes-apart", "Spectra in training and evaluation mode differ by orders of magnitude",
              "appendix C, figure 5 against figure 8", "orders of magnitude", (Within("modes_apart", 10.0),),
              shown=("modes_apart", "top_eigenvalue_train_none", "top_eigenvalue_eval_none"), otherwise=_WHY),
        Claim("regularised-sharper-eval", "In evaluation mode the regularised network is sharper still",
              "appendix C, figure 8", "about 1,000 times", (Within("top_eigenvalue_ratio_eval", 1.0),),
              shown=("top_eigenvalue_ratio_eval", "top_eigenvalue_ratio_train"), otherwise=_WHY),
        Claim("thousandfold", "… by about three orders of magnitude", "appendix C, figure 8", "about 1,000 times",
              (Within("top_eigenvalue_ratio_eval", 300.0),), otherwise=_WHY),
    ),
    departures=lambda size: [
        "a batch-normalised fully connected network on MNIST (smoke: digits) in place of WRN-28-10 on CIFAR-100; "
        "training-mode Hessians over fixed batches of 500",
        "several seeds where the paper has one run",
    ],
    figures={"modes": _draw},
    together=lambda settings: f"{settings['weight_decay']}",
)  # fmt: skip
