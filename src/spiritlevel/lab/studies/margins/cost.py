"""Section 3.2.1 of Lengyel et al. 2021: what per-sample traces cost against margins."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spiritlevel.analyses.measuring import per_sample
from spiritlevel.engine.problem import Problem
from spiritlevel.lab.studies.claims import Claim, Within
from spiritlevel.lab.studies.material import crossed, network, points_of, training_data, with_common
from spiritlevel.lab.studies.noisy_trace import stopped_traces, trained_draw
from spiritlevel.lab.studies.quantities import Quantity, ratio_over_seeds
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study, Table, trained_by_nothing


def _grid(size: str) -> list[Settings]:
    if size == "smoke":
        return with_common(crossed(seed=range(2)), data="digits", net="digits_mlp", points=60, sampled=2)
    points, sampled = (1000, 20) if size != "paper" else (60000, 1000)
    return with_common(crossed(seed=range(5)), data="mnist", net="lenet5", points=points, sampled=sampled)


def _seconds(work: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def _measure(settings: Settings, trained: Any, place: Place) -> Outcome:
    """Time margins, exact traces and sampled traces for each sample on its own, per sample."""
    data = training_data(settings, place)
    data = points_of(data, settings["points"], settings["seed"])
    model = network(settings, data, Place())
    few = settings["sampled"]

    def one_by_one() -> None:
        """Sample each point's trace on its own, as a loop over single points does."""
        for point in range(few):
            draw = trained_draw(model, data.x[point : point + 1], data.y[point : point + 1])
            stopped_traces(draw, 1, seed=point)

    def margins() -> None:
        per_sample(Problem(model, data.tensors), ["output_margin"])

    def traces() -> None:
        per_sample(Problem(model, data.tensors), ["hessian_trace"])

    margins()  # the first pass loads what later ones have
    row = {
        "margins_s": _seconds(margins, 3) / len(data),
        "exact_s": _seconds(traces, 1) / len(data),
        "sampled_s": _seconds(one_by_one, 1) / few,
    }
    return Outcome([row])


def _analyse(table: Table) -> dict[str, Quantity]:
    margins, exact, sampled = (table.column(f"{name}_s") for name in ("margins", "exact", "sampled"))
    return {
        "sampled_over_margins": ratio_over_seeds(sampled, margins),
        "exact_over_margins": ratio_over_seeds(exact, margins),
        "sampled_over_exact": ratio_over_seeds(sampled, exact),
    }


STUDY = Study(
    name="margins-cost",
    title="What per-sample traces cost against margins",
    paper="Lengyel et al. 2021",
    grid=_grid,
    train=trained_by_nothing,
    measure=_measure,
    analyse=_analyse,
    claims=(
        Claim(
            "thousand-times",
            "Sampled traces of all points cost about a thousand times what margins cost",
            "section 3.2.1",
            "1.5 h against 5 s: 1,080 times",
            (Within("sampled_over_margins", 1000.0),),
            shown=("sampled_over_margins",),
            otherwise="Sampling each point's trace until PyHessian's rule stops it costs {sampled_over_margins} times "
            "the margins here; the exact traces of all points together cost {exact_over_margins} times.",
        ),
        Claim(
            "exact-is-cheap",
            "The trace is impractical to compute for every point (ours: the exact trace of all points costs less "
            "than a "
            "hundred times the margins)",
            "section 3.2.1",
            "impractical",
            (Within("exact_over_margins", 100.0),),
            otherwise="Exact traces in one sweep cost {exact_over_margins} times what margins cost, a "
            "{sampled_over_exact}th of sampling point by point: the paper's cost is that of its estimator.",
        ),
    ),
    departures=lambda size: [
        "one thread of a CPU and LeNet as initialised; times a sample, from few samples where points are taken one "
        "by one",
        "margins are timed with all checks of the instrument, the network's two sweeps over the data included",
    ],
)
