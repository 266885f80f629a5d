"""Appendix C of Petzka et al. 2019: fully connected networks on MNIST, layer by layer and as wholes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from spiritlevel.nets import initialise
from spiritlevel.studies import drawing
from spiritlevel.studies.claims import Claim, Within
from spiritlevel.studies.material import (
    held_out_data,
    network,
    sample_indices,
    trained_together,
    training_data,
    with_common,
)
from spiritlevel.studies.petzka.flatness_rows import FAST, flatness_row
from spiritlevel.studies.quantities import Quantity, bootstrapped, correlation, pearson, spearman
from spiritlevel.studies.study import Outcome, Place, Settings, Study, Table
from spiritlevel.training import evaluate

LARGEST_LOSS = 0.07  # networks with a larger training error are dropped, as in the paper
HIDDEN = (1, 2, 3, 4)


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"net": "mlp_petzka", "data": "mnist", "epochs": 400, "points": 5000}
    batches, rates, seeds = [1000, 2000, 4000, 8000], [0.02, 0.04, 0.08, 0.16], 18
    if size == "smoke":
        common = {"net": "mlp_petzka", "args": {"widths": [12, 12, 12, 10]}, "data": "digits", "epochs": 15,
                  "points": 100, "images": 400}  # fmt: skip
        batches, rates, seeds = [20, 80], [0.1, 0.2], 3
    elif size == "small":
        common |= {"images": 6000, "epochs": 60, "points": 1000}
        batches, rates, seeds = [50, 100, 200, 400], [0.02, 0.04, 0.08, 0.16], 6
    elif size == "medium":
        seeds = 12
    axes = [{"batch_size": batch, "lr": rate} for batch, rate in zip(batches, rates)]
    runs = [{**axis, "seed": 100 * place + seed} for place, axis in enumerate(axes) for seed in range(seeds)]
    return with_common(runs, optimizer="sgd", initialisation="xavier_normal", **common)


def _train(group: Sequence[Settings], place: Place) -> Sequence[nn.Module]:
    data = training_data(group[0], place)
    models = [
        initialise(network(settings, data, Place()), settings["initialisation"], settings["seed"]).to(place.device)
        for settings in group
    ]
    trained_together(group, models, data)
    return models


def _measure(settings: Settings, model: nn.Module, place: Place) -> Outcome:
    data, test = training_data(settings, place), held_out_data(settings, place)
    on_train, on_test = evaluate(model, data), evaluate(model, test)
    points = data.subset(sample_indices(len(data), settings["points"], 0))
    row = {
        "train_loss": on_train.loss,
        "test_loss": on_test.loss,
        "train_accuracy": on_train.accuracy,
        "test_accuracy": on_test.accuracy,
        "gap": on_test.loss - on_train.loss,
    }
    if np.isfinite(on_train.loss):
        row.update(flatness_row(model, points, FAST))
    return Outcome([row])


def _analyse(table: Table) -> dict[str, Quantity]:
    kept = [row for row in table.rows if row["train_loss"] is not None and row["train_loss"] <= LARGEST_LOSS]
    own = Table([])
    own.rows = kept
    gap = own.column("gap")
    found: dict[str, Quantity] = {}
    for name in ("kappa_tau", "rho_sum", "rho_max"):
        for layer in HIDDEN:
            found[f"r_{name}_{layer}"] = correlation(own.column(f"{name}@{layer}"), gap)
        columns = [own.column(f"{name}@{layer}") for layer in HIDDEN]
        found[f"least_{name}"] = bootstrapped(_least, *columns, gap)
        found[f"spread_{name}"] = bootstrapped(_spread, *columns, gap)
    for name in ("kappa_tau_max", "kappa_tau_sum", "rho_max", "rho_sum", "hessian_trace", "normalized_sharpness",
                 "relative_flatness", "weight_norm", "output_margin", "margin_tenth_percentile"):  # fmt: skip
        found[f"r_{name}"] = correlation(own.column(name), gap)
    for name in ("kappa_tau", "rho_sum"):
        columns = [own.column(f"{name}@{layer}") for layer in HIDDEN]
        whole = own.column("kappa_tau_sum" if name == "kappa_tau" else "rho_sum")
        found[f"gain_{name}"] = bootstrapped(_gain_over_best, whole, *columns, gap)
    found["margin_gain_over_trace"] = bootstrapped(
        lambda a, b, c: abs(spearman(a, c)) - abs(spearman(b, c)),
        own.column("margin_tenth_percentile"), own.column("hessian_trace"), gap,
    )  # fmt: skip
    found["gap_smallest"], found["gap_largest"] = (
        Quantity(value, value, value, len(gap), "networks")
        for value in ((float(gap.min()), float(gap.max())) if len(gap) else (float("nan"), float("nan")))
    )
    found["kept"] = Quantity(len(kept), len(kept), len(kept), len(kept), "networks")
    return found


def _least(*columns: Any) -> float:
    return min(pearson(column, columns[-1]) for column in columns[:-1])


def _spread(*columns: Any) -> float:
    values = [pearson(column, columns[-1]) for column in columns[:-1]]
    return max(values) - min(values)


def _gain_over_best(whole: Any, *columns: Any) -> float:
    return pearson(whole, columns[-1]) - max(pearson(column, columns[-1]) for column in columns[:-1])


def _draw(table: Table) -> Any:
    figure, axes = drawing.panels(5, width=2.3)
    rows = [row for row in table.rows if row["train_loss"] is not None and row["train_loss"] <= LARGEST_LOSS]
    own = Table([])
    own.rows = rows or table.rows
    names = [*(f"kappa_tau@{layer}" for layer in HIDDEN), "kappa_tau_sum"]
    for axis, name in zip(axes, names):
        groups = {str(size): (part.column(name), part.column("gap")) for size, part in own.by("batch_size")}
        drawing.scatter(axis, groups)
        r = pearson(own.column(name), own.column("gap"))
        drawing.label(axis, name.replace("_", " "), "test loss − training loss", f"r = {r:.2f}")
    return figure


_WHY = (
    "Over {kept} networks with a training loss of at most 0.07 (gaps from {gap_smallest} to {gap_largest}) κτ of "
    "hidden "
    "layers 1 to 4 has r = {r_kappa_tau_1}, {r_kappa_tau_2}, {r_kappa_tau_3}, {r_kappa_tau_4} with the gap, its sum "
    "over "
    "layers {r_kappa_tau_sum} and the largest {r_kappa_tau_max}; ρ summed per layer {r_rho_sum_1}, {r_rho_sum_2}, "
    "{r_rho_sum_3}, {r_rho_sum_4}, over the network {r_rho_sum}; the Hessian trace {r_hessian_trace}, the 10th "
    "percentile "
    "of the margin {r_margin_tenth_percentile}. All networks have one architecture and nearly one loss: what "
    "spreads the "
    "gap is batch size and rate."
)

STUDY = Study(
    name="petzka-mnist",
    title="Flatness per layer, per neuron and over the network: MLPs on MNIST",
    paper="Petzka et al. 2019",
    grid=_grid,
    train=_train,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim("per-layer", "κτ of every hidden layer correlates with the generalisation error with ρ ≥ 0.7",
              "appendix C, figure 3", "0.73, 0.70, 0.72, 0.71", (Within("least_kappa_tau", 0.7, minimum=20),),
              shown=("least_kappa_tau", "r_kappa_tau_1", "r_kappa_tau_2", "r_kappa_tau_3", "r_kappa_tau_4"),
              otherwise=_WHY),
        Claim("varies-slightly", "It varies slightly over the layers", "appendix C, figure 3", "0.03 between layers",
              (Within("spread_kappa_tau", 0.0, 0.2, 20),), otherwise=_WHY),
        Claim("per-neuron-varies", "The neuron-wise sums ρ_σ differ considerably between "
                                   "layers", "appendix C, figure 4",
              "figure only", (Within("spread_rho_sum", 0.1, minimum=20),), otherwise=_WHY),
        Claim("neuron-maximum", "The correlation of the largest neuron ρ^l is significant in every layer",
              "appendix C, figure 5", "figure only", (Within("least_rho_max", 1e-9, minimum=20),),
              shown=("least_rho_max", "spread_rho_max"), otherwise=_WHY),
        Claim("network-better-kappa", "The network-wise κτ^Σ correlates better than the layers' κτ",
              "appendix C, figure 6", "direction only", (Within("gain_kappa_tau", 0.0, minimum=20),),
              shown=("gain_kappa_tau", "r_kappa_tau_sum", "r_kappa_tau_max"), otherwise=_WHY),
        Claim("network-better-rho", "The network-wise ρ^Σ correlates better than the layers' ρ_σ",
              "appendix C, figure 6", "direction only", (Within("gain_rho_sum", 0.0, minimum=20),),
              shown=("gain_rho_sum", "r_rho_sum", "r_rho_max"), otherwise=_WHY),
        Claim("margins-predict", "Margins predict the gap at least as well as the Hessian trace",
              "Lengyel et al. 2021, section 6", "a recommendation",
              (Within("margin_gain_over_trace", -0.05, minimum=20),),
              shown=("margin_gain_over_trace", "r_margin_tenth_percentile", "r_hessian_trace"), otherwise=_WHY),
    ),
    departures=lambda size: [
        {
            "smoke": "built-in digits, layers of 12, six networks",
            "small": "6,000 images, batches 50 to 400 at the paper's rates, 24 networks, 60 epochs",
            "medium": "48 networks of 400 epochs at the rates 0.02 to 0.16 that keep the stated ratio; at the text's "
            "other end, 0.2 to 1.6, most networks diverge",
            "paper": "72 networks of 400 epochs at the rates 0.02 to 0.16 that keep the stated ratio",
        }[size],
        "convergence, which the paper does not define, is a fixed number of epochs followed by the paper's filter "
        "on the "
        "training error, read as the mean loss",
        "flatness over the stated number of training images; exact traces, not normalised",
        "a first run with 60,000 images at the rates 0.2 to 1.6, the other reading of the text, was set aside: 39 of "
        "its 48 networks diverged or kept a training loss above 0.07",
    ],
    figures={"layers": _draw},
    together=lambda settings: f"{settings['batch_size']}",
)  # fmt: skip
