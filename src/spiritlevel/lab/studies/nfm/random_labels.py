"""Section 6 of Tsuzuku et al. 2019: does sharpness follow the generalisation gap of networks fed random labels?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from spiritlevel.analyses.measuring import measure
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.datasets import LabelledData, with_random_labels
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import (
    crossed,
    held_out_data,
    network,
    points_of,
    trained_together,
    training_data,
    training_options,
    with_common,
)
from spiritlevel.lab.studies.nfm.finite_difference import sharpness_by_differences
from spiritlevel.lab.studies.quantities import (
    Quantity,
    bootstrapped,
    correlation,
    correlation_gain,
    kendall,
    partial,
    spearman,
)
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table
from spiritlevel.lab.training import evaluate, train

PAPER = "Tsuzuku et al. 2019"
PLAIN = (
    "hessian_trace", "fisher_rao_norm", "fisher_rao_diagonal", "weight_norm", "output_margin", "margin_skewness",
    "softmax_margin", "kappa_tau_sum", "rho_sum",
)  # fmt: skip
NORMALISED = ("normalized_sharpness", "matrix_normalized_sharpness")
RATIOS = [round(0.1 * k, 1) for k in range(11)]
COLUMNS = (*PLAIN, *NORMALISED, "normalized_sharpness_plain_loss", "by_differences", "margin_tenth_percentile")


def _noisy(settings: Settings, place: Place) -> LabelledData:
    return with_random_labels(training_data(settings, place), settings["ratio"], settings["seed"])


def _together(settings: Settings) -> str:
    return settings["stack"] or json.dumps(dict(settings), sort_keys=True)


def _train(group: Sequence[Settings], place: Place) -> list[tuple[nn.Module, LabelledData]]:
    data = [_noisy(settings, place) for settings in group]
    models = [network(settings, data[0], place) for settings in group]
    if len(group) > 1:
        trained_together(group, models, data[0], labels=torch.stack([own.y for own in data]))
    else:
        train(models[0], data[0], seed=group[0]["seed"], **training_options(group[0]))
    return list(zip(models, data))


def _measure(settings: Settings, trained: tuple[nn.Module, LabelledData], place: Place) -> Outcome:
    model, data = trained
    test = evaluate(model, held_out_data(settings, place))
    whole = evaluate(model, data)
    points = points_of(data, settings["points"], settings["seed"]).tensors
    plain = Problem(model, points)
    report = measure(plain, measures=[*PLAIN, "normalized_sharpness"])
    standardised = Problem(model, points, "normalized_cross_entropy")
    normal = measure(standardised, measures=list(NORMALISED))
    row: dict[str, Any] = {name: float(report[name]) for name in PLAIN}
    row.update({name: float(normal[name]) for name in NORMALISED})
    row["normalized_sharpness_plain_loss"] = float(report["normalized_sharpness"])
    row["by_differences"] = sharpness_by_differences(standardised, seed=settings["seed"], draws=settings["draws"])
    row["margin_tenth_percentile"] = float(np.quantile(report.per_sample["output_margin"].numpy(), 0.1))
    row |= {"train_accuracy": whole.accuracy, "train_loss": whole.loss, "test_accuracy": test.accuracy}
    row["gap"] = whole.accuracy - test.accuracy
    return Outcome([row])


def _analyse(table: Table) -> dict[str, Quantity]:
    gap, ratio = table.column("gap"), table.column("ratio")
    sharp, trace = table.column("normalized_sharpness"), table.column("hessian_trace")
    fitted = table.column("train_accuracy") >= 0.95
    found = {f"r_{name}": correlation(table.column(name), gap) for name in COLUMNS}
    found["rank_sharpness"] = correlation(sharp, gap, spearman)
    found["rank_trace"] = correlation(trace, gap, spearman)
    found["tau_sharpness"] = correlation(sharp, gap, kendall)
    found["gain"] = correlation_gain(sharp, trace, gap)
    found["rank_gain"] = correlation_gain(sharp, trace, gap, spearman)
    found["r_with_ratio"] = correlation(sharp, ratio)
    found["gap_with_ratio"] = correlation(gap, ratio)
    found["partial_sharpness_given_ratio"] = bootstrapped(partial, sharp, gap, ratio)
    found["partial_trace_given_ratio"] = bootstrapped(partial, trace, gap, ratio)
    found["partial_sharpness_given_norm"] = bootstrapped(partial, sharp, gap, table.column("weight_norm"))
    found["differences_over_exact"] = correlation(table.column("by_differences"), sharp)
    found["margin_gain_over_trace"] = correlation_gain(-table.column("margin_tenth_percentile"), trace, gap, _absolute)
    found["fitted_share"] = Quantity(
        float(fitted.mean()), float(fitted.mean()), float(fitted.mean()), len(fitted), "networks"
    )
    found["r_sharpness_fitted"] = correlation(sharp[fitted], gap[fitted])
    found["r_trace_fitted"] = correlation(trace[fitted], gap[fitted])
    return found


def _absolute(x: Any, y: Any) -> float:
    return abs(spearman(x, y))


def _draw(table: Table) -> Any:
    figure, axes = drawing.panels(4, width=2.6)
    shown = (
        ("normalized_sharpness", "normalised sharpness"),
        ("hessian_trace", "Hessian trace"),
        ("by_differences", "algorithm 1"),
        ("margin_tenth_percentile", "margin, 10th percentile"),
    )
    for axis, (name, title) in zip(axes, shown):
        points = axis.scatter(table.column(name), table.column("gap"), s=9, c=table.column("ratio"), cmap="viridis")
        r = correlation(table.column(name), table.column("gap"))
        drawing.label(axis, title, "generalisation gap", f"r = {r.value:.2f}")
    figure.colorbar(points, ax=axes[-1], label="share of random labels")
    return figure


_EXPLAINED = (
    "Pearson's r with the gap is {r_normalized_sharpness} for normalised sharpness and {r_hessian_trace} for the trace "
    "(ranks: {rank_sharpness} and {rank_trace}); among networks that fit their labels to 95% ({fitted_share} of all) "
    "{r_sharpness_fitted} and {r_trace_fitted}. The share of random labels alone has r = {gap_with_ratio} with the "
    "gap; "
    "given that share, {partial_sharpness_given_ratio} and {partial_trace_given_ratio} are left, to which a curved "
    "relation "
    "to the share contributes as well."
)


def _claims(paper_numbers: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "sharpness-follows-gap",
            "Normalised sharpness grows with the generalisation gap",
            "section 6.1, figures 1 and 3",
            paper_numbers,
            (Within("r_normalized_sharpness", 0.5, minimum=10),),
            otherwise=_EXPLAINED,
        ),
        Claim(
            "better-than-trace",
            "Normalised sharpness correlates with the gap more strongly than the Hessian trace does",
            "section 6.2, figures 1 and 4",
            paper_numbers,
            (Within("gain", 0.0, minimum=10),),
            shown=("gain", "r_normalized_sharpness", "r_hessian_trace"),
            otherwise=_EXPLAINED,
        ),
        Claim(
            "more-than-the-ratio",
            "Sharpness says something about the gap that the share of random labels does not (not asked in the paper)",
            "section 6.1 (its confounder)",
            "not examined",
            (Within("partial_sharpness_given_ratio", 1e-9, minimum=10),),
            shown=("partial_sharpness_given_ratio", "partial_trace_given_ratio"),
            otherwise=_EXPLAINED,
        ),
        Claim(
            "differences-suffice",
            "Algorithm 1 (differences of gradients) gives the same picture as the exact diagonal",
            "section 5.3, algorithm 1",
            "assumed",
            (Within("differences_over_exact", 0.9, minimum=10),),
            shown=("differences_over_exact", "r_by_differences"),
            otherwise="Over the networks algorithm 1 and the exact value correlate with {differences_over_exact}; with "
            "the gap algorithm 1 has r = {r_by_differences} and the exact value {r_normalized_sharpness}. On these "
            "piecewise-linear networks steps of finite size cross kinks, so algorithm 1 measures curvature at its "
            "radius and not the Hessian's diagonal.",
        ),
        Claim(
            "margins-predict",
            "Margins predict the gap at least as well as the Hessian trace (Lengyel et al. 2021, section 6)",
            "Lengyel et al. 2021, section 6",
            "a recommendation",
            (Within("margin_gain_over_trace", -0.05, minimum=10),),
            shown=("margin_gain_over_trace", "r_margin_tenth_percentile", "r_output_margin", "r_margin_skewness"),
            otherwise="The difference of the absolute rank correlations (10th percentile of the output margin less "
            "trace) is {margin_gain_over_trace}; Pearson's r is {r_margin_tenth_percentile} for that percentile, "
            "{r_output_margin} for the median and {r_margin_skewness} for the skewness.",
        ),
    )


def _study(
    name: str, net: str, data: str, numbers: str, sizes: dict[str, dict[str, Any]], words: dict[str, str]
) -> Study:
    def grid(size: str) -> list[Settings]:
        own = {"net": net, "data": data, **sizes[size]}
        repeats, ratios, stack = own.pop("repeats"), own.pop("ratios", RATIOS), own.pop("stack")
        runs = crossed(repeat=range(repeats), ratio=ratios)
        count = max(stack, 1)
        numbered = [
            {"ratio": run["ratio"], "seed": place, "stack": f"{place // count}" if stack else ""}
            for place, run in enumerate(runs)
        ]
        return with_common(numbered, optimizer="adam", lr=1e-3, batch_size=128, **own)

    def departures(size: str) -> list[str]:
        return [
            words[size],
            "ratios run through 0, 0.1, … 1 evenly where the paper draws them; replaced labels are drawn uniformly "
            "from "
            "all classes",
            "diagonals are exact, from the stated number of training images in evaluation mode; the variances are "
            "chosen by the closed-form alternation where the paper descends by gradients",
        ]

    return Study(
        name=name,
        title=f"Random labels, sharpness and the generalisation gap: {net} on {data}",
        paper=PAPER,
        grid=grid,
        train=_train,
        measure=_measure,
        analyse=_analyse,
        claims=_claims(numbers),
        departures=departures,
        figures={"gap": _draw},
        together=_together,
    )


_SMOKE = {"data": "digits", "images": 200, "epochs": 15, "points": 100, "repeats": 1, "draws": 2, "stack": 0,
          "ratios": [0.0, 0.5, 1.0]}  # fmt: skip
_ON_DIGITS = "built-in digits, a small network, three ratios, 15 epochs"

MLP_MNIST = _study(
    "nfm-random-labels-mlp-mnist", "mlp", "mnist", "scatter only (figures 3a, 4a)",
    {
        "smoke": {**_SMOKE, "net": "digits_mlp"},
        "small": {"args": {"widths": [128, 128, 128]}, "images": 3000, "test_images": 5000, "epochs": 50,
                  "points": 1000, "repeats": 3, "draws": 8, "stack": 11},
        "medium": {"images": 10000, "epochs": 50, "points": 1000, "repeats": 4, "draws": 8, "stack": 22},
        "paper": {"epochs": 50, "points": 2000, "repeats": 9, "draws": 8, "stack": 11},
    },
    {
        "smoke": _ON_DIGITS,
        "small": "3,000 images, layers of 128, 33 networks",
        "medium": "10,000 images, 44 networks; widths, which the paper omits, are 512",
        "paper": "99 networks; widths, which the paper omits, are 512",
    },
)  # fmt: skip

LENET_MNIST = _study(
    "nfm-random-labels-lenet-mnist", "lenet5", "mnist", "scatter only (figures 3b, 4b)",
    {
        "smoke": {**_SMOKE, "net": "digits_cnn"},
        "small": {"images": 2000, "test_images": 5000, "epochs": 50, "points": 1000, "repeats": 2, "draws": 8,
                  "stack": 11},
        "medium": {"images": 5000, "epochs": 50, "points": 1000, "repeats": 3, "draws": 8, "stack": 11},
        "paper": {"epochs": 50, "points": 2000, "repeats": 9, "draws": 8, "stack": 11},
    },
    {
        "smoke": _ON_DIGITS,
        "small": "2,000 images, 22 networks",
        "medium": "5,000 images, 33 networks",
        "paper": "99 networks",
    },
)  # fmt: skip

LENET_CIFAR = _study(
    "nfm-random-labels-lenet-cifar10", "lenet5", "cifar10", "scatter only (figures 3c, 4c)",
    {
        "smoke": {**_SMOKE, "net": "digits_cnn"},
        "small": {"images": 2000, "test_images": 2000, "epochs": 60, "points": 500, "repeats": 2, "draws": 4,
                  "stack": 11},
        "medium": {"images": 5000, "test_images": 4000, "epochs": 60, "points": 1000, "repeats": 3, "draws": 8,
                   "stack": 11},
        "paper": {"epochs": 100, "points": 2000, "repeats": 9, "draws": 8, "stack": 11},
    },
    {
        "smoke": _ON_DIGITS,
        "small": "2,000 images, 22 networks, 60 epochs",
        "medium": "the first 5,000 images, 33 networks, 60 epochs where the paper has 50,000 and 100",
        "paper": "99 networks",
    },
)  # fmt: skip

WRN_CIFAR = _study(
    "nfm-random-labels-wrn-cifar10", "wrn16_4", "cifar10", "r = 0.911 against 0.708 for the trace (figure 1)",
    {
        "smoke": {**_SMOKE, "net": "wrn28_10", "images": 40, "epochs": 1, "points": 6, "draws": 1,
                  "test_images": 40, "args": {"depth": 10, "width": 1}, "ratios": [0.0, 1.0]},
        "small": {"images": 500, "test_images": 1000, "epochs": 10, "points": 100, "repeats": 1, "draws": 2,
                  "stack": 0},
        "medium": {"images": 2000, "test_images": 4000, "epochs": 40, "points": 300, "repeats": 2, "draws": 4,
                   "stack": 0},
        "paper": {"epochs": 200, "points": 1000, "repeats": 9, "draws": 8, "stack": 0},
    },
    {
        "smoke": "built-in digits resized, a residual network of depth 10 and width 1, one epoch, two ratios",
        "small": "500 images, ten epochs",
        "medium": "the first 2,000 images, 22 networks, 40 epochs where the paper has 50,000, 100 and 200",
        "paper": "99 networks",
    },
)  # fmt: skip

STUDIES = (MLP_MNIST, LENET_MNIST, LENET_CIFAR, WRN_CIFAR)
