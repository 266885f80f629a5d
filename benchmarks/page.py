"""How large the page of 60,000 samples is and how soon it is ready: ``python -m benchmarks.page [--samples N]``.

Ready is when the first screen with its figure and table is drawn; everything is when all folds are open and drawn.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from spiritlevel import page
from spiritlevel.measures.registry import DEFAULT, MEASURES
from spiritlevel.results import Report
from spiritlevel.results.header import Header
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import Estimate

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-3d-apis",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
LARGEST, SLOWEST = 2_000_000, 1.5  # bytes, seconds


def columns_of(samples: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return five made-up quantities of so many samples, some of them misclassified."""
    rng = np.random.default_rng(seed)
    margin = rng.normal(6, 2.5, samples)
    trace = 50 * np.exp(-margin + rng.normal(0, 0.3, samples))
    columns = {
        "hessian_trace": trace,
        "aceht": trace * np.exp(rng.normal(0, 0.2, samples)) / 30,
        "margin_bound": trace * np.exp(rng.normal(0, 0.4, samples)) / 10,
        "output_margin": margin,
        "softmax_margin": np.tanh(margin / 2),
    }
    return {name: torch.from_numpy(values) for name, values in columns.items()}


def report_of(samples: int) -> Report:
    """Return a report with the default measures and five quantities of every sample."""
    layers = {f"layer{i}": Estimate(float(i + 1)) for i in range(8)}
    return Report(
        estimates={name: Estimate(float(i + 1), verified=True) for i, name in enumerate(DEFAULT)},
        per_layer={"hessian_trace": layers, "normalized_sharpness": layers},
        per_sample=columns_of(samples),
        header=Header(model="made up", samples=samples, samples_total=samples, loss=0.1),
        titles={name: MEASURES[name].title for name in DEFAULT},
    )


def ready_times(file: Path, repeats: int) -> list[tuple[float, float]]:
    """Return seconds to the first screen and to everything drawn, each from a browser's fresh context."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise UsageError("the time to ready needs a Chromium browser, and none was found; run apt-get install chromium")
    times = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        for _ in range(repeats):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            opened = context.new_page()
            opened.goto(file.as_uri())
            opened.wait_for_selector("body[data-ready]")
            first = float(opened.get_attribute("body", "data-ready") or "nan") / 1000
            start = time.perf_counter()
            opened.evaluate("document.querySelectorAll('details.fold').forEach(fold => { fold.open = true; })")
            opened.wait_for_function(
                "Array.from(document.querySelectorAll('.plot')).every(plot => plot.querySelector('svg'))"
            )
            times.append((first, first + time.perf_counter() - start))
            context.close()
        browser.close()
    return times


def main() -> None:
    """Write the page, open it a few times and print what it took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    report = report_of(asked.samples)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        start = time.perf_counter()
        page.write(page.of_reports(report), file)
        written = time.perf_counter() - start
        size = file.stat().st_size
        times = ready_times(file, asked.repeats)
    first, everything = (statistics.median(column) for column in zip(*times))
    figures = len(page.figures(page.of_reports(report)))
    print(f"{asked.samples:,} samples, {figures} figures, {asked.repeats} openings, median:")
    print(f"  size        {size / 1e6:6.2f} MB   (limit {LARGEST / 1e6:.1f})")
    print(f"  ready       {first:6.2f} s    (limit {SLOWEST})")
    print(f"  everything  {everything:6.2f} s")
    print(f"  written in  {written:6.2f} s")
    if size > LARGEST or first > SLOWEST:
        raise SystemExit("over the limit")


if __name__ == "__main__":
    main()
