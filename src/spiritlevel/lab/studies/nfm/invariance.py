"""Sections 4 and 5 of Tsuzuku et al. 2019: which sharpness survives which rescaling of one trained network."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from spiritlevel.analyses.measuring import measure
from spiritlevel.analyses.symmetries import rescale_layers, rescale_neurons, scale_output
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, points_of, train_one, with_common
from spiritlevel.lab.studies.quantities import Quantity, all_of
from spiritlevel.lab.studies.study import Outcome, Place, Row, Settings, Study, Table

MEASURES = (
    "hessian_trace", "matrix_normalized_sharpness", "normalized_sharpness", "fisher_rao_norm", "fisher_rao_diagonal",
    "spectral_complexity", "weight_norm", "kappa_tau_sum", "rho_sum",
)  # fmt: skip


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"data": "mnist", "net": "mlp_petzka", "images": 4000, "points": 500, "epochs": 10}
    if size == "smoke":
        common = {"data": "digits", "net": "digits_mlp", "images": 500, "points": 100, "epochs": 30}
    elif size in ("medium", "paper"):
        common |= {"net": "lenet5"}
    seeds = {"smoke": 2, "small": 3, "medium": 5, "paper": 1}[size]
    return with_common(crossed(seed=range(seeds)), optimizer="adam", lr=1e-3, batch_size=128, **common)


def _measure(settings: Settings, trained: Any, place: Place) -> Outcome:
    model, data = trained
    model = model.cpu().double()
    points = points_of(data, settings["points"], settings["seed"])
    x, y = points.x.double(), points.y
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    copies = {
        "itself": model,
        "layers": rescale_layers(model, x[:8], {layers[0]: 8.0, layers[1]: 2.0}),
        "neurons": rescale_neurons(model, x[:8], seed=settings["seed"], low=0.1, high=10.0),
        "outputs": scale_output(model, x[:8], 4.0),
    }
    rows: list[Row] = []
    for loss in ("cross_entropy", "normalized_cross_entropy"):
        for name, copy in copies.items():
            report = measure(Problem(copy, (x, y), loss), measures=list(MEASURES))
            rows.append({"loss": loss, "copy": name, **{each: float(report[each]) for each in MEASURES}})
    with torch.no_grad():
        change = max(float((copies[name](x) - model(x)).abs().max()) for name in ("layers", "neurons"))
    rows.append({"loss": "function", "copy": "all", "change": change})
    return Outcome(rows)


def _analyse(table: Table) -> dict[str, Quantity]:
    values: dict[str, list[float]] = {}
    for _, own in table.by("run"):
        for loss, short in (("cross_entropy", ""), ("normalized_cross_entropy", "_standardised")):
            part = own.where(loss=loss)
            for copy in ("layers", "neurons", "outputs"):
                for name in MEASURES:
                    before, after = (part.where(copy=each).column(name)[0] for each in ("itself", copy))
                    values.setdefault(f"{name}{short}_{copy}", []).append(after / before)
        values.setdefault("function_change", []).append(own.where(loss="function").column("change")[0])
    values["change_by_outputs"] = [max(ratio, 1 / ratio) for ratio in values["normalized_sharpness_outputs"]]
    return {name: all_of(found) for name, found in values.items()}


def _draw(table: Table) -> Any:
    figure, (axis,) = drawing.panels(width=5.5)
    analysis = _analyse(table)
    for place, copy in enumerate(("layers", "neurons", "outputs")):
        ratios = [abs(analysis[f"{name}_{copy}"].value) for name in MEASURES]
        axis.plot(ratios, range(len(MEASURES)), "o", markersize=4, color=drawing.COLOURS[place], label=copy)
    axis.set_yticks(range(len(MEASURES)), [name.replace("_", " ") for name in MEASURES])
    axis.set_xscale("log")
    axis.axvline(1, color="#bbb", linewidth=0.8)
    axis.legend(fontsize=6, frameon=False)
    drawing.label(axis, "after rescaling / before", "", "")
    return figure


def _same(quantity: str) -> Within:
    return Within(quantity, 1 - 1e-6, 1 + 1e-6, 2)


def _changed(quantity: str, factor: float = 1.05) -> Within:
    return Within(quantity, factor, minimum=2)


STUDY = Study(
    name="nfm-invariance",
    title="Which sharpness survives which rescaling",
    paper="Tsuzuku et al. 2019",
    grid=_grid,
    train=train_one,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim("function-kept", "Rescaled copies compute the same function", "sections 4.1, 5.1", "unchanged",
              (Within("function_change", 0.0, 1e-6, 2),)),
        Claim("matrix-form-layers", "Matrix-normalised sharpness (13) is unchanged by rescaling whole layers",
              "section 4.2", "invariant", (_same("matrix_normalized_sharpness_layers"),)),
        Claim("matrix-form-neurons", "Matrix-normalised sharpness (13) is not unchanged by rescaling neurons",
              "section 5.1", "not invariant", (_changed("matrix_normalized_sharpness_neurons"),)),
        Claim("normalised-layers-neurons", "Normalised sharpness (17) is unchanged by rescaling layers and neurons",
              "section 5.2", "invariant",
              (_same("normalized_sharpness_layers"), _same("normalized_sharpness_neurons"))),
        Claim("trace-changes", "The Hessian trace is changed by both", "section 4.1, after Dinh et al. 2017",
              "not invariant", (_changed("hessian_trace_layers"), _changed("hessian_trace_neurons"))),
        Claim("matrix-norms-change", "Bounds by matrix norms are changed by rescaling neurons", "section 5.1",
              "not invariant", (_changed("spectral_complexity_neurons"),)),
        Claim("cross-entropy-changes", "With cross-entropy sharpness changes when the outputs are scaled",
              "section 6.1", "unusable for comparison", (_changed("change_by_outputs"),),
              shown=("normalized_sharpness_outputs",)),
        Claim("standardised-kept", "With the cross-entropy of standardised outputs (20) it does not",
              "section 6.1, (20)-(22)", "invariant", (_same("normalized_sharpness_standardised_outputs"),)),
    ),
    departures=lambda size: [
        "the paper argues and does not measure: one trained network of the stated size in float64, layers scaled by 8 "
        "and 2, neurons by factors between 0.1 and 10, outputs by 4, biases carried along",
    ],
    figures={"ratios": _draw},
)  # fmt: skip
