"""Section 4 of Granziol 2021: more weight decay, sharper minima, better generalisation; softmax regression apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from torch import nn

from spiritlevel.lab.datasets import LabelledData
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import (
    crossed,
    held_out_data,
    network,
    points_of,
    run_images,
    trained_together,
    training_data,
    training_options,
    with_common,
)
from spiritlevel.lab.studies.quantities import Quantity, over_seeds, ratio_over_seeds
from spiritlevel.lab.studies.spectra_of import norm_of_weights, spectrum_row
from spiritlevel.lab.studies.study import Outcome, Place, Row, Settings, Study, Table
from spiritlevel.lab.training import crop_and_flip, evaluate, train

PAPER = "Granziol 2021"
GAMMAS = [0.0, 1e-4, 5e-4]
WORDS = {0.0: "none", 1e-4: "1e4", 5e-4: "5e4"}


def validation_data(settings: Settings, place: Place) -> LabelledData:
    """Return the validation images: the last of the training split, as the paper's tool takes them."""
    if "validation" not in settings:
        return held_out_data(settings, place)
    return run_images(settings, "train", place, last=settings["validation"])


def _together(settings: Settings) -> str:
    if not settings["stack"]:
        return json.dumps(dict(settings), sort_keys=True)
    return f"{settings['weight_decay']}"


def _train(group: Sequence[Settings], place: Place) -> list[tuple[nn.Module, list[dict[str, float]]]]:
    data = training_data(group[0], place)
    models = [network(settings, data, place) for settings in group]
    curves: list[list[dict[str, float]]] = [[] for _ in group]
    if len(group) > 1:
        trained_together(group, models, data)
        return list(zip(models, curves))
    (settings,), (model,) = group, models
    validation = validation_data(settings, place)

    def look(row: Any, model: nn.Module) -> None:
        if settings.get("curve") and (row.epoch + 1) % settings["curve"] == 0:
            error = 1 - evaluate(model, validation).accuracy
            curves[0].append({"epoch": row.epoch + 1, "error": error, "norm": norm_of_weights(model)})
            model.train()

    augment = crop_and_flip if settings.get("augment") else None
    train(model, data, seed=settings["seed"], augment=augment, on_epoch=look, **training_options(settings))
    return [(model, curves[0])]


def evaluated_row(settings: Settings, model: nn.Module, data: LabelledData, place: Place) -> Row:
    """Return accuracies on the data trained on, on validation and on test images, and the norm of the weights."""
    on_train, on_validation = evaluate(model, data), evaluate(model, validation_data(settings, place))
    return {
        "train_accuracy": on_train.accuracy,
        "train_loss": on_train.loss,
        "validation_accuracy": on_validation.accuracy,
        "test_accuracy": evaluate(model, held_out_data(settings, place)).accuracy,
        "gap": on_train.accuracy - on_validation.accuracy,
        "weight_norm": norm_of_weights(model),
    }


def _measure(settings: Settings, trained: tuple[nn.Module, list[dict[str, float]]], place: Place) -> Outcome:
    model, curve = trained
    data = training_data(settings, place)
    points = points_of(data, settings["points"], settings["seed"])
    found = spectrum_row(model, points, mode=settings.get("mode", "eval"), quick=settings.get("quick", False))
    columns = {key: [step[key] for step in curve] for key in ("epoch", "error", "norm")} if curve else {}
    return Outcome([{**evaluated_row(settings, model, data, place), **found}], columns)


def _analyse(table: Table) -> dict[str, Quantity]:
    parts = {gamma: table.where(weight_decay=gamma) for gamma in GAMMAS}
    found: dict[str, Quantity] = {}
    names = ("top_eigenvalue", "trace", "frobenius", "validation_accuracy", "test_accuracy", "gap", "weight_norm",
             "train_loss", "train_accuracy")  # fmt: skip
    for name in names:
        for gamma, part in parts.items():
            found[f"{name}_{WORDS[gamma]}"] = over_seeds(part.column(name))
    none, most = parts[GAMMAS[0]], parts[GAMMAS[-1]]
    count = min(len(none), len(most))
    for name in ("top_eigenvalue", "trace", "frobenius"):
        found[f"{name}_ratio"] = ratio_over_seeds(most.column(name)[:count], none.column(name)[:count])
    for name in ("validation_accuracy", "test_accuracy", "gap", "weight_norm"):
        found[f"{name}_change"] = over_seeds(most.column(name)[:count] - none.column(name)[:count])
    return found


def draw(table: Table) -> Any:
    """Draw λ₁, the validation accuracy and the weights' norm of every run by weight decay."""
    figure, axes = drawing.panels(3)
    shown = (("top_eigenvalue", "λ₁"), ("validation_accuracy", "validation accuracy"), ("weight_norm", "‖w‖"))
    for axis, (name, title) in zip(axes, shown):
        for place, gamma in enumerate(GAMMAS):
            values = table.where(weight_decay=gamma).column(name)
            axis.plot([place] * len(values), values, "o", markersize=4, color=drawing.COLOURS[place], alpha=0.7)
        axis.set_xticks(range(len(GAMMAS)), [f"{gamma:g}" for gamma in GAMMAS])
        drawing.label(axis, "weight decay γ", title)
    return figure


_WHY = (
    "λ₁ is {top_eigenvalue_none}, {top_eigenvalue_1e4} and {top_eigenvalue_5e4} at γ = 0, 1e-4 and 5e-4, the "
    "validation "
    "accuracy {validation_accuracy_none}, {validation_accuracy_1e4} and {validation_accuracy_5e4}, the norm of the "
    "weights {weight_norm_none}, {weight_norm_1e4} and {weight_norm_5e4}, the training loss {train_loss_none}, "
    "{train_loss_1e4} and {train_loss_5e4}, the training accuracy {train_accuracy_none}, {train_accuracy_1e4} and "
    "{train_accuracy_5e4}."
)


def _claims(place: str, eigenvalues: str, accuracies: str) -> tuple[Claim, ...]:
    return (
        Claim(
            "sharper",
            "The largest eigenvalue grows with weight decay",
            place,
            eigenvalues,
            (Within("top_eigenvalue_ratio", 1.0),),
            shown=("top_eigenvalue_ratio", "top_eigenvalue_none", "top_eigenvalue_5e4"),
            otherwise=_WHY,
        ),
        Claim(
            "trace-and-frobenius",
            "So do the trace and the Frobenius norm",
            f"{place}; section 1",
            "direction only",
            (Within("trace_ratio", 1.0), Within("frobenius_ratio", 1.0)),
            otherwise=_WHY,
        ),
        Claim(
            "generalises",
            "The validation accuracy grows with weight decay at the same time",
            place,
            accuracies,
            (Within("validation_accuracy_change", 0.0),),
            shown=("validation_accuracy_change", "gap_change"),
            otherwise=_WHY,
        ),
    )


def _study(sizes: dict[str, dict[str, Any]], words: dict[str, str], **more: Any) -> Study:
    def grid(size: str) -> list[Settings]:
        own = dict(sizes[size])
        seeds = own.pop("seeds")
        runs = crossed(weight_decay=GAMMAS, seed=range(seeds))
        return with_common(runs, optimizer="sgd", momentum=0.9, batch_size=128, schedule="linear", **own)

    return Study(
        paper=PAPER,
        grid=grid,
        train=_train,
        measure=_measure,
        analyse=_analyse,
        departures=lambda size: [
            words[size],
            "γ is PyTorch's weight decay, γ/2 ‖w‖²; the Hessian is that of the unregularised loss over the stated "
            "number "
            "of training images",
            "several seeds where the paper has one run",
        ],
        figures={"weight-decay": draw},
        together=_together,
        **more,
    )


_DIGITS = {"data": "digits", "images": 300, "epochs": 20, "lr": 0.05, "points": 200, "seeds": 2, "stack": True}
_SPLIT = {"data": "mnist", "images": 45000, "validation": 5000, "points": 10000, "stack": True}
_SMALL = {"data": "mnist", "images": 10000, "validation": 5000, "points": 3000, "seeds": 3, "stack": True}


def _mlp(name: str, widths: list[int], words: str) -> Study:
    net = {"net": "mlp_9960", "args": {"widths": widths}}
    return _study(
        {
            "smoke": {**_DIGITS, **net},
            "small": {**_SMALL, **net, "epochs": 50, "lr": 0.03},
            "medium": {**_SPLIT, **net, "epochs": 50, "lr": 0.01, "seeds": 5},
            "paper": {**_SPLIT, **net, "epochs": 50, "lr": 0.01, "seeds": 1},
        },
        {
            "smoke": f"{words}; built-in digits resized, 20 epochs",
            "small": f"{words}; 10,000 images, three times the paper's rate",
            "medium": f"{words}; five seeds",
            "paper": words,
        },
        name=name,
        title=f"Weight decay and sharpness: MLP 784-{'-'.join(map(str, widths))}-10 on MNIST",
        claims=_claims("section 4, figure 2", "figure only, rising", "94.4, 96.46, 96.7 %"),
    )


MLP_9960 = _mlp(
    "false-friend-l2-mlp-9960",
    [10, 100],
    "the stated 9,960 parameters are those of 784-10-100-10, not of one hidden layer of 100",
)
MLP_100 = _mlp(
    "false-friend-l2-mlp-100", [100], "one hidden layer of 100 as the text says: 79,510 parameters, not 9,960"
)


_START = (
    "; initialised as in DeepOBS, whose network has the paper's number of parameters: from PyTorch's smaller weights "
    "seven of nine runs stayed at the loss of chance. So short a training leaves the networks far from the paper's "
    "training accuracies of 86 to 88%, so that little can be decided"
)


def _convolutional(
    net: str, title: str, lr: float, place: str, eigenvalues: str, accuracies: str, **more: Any
) -> Study:
    common = {"net": net, "data": "cifar100", "lr": lr, "augment": True, "stack": False, "mode": "train", "curve": 10}
    shorter, longer = {"images": 10000, "epochs": 20}, {"images": 28000, "epochs": 40}
    medium = longer if net == "allcnnc" else shorter
    start = _START if net == "allcnnc" else ""
    tiny: dict[str, Any] = {
        "allcnnc": {"net": "digits_cnn", "images": 100},
        "preresnet164": {"args": {"depth": 11}, "images": 4},
        "wrn28_10": {"args": {"depth": 10, "width": 1}, "images": 4},
    }[net]
    return _study(
        {
            "smoke": {**common, "data": "digits", "test_images": 4, "epochs": 1, "points": 2, "seeds": 1, "quick": True,
                      "curve": 1, **tiny},
            "small": {**common, "images": 1000, "test_images": 1000, "epochs": 3, "points": 200, "seeds": 3},
            "medium": {**common, **medium, "test_images": 4000, "points": 500, "seeds": 3, "precision": "bfloat16"},
            "paper": {**common, "epochs": 300, "points": 45000, "seeds": 1, "images": 45000, "validation": 5000},
        },
        {
            "smoke": "built-in digits, a much smaller network of the kind, one epoch",
            "small": "1,000 images, three epochs",
            "medium": f"the first {medium['images']:,} images, {medium['epochs']} epochs of 300, trained with products "
            "in bfloat16 (measured in float32); λ₁ over 500 images in one batch, BatchNorm in "
            "training mode, dropout off; accuracy on the first 4,000 test images" + start,
            "paper": "none in size",
        },
        name=f"false-friend-l2-{net.replace('_', '-')}",
        title=f"Weight decay and sharpness: {title} on CIFAR-100",
        claims=_claims(place, eigenvalues, accuracies),
        **more,
    )  # fmt: skip


ALLCNNC = _convolutional(
    "allcnnc", "All-CNN-C", 0.01, "section 4, figure 3", "figure only, rising", "gap 32.4, 32.5, 31.1 %",
)  # fmt: skip
PRERESNET = _convolutional(
    "preresnet164", "PreResNet-164", 0.1, "section 4, figure 4", "above 20 at the larger γ", "72.78, 75.56, 76.76 %",
    unrun="nine trainings of a 164-layer network: `medium` is estimated at half an hour on one H200",
)  # fmt: skip
WRN = _convolutional(
    "wrn28_10", "WRN-28-10", 0.1, "section 4, figure 5", "figure only, rising", "75.2, 79.5, 80.6 %",
    unrun="nine trainings of a network of 36.5 million parameters: `medium` is estimated at an hour on one H200",
)  # fmt: skip

STUDIES = (MLP_9960, MLP_100, ALLCNNC, PRERESNET, WRN)
