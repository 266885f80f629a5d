"""Theorems 2 and 3 of Petzka et al. 2019 on MNIST networks: what reparameterised copies change, and what not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from spiritlevel.analyses.symmetries import rescale_layers, rescale_neurons
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import held_out_data, points_of, train_stack, training_data, with_common
from spiritlevel.lab.studies.petzka.flatness_rows import flatness_row
from spiritlevel.lab.studies.quantities import Quantity, all_of, bootstrapped, correlation, pearson
from spiritlevel.lab.studies.study import Outcome, Place, Row, Settings, Study, Table
from spiritlevel.lab.training import evaluate

KEPT_BY_LAYERS = ("kappa_last", "kappa_max", "kappa_sum", "kappa_tau_last", "kappa_tau_sum", "rho_max", "rho_sum",
                  "relative_flatness", "normalized_sharpness")  # fmt: skip
KEPT_BY_NEURONS = ("rho_max", "rho_sum", "normalized_sharpness")
CHANGED_BY_NEURONS = ("kappa_last", "kappa_tau_last", "kappa_sum", "kappa_tau_sum")


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"net": "mlp_petzka", "data": "mnist", "images": 4000, "epochs": 40, "points": 500}
    batches, rates, seeds = [32, 64, 256, 512], [0.02, 0.04, 0.16, 0.32], 3
    if size == "smoke":
        common = {"net": "mlp_petzka", "args": {"widths": [8, 8]}, "data": "digits", "images": 200, "epochs": 10,
                  "points": 60}  # fmt: skip
        batches, rates, seeds = [20, 80], [0.1, 0.2], 2
    elif size in ("medium", "paper"):
        seeds = 9
    axes = [{"batch_size": batch, "lr": rate} for batch, rate in zip(batches, rates)]
    runs = [{**axis, "seed": 100 * place + seed} for place, axis in enumerate(axes) for seed in range(seeds)]
    return with_common(runs, optimizer="sgd", momentum=0.9, initialisation="xavier_normal", **common)


def copies_of(model: nn.Module, example: Any, seed: int) -> dict[str, tuple[nn.Module, float]]:
    """Return the network, a copy with its last hidden layer divided by a random factor in [5, 25], and one per "
    "neuron."""
    hidden = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-2]
    factor = int(np.random.default_rng(seed).integers(5, 26))
    return {
        "itself": (model, 1.0),
        "layers": (rescale_layers(model, example, {hidden: 1 / factor}), float(factor)),
        "neurons": (rescale_neurons(model, example, seed=seed, low=0.2, high=5.0), 0.0),
    }


def _measure(settings: Settings, model: nn.Module, place: Place) -> Outcome:
    data, test = training_data(settings, place), held_out_data(settings, place)
    model = model.cpu().double()
    points = points_of(data, settings["points"], 0)
    points = type(points)(points.x.double(), points.y, points.name, points.split, points.classes)
    gap = evaluate(model, test).loss - evaluate(model, data).loss
    rows: list[Row] = []
    for name, (copy, factor) in copies_of(model, points.x[:8], settings["seed"]).items():
        rows.append({"copy": name, "factor": factor, "gap": gap, **flatness_row(copy, points)})
    return Outcome(rows)


def relative_changes(table: Table, copy: str, names: Sequence[str]) -> list[float]:
    """Return the largest relative change of any of the measures, network by network."""
    itself, other = table.where(copy="itself"), table.where(copy=copy)
    changes = [np.abs(ratios(other, itself, name) - 1) for name in names]
    largest: list[float] = np.max(changes, axis=0).tolist()
    return largest


def ratios(above: Table, below: Table, name: str) -> NDArray[np.float64]:
    """Return a column over another, nan where a network has no curvature left to compare."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return above.column(name) / below.column(name)


def collapse(table: Table) -> dict[str, Quantity]:
    """Return correlations with the gap before and after copies of random scale, and how much is lost."""
    itself, layers = table.where(copy="itself"), table.where(copy="layers")
    gap = itself.column("gap")
    found: dict[str, Quantity] = {}
    for name in ("kappa_last", "kappa_tau_last", "trace_last", "eigenvalue_last", "hessian_trace"):
        found[f"r_{name}"] = correlation(itself.column(name), gap)
        found[f"r_{name}_copies"] = correlation(layers.column(name), gap)
        found[f"r_{name}_loss"] = bootstrapped(
            lambda a, b, c: pearson(a, c) - pearson(b, c), itself.column(name), layers.column(name), gap
        )
    return found


def _analyse(table: Table) -> dict[str, Quantity]:
    found = collapse(table)
    found["kept_by_layers"] = all_of(relative_changes(table, "layers", KEPT_BY_LAYERS), "networks")
    found["kept_by_neurons"] = all_of(relative_changes(table, "neurons", KEPT_BY_NEURONS), "networks")
    itself, neurons, layers = (table.where(copy=name) for name in ("itself", "neurons", "layers"))
    changed = [np.abs(np.log(ratios(neurons, itself, name))) for name in CHANGED_BY_NEURONS]
    found["kappa_changed_by_neurons"] = all_of(np.min(changed, axis=0).tolist(), "networks")
    found["trace_changed_by_layers"] = all_of(np.abs(np.log(ratios(layers, itself, "trace_last"))).tolist(), "networks")
    return found


def draw_collapse(table: Table) -> Any:
    """Draw κτ and the trace of the last layer against the gap, before and after reparameterisation."""
    figure, axes = drawing.panels(2)
    for axis, name in zip(axes, ("kappa_tau_last", "trace_last")):
        groups = {
            copy: (table.where(copy=copy).column(name), table.where(copy=copy).column("gap"))
            for copy in ("itself", "layers")
        }
        drawing.dots(axis, groups)
        axis.set_xscale("log")
        drawing.label(axis, name.replace("_", " "), "generalisation error")
    return figure


STUDY = Study(
    name="petzka-reparam",
    title="Reparameterised copies of MNIST networks",
    paper="Petzka et al. 2019",
    grid=_grid, train=train_stack, measure=_measure, analyse=_analyse,
    claims=(
        Claim("layers-kept", "κ, κτ and ρ do not change when layers are rescaled", "theorem 2", "unchanged",
              (Within("kept_by_layers", 0.0, 1e-2, 4),),
              otherwise="The largest relative change of any of these measures in any network is {kept_by_layers}."),
        Claim("neurons-kept", "ρ does not change when neurons are rescaled", "theorem 3", "unchanged",
              (Within("kept_by_neurons", 0.0, 1e-6, 4),)),
        Claim("neurons-change-kappa", "κ and κτ in general do", "section 3", "in general not invariant",
              (Within("kappa_changed_by_neurons", 1e-6, minimum=4),)),
        Claim("hessian-changes", "Measures by the Hessian alone change with layers", "section 1, after Dinh et al. "
                                                                                     "2017",
              "not invariant", (Within("trace_changed_by_layers", 0.1, minimum=4),)),
        Claim("hessian-collapses", "After random rescaling Hessian-only measures lose their correlation with the gap",
              "section 2, figure 2", "very weak correlation", (Within("r_trace_last_loss", 1e-9, minimum=4),),
              shown=("r_trace_last", "r_trace_last_copies", "r_kappa_tau_last", "r_kappa_tau_last_copies"),
              otherwise="The trace of the last layer has r = {r_trace_last} with the gap before and "
              "{r_trace_last_copies} after random factors between 5 and 25, κτ {r_kappa_tau_last} and "
              "{r_kappa_tau_last_copies}: where the correlation is weak to begin with there is little to lose."),
    ),
    departures=lambda size: [
        "MNIST networks 784-50-50-50-30-10 on 4,000 images (smoke: digits) where figure 2 has LeNet-5 on CIFAR-10, "
        "which "
        "petzka-cifar repeats; float64, biases carried along, integer factors between 5 and 25",
    ],
    figures={"copies": draw_collapse},
    together=lambda settings: f"{settings['batch_size']}",
)  # fmt: skip
