"""Run the benchmarks: ``python -m benchmarks [--quick] [--works NAME …] [--device cuda] [--output FILE]``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import curvature_works, growth, measure_works, peers, question_works, spectral_works, tables
from benchmarks.machine import describe, gain_of_threads
from benchmarks.timing import Work, measure

# Samples of each work.  A GPU gets data worth its while.
FULL = {
    "trace": 1024, "probes": 20, "lenet5": 2048, "fcnbn": 1024, "resnet18": 128, "peer_samples": 24, "layers": 256,
    "top": 96, "density": 96, "density_probes": 10, "density_steps": 80, "descent_steps": 5000, "papers": 10_000,
    "questions": 500,
}  # fmt: skip
QUICK = {
    "trace": 64, "probes": 8, "lenet5": 64, "fcnbn": 64, "resnet18": 8, "peer_samples": 1, "layers": 64,
    "top": 64, "density": 32, "density_probes": 5, "density_steps": 20, "descent_steps": 300, "papers": 64,
    "questions": 64,
}  # fmt: skip
ON_GPU = {**FULL, "lenet5": 60_000, "fcnbn": 60_000, "resnet18": 10_000, "layers": 2048, "top": 2048, "density": 2048,
          "papers": 10_000}  # fmt: skip


def works(device: torch.device, sizes: dict[str, int]) -> dict[str, Callable[[], Work]]:
    """Return every work by name; material and exact answers are made when one is called."""
    traces = curvature_works.all_sample_traces(device, sizes)
    measures = measure_works.all_measure_works(device, sizes)
    comparison, audit = question_works.questions(device, sizes["questions"])
    return {
        "trace_diagonal": lambda: curvature_works.trace_and_diagonal(device, sizes["trace"], sizes["probes"]),
        "sample_traces_lenet5": traces[0],
        "sample_traces_fcnbn": traces[1],
        "sample_traces_resnet18": traces[2],
        "layer_tops": lambda: spectral_works.layer_tops(device, sizes["layers"]),
        "top_five": lambda: spectral_works.top_five(device, sizes["top"]),
        "density": lambda: spectral_works.density(
            device, sizes["density"], sizes["density_probes"], sizes["density_steps"]
        ),
        "normalised_sharpness": measures[0],
        "papers_one_pass": measures[1],
        "papers": measures[2],
        "comparison": comparison,
        "audit": audit,
    }


def main(arguments: list[str] | None = None) -> None:
    """Run what was asked for, write the results and the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Spiritlevel beside its peers.")
    parser.add_argument("--quick", action="store_true", help="small sizes for a first look; the page is left alone")
    parser.add_argument("--works", nargs="+", metavar="NAME", help="some of the works, or 'growth'")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=None, help="rounds (default 5, with --quick 3)")
    parser.add_argument("--papers-samples", type=int, default=None, help="images for the papers' measures")
    parser.add_argument("--update", action="store_true", help="replace these works in the stored results and the page")
    parser.add_argument("--output", type=Path, default=None, help="where the results go, as JSON")
    asked = parser.parse_args(arguments)

    device = torch.device(asked.device)
    sizes = dict(QUICK if asked.quick else ON_GPU if device.type == "cuda" else FULL)
    if asked.papers_samples:
        sizes["papers"] = asked.papers_samples
    every = works(device, sizes)
    chosen = asked.works or [*every, "growth"]
    unknown = [name for name in chosen if name not in every and name != "growth"]
    if unknown:
        parser.error(f"there is no work {unknown[0]!r}; the names are {', '.join([*every, 'growth'])}")
    for name, why in peers.missing().items():
        say(f"{name}: {why}; its rows are left out.")

    start = time.perf_counter()
    repeats = asked.repeats or (3 if asked.quick else 5)
    stored = tables.RESULTS / f"{device.type}.json"
    output = asked.output or (stored if not asked.quick and (asked.works is None or asked.update) else None)
    result: dict[str, Any] = {"machine": describe(device), "sizes": sizes, "quick": asked.quick, "works": []}
    if asked.update and stored.exists():
        result = tables.merged(json.loads(stored.read_text(encoding="utf-8")), result, [*every])
    if device.type == "cpu":
        result["gain_of_threads"] = gain_of_threads()
    for name in chosen:
        began = time.perf_counter()
        new: dict[str, Any] = {"machine": result["machine"], "works": []}
        if name == "growth":
            new["growth"] = growth.growth(device, growth.axes(device, quick=asked.quick), say)
        else:
            new["works"].append(measure(every[name](), repeats, device, say))
        result = tables.merged(result, new, [*every])
        if output is not None and (name == chosen[-1] or output != stored or asked.update):
            tables.write_results(
                result, output
            )  # after every work: a long run that is stopped has not been for nothing
        say(f"  ({time.perf_counter() - began:.0f} s)")
    say(f"All in {time.perf_counter() - start:.0f} s.")
    if output == stored:
        tables.write_page(tables.stored())
    print(tables.section(result))


def say(line: str) -> None:
    """Tell how far the run is."""
    print(line, flush=True)


if __name__ == "__main__":
    main()
