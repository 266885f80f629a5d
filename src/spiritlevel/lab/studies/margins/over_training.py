"""Figure 3 and appendix B.1 of Lengyel et al. 2021: per-sample traces against ACEHT and margins while training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from spiritlevel.analyses.measuring import per_sample
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.datasets import LabelledData
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, points_of, trained_alone, training_data, with_common
from spiritlevel.lab.studies.noisy_trace import stopped_traces, trained_draw
from spiritlevel.lab.studies.quantities import Quantity, exact, over_seeds, pearson, spearman, without_outliers
from spiritlevel.lab.studies.study import Outcome, Place, Row, Settings, Study, Table

PAPER = "Lengyel et al. 2021"
FEWEST_WRONG = 15  # points below which a correlation over wrong points says nothing
NOISY_POINTS = 60


def snapshot_steps(steps: int) -> list[int]:
    """Return when to look: at the start, then at shares of training that grow."""
    return sorted({round(steps * share) for share in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)})


def correlations(problem: Problem) -> tuple[Row, dict[str, list[float]]]:
    """Return the correlations of one snapshot, for correct and wrong points, and the points themselves."""
    found = per_sample(problem, ["hessian_trace", "aceht", "margin_bound", "softmax_margin", "loss"])
    points = {name: values.numpy() for name, values in found.items()}
    right = points["softmax_margin"] > 0
    row: Row = {"loss": float(points["loss"].mean()), "accuracy": float(right.mean()), "wrong": int((~right).sum())}
    for group, chosen in (("correct", right), ("wrong", ~right)):
        if group == "wrong" and chosen.sum() < FEWEST_WRONG:
            continue
        trace = points["hessian_trace"][chosen]
        for name in ("aceht", "margin_bound"):
            value = points[name][chosen]
            kept = without_outliers(value, trace)
            row[f"r_{name}_{group}"] = pearson(value[kept], trace[kept])
            row[f"r_{name}_{group}_all"] = pearson(value, trace)
            row[f"rank_{name}_{group}"] = spearman(value, trace)
            row[f"removed_{name}_{group}"] = int((~kept).sum())
    slack, label_probability = points["margin_bound"] - points["aceht"], np.exp(-points["loss"])
    row["slack_against_confidence"] = spearman(slack, label_probability)
    columns = {name: points[name].tolist() for name in ("hessian_trace", "aceht")}
    return row, {**columns, "correct": right.astype(float).tolist()}


def noisy_correlations(problem: Problem, points: LabelledData, seed: int) -> Row:
    """Return r over some correct and wrong points with traces as PyHessian's stopping rule leaves them, and exact."""
    found = per_sample(problem, ["hessian_trace", "aceht", "softmax_margin"])
    right = found["softmax_margin"] > 0
    row: Row = {}
    for group, chosen in (("correct", right), ("wrong", ~right)):
        which = torch.nonzero(chosen)[:NOISY_POINTS, 0]
        if len(which) < FEWEST_WRONG:
            continue
        draw = trained_draw(problem.model, points.x[which], points.y[which])
        noisy, _ = stopped_traces(draw, len(which), seed=seed)
        aceht = found["aceht"][which]
        row[f"r_stopped_{group}"] = pearson(aceht, noisy)
        row[f"r_same_points_{group}"] = pearson(aceht, found["hessian_trace"][which])
    return row


def _train(group: Sequence[Settings], place: Place) -> list[list[tuple[int, nn.Module, LabelledData]]]:
    """Train one network and keep copies of it along the way, with the points they are looked at on."""
    import copy

    (settings,) = group
    data = training_data(settings, place)
    points = points_of(data, settings["points"], settings["seed"])
    when = snapshot_steps(settings["steps"])
    kept: list[tuple[int, nn.Module, LabelledData]] = []

    def keep(step: int, model: nn.Module, loss: Any) -> None:
        if step in when:
            kept.append((step, copy.deepcopy(model).eval(), points))

    trained_alone(settings, data, place, on_step=keep)
    return [kept]


def _measure(settings: Settings, kept: Any, place: Place) -> Outcome:
    rows, columns = [], {}
    noisy_at: int | None = None
    for step, model, points in kept:
        problem = Problem(model, points.tensors)
        row, found = correlations(problem)
        # Half-trained networks have both kinds of points: the noise of the paper's estimator is looked at there.
        if noisy_at is None and settings["noisy"] and row["wrong"] >= FEWEST_WRONG and row["accuracy"] > 0.5:
            noisy_at = step
            row.update(noisy_correlations(problem, points, settings["seed"]))
        rows.append({"step": step, **row})
        if settings["seed"] == 0 and step in (kept[0][0], kept[len(kept) // 2][0], kept[-1][0]):
            columns.update({f"{name}@{step}": values for name, values in found.items()})
    return Outcome(rows, columns)


def _analyse(table: Table) -> dict[str, Quantity]:
    per_seed: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        per_seed.setdefault(name, []).append(value)

    for _, own in table.by("run"):
        accuracy, wrong = own.column("accuracy"), own.column("r_aceht_wrong")
        share = np.diff(own.column("step"), prepend=0) / own.column("step")[-1]  # looks are denser at the start
        for name in ("aceht", "margin_bound"):
            r = own.column(f"r_{name}_correct")
            add(f"share_high_{name}", float(np.sum(share * (r >= 0.8))))
            add(f"first_{name}", float(r[0]))
            add(f"final_{name}", float(r[-1]))
            add(f"final_{name}_all_points", float(own.column(f"r_{name}_correct_all")[-1]))
            add(f"rises_{name}", spearman(r, accuracy))
        if np.isfinite(wrong).any():
            add("r_wrong", float(np.nanmean(wrong)))
            add("r_wrong_all_points", float(np.nanmean(own.column("r_aceht_wrong_all"))))
            add("rank_wrong", float(np.nanmean(own.column("rank_aceht_wrong"))))
            together = np.isfinite(wrong)
            add("r_correct_then", float(np.nanmean(own.column("r_aceht_correct")[together])))
        for name in ("r_stopped_correct", "r_stopped_wrong", "r_same_points_correct", "r_same_points_wrong"):
            values = own.column(name)
            if np.isfinite(values).any():
                add(name, float(values[np.isfinite(values)][0]))
        add("slack_against_confidence", float(own.column("slack_against_confidence")[-1]))
        add("final_accuracy", float(accuracy[-1]))
    found = {name: over_seeds(values) for name, values in per_seed.items()}
    found["runs"] = exact(len(table.runs))
    return found


_WRONG = (
    "With exact traces misclassified points do correlate: r is {r_wrong} without outliers, {r_wrong_all_points} "
    "with all "
    "of them, rank correlation {rank_wrong}, at looks where correct points have {r_correct_then}."
)
_NOISE = (
    " On the same few points of a half-trained network the exact traces of wrong points give {r_same_points_wrong} and "
    "the traces left by PyHessian's stopping rule {r_stopped_wrong} (correct points: {r_same_points_correct} and "
    "{r_stopped_correct}): the noise takes more from the wrong points, but does not hide their correlation."
)


def _claims(place: str, noisy: bool) -> tuple[Claim, ...]:
    return (
        Claim(
            "aceht-correlates",
            "For most of training ACEHT and the trace of correctly classified points correlate with r between 0.8 "
            "and 1",
            place,
            "r in [0.8, 1] most of the time",
            (Within("share_high_aceht", 0.5),),
            shown=("share_high_aceht", "final_aceht"),
            otherwise="The share of training with r ≥ 0.8 is {share_high_aceht}; at the end r is {final_aceht} "
            "after the "
            "outliers that LocalOutlierFactor names were removed and {final_aceht_all_points} with all points.",
        ),
        Claim(
            "bound-correlates",
            "The softmax-margin bound and the trace of correctly classified points correlate as well",
            place,
            "r in [0.8, 1] most of the time",
            (Within("share_high_margin_bound", 0.5),),
            shown=("share_high_margin_bound", "final_margin_bound"),
            otherwise="The share of training with r ≥ 0.8 is {share_high_margin_bound}; at the end r is "
            "{final_margin_bound} without outliers and {final_margin_bound_all_points} with all points.",
        ),
        Claim(
            "rises-with-accuracy",
            "The correlation increases with the training accuracy",
            place,
            "direction only",
            (Within("rises_aceht", 1e-9),),
            otherwise="Spearman's correlation of r and accuracy over the looks is {rises_aceht} for ACEHT and "
            "{rises_margin_bound} for the bound: r is {first_aceht} at the first look already and {final_aceht} at the "
            "last, while the accuracy ends at {final_accuracy}, so there is nothing left to rise with it.",
        ),
        Claim(
            "wrong-points",
            "Misclassified points do not show a correlation",
            place,
            "none visible",
            (Within("r_wrong", -0.3, 0.3),),
            otherwise=_WRONG + (_NOISE if noisy else ""),
        ),
        Claim(
            "slack-falls",
            "The slack of the margin bound falls as the label's probability grows",
            "section 3.2",
            "direction only",
            (Within("slack_against_confidence", -1.0, -1e-9),),
            otherwise="Spearman's correlation of slack and label probability at the end is "
            "{slack_against_confidence}, at "
            "an accuracy of {final_accuracy}: a point that is wrong with confidence closes the bound although its "
            "label's "
            "probability is small.",
        ),
    )


def _draw(table: Table) -> Any:
    figure, axes = drawing.panels(3)
    for axis, name, title in ((axes[0], "aceht", "ACEHT"), (axes[1], "margin_bound", "margin bound")):
        groups = {}
        for kind in ("correct", "wrong"):
            steps = table.values("step")
            columns = [table.where(step=step).column(f"r_{name}_{kind}") for step in steps]
            means = [float(np.mean(c[np.isfinite(c)])) if np.isfinite(c).any() else np.nan for c in columns]
            groups[kind] = (steps, means)
        drawing.lines(axis, groups)
        axis.set_xscale("log")
        axis.set_ylim(-0.6, 1.05)
        drawing.label(axis, "step", "r with the trace", title)
    draw_last_look(axes[2], table)
    return figure


def draw_last_look(axis: Any, table: Table) -> None:
    """Draw every point's trace over its ACEHT at the last look at one network."""
    own = table.where(seed=0).runs[0]
    last = max(int(name.partition("@")[2]) for name in own.columns)
    right = np.array(own.columns[f"correct@{last}"]) > 0
    x, y = np.array(own.columns[f"aceht@{last}"]), np.array(own.columns[f"hessian_trace@{last}"])
    drawing.dots(axis, {"correct": (x[right], y[right]), "wrong": (x[~right], y[~right])})
    drawing.label(axis, "ACEHT", "Hessian trace of a sample", f"step {last}")


Grid = dict[str, dict[str, Any]]


def _study(
    name: str, title: str, place: str, sizes: Grid, departures: Callable[[str], Sequence[str]], **more: Any
) -> Study:
    def grid(size: str) -> list[Settings]:
        own = dict(sizes[size])
        seeds = own.pop("seeds")
        return with_common(crossed(seed=range(seeds)), optimizer="sgd", **own)

    return Study(
        name=name,
        title=title,
        paper=PAPER,
        grid=grid,
        train=_train,
        measure=_measure,
        analyse=_analyse,
        claims=_claims(place, sizes["medium"]["noisy"]),
        departures=departures,
        figures={"correlations": _draw},
        **more,
    )


def _departures(data: str, unstated: str) -> Callable[[str], list[str]]:
    def listed(size: str) -> list[str]:
        own = {
            "smoke": "built-in digits resized to the network's images, a few steps, few points",
            "small": f"fewer steps on part of {data}",
            "medium": "several seeds where the paper has one run",
            "paper": "none in size",
        }[size]
        return [
            own,
            unstated,
            "traces are exact and taken in evaluation mode; the paper samples them with PyHessian",
            "outliers are removed for correct and wrong points apart, on standardised axes, 20 neighbours: the paper "
            "names LocalOutlierFactor without its settings",
        ]

    return listed


_LENET = "learning rate and batch size are not stated for LeNet: 0.1 and 128, SGD without momentum"
_FCNBN = "widths are not stated: three layers of 512"
_TINY = {
    "data": "digits",
    "net": "digits_cnn",
    "batch_size": 64,
    "lr": 0.1,
    "steps": 200,
    "points": 300,
    "noisy": False,
}


LENET_MNIST = _study(
    "margins-lenet-mnist",
    "Traces, ACEHT and margins over training: LeNet on MNIST",
    "figure 3",
    {
        "smoke": {**_TINY, "seeds": 2},
        "small": {"data": "mnist", "net": "lenet5", "images": 20000, "batch_size": 128, "lr": 0.1, "steps": 1500,
                  "points": 1000, "noisy": True, "seeds": 3},
        "medium": {"data": "mnist", "net": "lenet5", "batch_size": 128, "lr": 0.1, "steps": 10000, "points": 1000,
                   "noisy": True, "seeds": 3},
        "paper": {"data": "mnist", "net": "lenet5", "batch_size": 128, "lr": 0.1, "steps": 10000, "points": 1000,
                  "noisy": True, "seeds": 1},
    },
    _departures("MNIST", _LENET),
)  # fmt: skip


def _fcnbn_mnist(batch: int) -> Study:
    large = {"data": "mnist", "net": "fcnbn", "batch_size": batch, "lr": 0.1, "points": 1000, "noisy": False}
    return _study(
        f"margins-fcnbn-mnist-{batch}",
        f"Traces, ACEHT and margins over training: batch-normalised network on MNIST, batches of {batch}",
        "appendix B.1",
        {
            "smoke": {**_TINY, "net": "fcnbn", "args": {"widths": [32, 32, 32]}, "batch_size": min(batch, 1024),
                      "steps": 60, "seeds": 2},
            "small": {**large, "images": 20000, "args": {"widths": [128, 128, 128]}, "steps": 1000, "seeds": 3},
            "medium": {**large, "steps": 10000, "seeds": 3},
            "paper": {**large, "steps": 10000, "seeds": 1},
        },
        _departures("MNIST, three layers of 128", _FCNBN),
    )  # fmt: skip


STUDIES = (LENET_MNIST, _fcnbn_mnist(256), _fcnbn_mnist(4096))
