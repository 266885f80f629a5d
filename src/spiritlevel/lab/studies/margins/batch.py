"""Table 1 and figure 4 of Lengyel et al. 2021: small against large batches, flatness and margins side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from spiritlevel.analyses.measuring import measure, per_sample
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.studies import drawing
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, held_out_data, points_of, train_stack, training_data, with_common
from spiritlevel.lab.studies.quantities import Quantity, over_seeds, pearson, ratio_over_seeds, spearman
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table
from spiritlevel.lab.training import evaluate

POINTS = 1000


def _grid(size: str) -> list[Settings]:
    common: dict[str, Any] = {"net": "fcnbn", "data": "mnist", "lr": 0.1, "optimizer": "sgd"}
    small, large, steps, longer, seeds = 256, 4096, 10000, 20000, 5
    if size == "smoke":
        common |= {"data": "digits", "args": {"widths": [32, 32, 32]}}
        small, large, steps, longer, seeds = 32, 512, 60, 120, 2
    elif size == "small":
        common |= {"images": 12000, "args": {"widths": [128, 128, 128]}}
        small, large, steps, longer, seeds = 64, 1024, 1500, 3000, 5
    elif size == "paper":
        seeds = 1
    arms = [
        {"arm": "small", "batch_size": small, "steps": steps},
        {"arm": "large", "batch_size": large, "steps": steps},
        {"arm": "longer", "batch_size": large, "steps": longer},
    ]
    return with_common([{**arm, **seed} for arm in arms for seed in crossed(seed=range(seeds))], **common)


def _together(settings: Settings) -> str:
    arm: str = settings["arm"]
    return arm


def _measure(settings: Settings, model: nn.Module, place: Place) -> Outcome:
    data, test = training_data(settings, place), held_out_data(settings, place)
    on_train, on_test = evaluate(model, data), evaluate(model, test)
    report = measure(Problem(model, data.tensors), measures=["hessian_trace", "margin_skewness", "output_margin"])
    margins = report.per_sample["output_margin"].numpy()
    points = points_of(data, POINTS, 0)
    found = per_sample(Problem(model, points.tensors), ["hessian_trace", "output_margin"])
    trace, margin = found["hessian_trace"].numpy(), found["output_margin"].numpy()
    row = {
        "train_loss": on_train.loss,
        "test_loss": on_test.loss,
        "train_accuracy": on_train.accuracy,
        "test_accuracy": on_test.accuracy,
        "hessian_trace": float(report["hessian_trace"]),
        "margin_skewness": float(report["margin_skewness"]),
        "third_moment": float(((margins - margins.mean()) ** 3).mean()),
        "smallest_margin": float(margins.min()),
        "median_margin": float(np.median(margins)),
        "tenth_percentile": float(np.quantile(margins, 0.1)),
        "rank_trace_margin": spearman(trace, margin),
        "r_log_trace_margin": pearson(np.log(np.maximum(trace, 1e-300)), margin),
    }
    columns = {"trace": trace.tolist(), "margin": margin.tolist()} if settings["seed"] == 0 else {}
    return Outcome([row], columns)


def _analyse(table: Table) -> dict[str, Quantity]:
    small, large, longer = (table.where(arm=arm) for arm in ("small", "large", "longer"))
    names = ("hessian_trace", "test_accuracy", "train_loss", "margin_skewness", "smallest_margin", "median_margin")
    found = {f"{name}_{arm}": over_seeds(part.column(name)) for name in names
             for arm, part in (("small", small), ("large", large), ("longer", longer))}  # fmt: skip

    def gain(name: str, first: Table, second: Table) -> Quantity:
        count = min(len(first), len(second))
        return over_seeds(first.column(name)[:count] - second.column(name)[:count])

    count = min(len(small), len(large))
    found["trace_ratio"] = ratio_over_seeds(
        large.column("hessian_trace")[:count], small.column("hessian_trace")[:count]
    )
    found["accuracy_gain"] = gain("test_accuracy", small, large)
    found["skewness_difference"] = gain("margin_skewness", small, large)
    found["smallest_margin_difference"] = gain("smallest_margin", small, large)
    found["longer_minus_small_accuracy"] = gain("test_accuracy", longer, small)
    found["longer_minus_large_accuracy"] = gain("test_accuracy", longer, large)
    found["longer_minus_large_margin"] = gain("median_margin", longer, large)
    found["rank_trace_margin"] = over_seeds(
        np.concatenate([small.column("rank_trace_margin"), large.column("rank_trace_margin")])
    )
    found["r_log_trace_margin"] = over_seeds(
        np.concatenate([small.column("r_log_trace_margin"), large.column("r_log_trace_margin")])
    )
    return found


def _draw(table: Table) -> Any:
    figure, axes = drawing.panels(2)
    runs = {run.settings["arm"]: run.columns for run in table.where(seed=0).runs if run.settings["arm"] != "longer"}
    drawing.dots(axes[0], {arm: (found["margin"], found["trace"]) for arm, found in runs.items()})
    axes[0].set_yscale("log")
    drawing.label(axes[0], "output margin", "Hessian trace of a sample")
    for colour, (arm, found) in zip(drawing.COLOURS, runs.items()):
        axes[1].hist(found["margin"], bins=40, histtype="step", color=colour, label=arm)
    axes[1].legend(fontsize=6, frameon=False)
    drawing.label(axes[1], "output margin", "points")
    return figure


def _departures(size: str) -> list[str]:
    own = {
        "smoke": "built-in digits, layers of 32, batches 32 and 512, 60 steps",
        "small": "12,000 images, layers of 128, batches 64 and 1,024, 1,500 steps",
        "medium": "five seeds where the paper has one",
        "paper": "none in size",
    }[size]
    return [
        own,
        "widths are not stated in the paper: 512",
        "the trace is that of the mean loss over all training images, in evaluation mode, exact",
        "margins are signed; the paper takes absolute values, which is the same at full training accuracy",
        "a third arm trains the large batch twice as long, for the remark that it catches up",
        "after the run, bounds of −1e9 in the rules, which stood for none, were written as open; no verdict changed",
    ]


STUDY = Study(
    name="margins-batch",
    title="Small and large batches: flatness and margins",
    paper="Lengyel et al. 2021",
    grid=_grid,
    train=train_stack,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim(
            "small-is-flatter",
            "At equal steps the small batch ends at a smaller Hessian trace",
            "table 1",
            "1.01 against 6.62 (ratio 6.6)",
            (Within("trace_ratio", 1.0),),
            shown=("trace_ratio", "hessian_trace_small", "hessian_trace_large"),
        ),
        Claim(
            "small-generalises",
            "At equal steps the small batch has the better test accuracy",
            "table 1",
            "0.9834 against 0.9794",
            (Within("accuracy_gain", 0.0),),
            shown=("accuracy_gain", "test_accuracy_small", "test_accuracy_large"),
        ),
        Claim(
            "more-left-skewed",
            "The margins of the small batch are more left-skewed",
            "figure 4c",
            "direction only",
            (Within("skewness_difference", at_most=0.0),),
            shown=("skewness_difference", "margin_skewness_small", "margin_skewness_large"),
            otherwise="The skewness is {margin_skewness_small} for the small and {margin_skewness_large} for the large "
            "batch, over all training images and not over 1,000 of them; the medians are {median_margin_small} and "
            "{median_margin_large}.",
        ),
        Claim(
            "smaller-minimum",
            "The small batch nevertheless has the smallest margin of all",
            "section 4.2",
            "direction only",
            (Within("smallest_margin_difference", at_most=0.0),),
            shown=("smallest_margin_difference", "smallest_margin_small", "smallest_margin_large"),
            otherwise="The smallest margin over the training images is {smallest_margin_small} with the small and "
            "{smallest_margin_large} with the large batch: further training has moved every point, the last ones too, "
            "away from the boundary.",
        ),
        Claim(
            "trace-follows-margin",
            "Hessian trace and output margin of the points are strongly related",
            "figures 4a, 4b",
            "a strong relationship",
            (Within("rank_trace_margin", -1.0, -0.7),),
            shown=("rank_trace_margin", "r_log_trace_margin"),
        ),
        Claim(
            "large-catches-up",
            "A large batch trained longer generalises as well as the small one",
            "section 4.2, after Hoffer et al. 2017",
            "catches up",
            (Within("longer_minus_small_accuracy", -0.001),),
            shown=("longer_minus_small_accuracy", "longer_minus_large_accuracy"),
            otherwise="Twice as many steps change the large batch's test accuracy by "
            "{longer_minus_large_accuracy} and leave it {longer_minus_small_accuracy} from the small batch's, while "
            "its "
            "median margin grows by {longer_minus_large_margin}. At equal steps the large batch had already seen "
            "sixteen "
            "times as many images, so time alone is not what it lacks.",
        ),
    ),
    departures=_departures,
    figures={"margins": _draw},
    together=_together,
)
