"""``spiritlevel demo``: two small networks on the built-in digits, trained with small and with large batches.

The set-up is that of Lengyel et al. 2021, section 4, in small: the same seed, the same number of steps of plain SGD,
and batches sixteen times as large for one of the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from rich.text import Text
from torch import nn

from spiritlevel.analyses.comparison import compare
from spiritlevel.cli.screens import console
from spiritlevel.engine.problem import Problem
from spiritlevel.lab import datasets, nets
from spiritlevel.lab.training import train
from spiritlevel.results.compared import Comparison
from spiritlevel.results.writing import check_outputs, replacing
from spiritlevel.values.errors import SpiritlevelError, UsageError

NETWORK = "digits_mlp"
BATCHES = {"small batch": 16, "large batch": 256}
LEARNING_RATE = 0.1
MEASURES = ("default", "relative_flatness", "aceht", "margin_skewness")
BINS, BAR = 14, 28
CAVEAT = "One pair of networks from one seed: an example of the measures, not evidence about batch size."

StepHook = Callable[[int, nn.Module, torch.Tensor], None]


def run_demonstration(folder: str, *, steps: int, seed: int, quiet: bool) -> int:
    """Train, compare, print the two networks side by side, and keep checkpoints, reports and the page in the folder."""
    with _one_thread():
        return _demonstrate(folder, steps=steps, seed=seed, quiet=quiet)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: for networks so small others only wait for each other, the more the busier the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _demonstrate(folder: str, *, steps: int, seed: int, quiet: bool) -> int:
    if steps < 1:
        raise UsageError(f"--steps must be at least 1, not {steps}")
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--folder {folder} cannot be made: {error.strerror or error}") from error
    files = [_file(place, label, ending) for label in BATCHES for ending in (".pt", ".json")]
    check_outputs([("--folder", file) for file in [*files, place / "comparison.json", place / "page.html"]])
    screen = console()
    training, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    screen.print(
        f"Two networks {NETWORK}, {len(training):,} digits to train on, {len(test)} to test; the same seed {seed}, "
        f"{steps:,} steps of SGD without momentum at learning rate {LEARNING_RATE:g} for both, batches of "
        f"{' and '.join(map(str, BATCHES.values()))} (after Lengyel et al. 2021, section 4)."
    )
    problems, headers = {}, {}
    for label, batch_size in BATCHES.items():
        model = nets.build(NETWORK, seed=seed)
        with _training_bar(label, steps, quiet) as advance:
            train(model, training, lr=LEARNING_RATE, batch_size=batch_size, steps=steps, seed=seed, on_step=advance)
        file = _file(place, label, ".pt")
        with replacing(file, "wb") as stream:
            _save_weights(model, stream)
        problems[label] = Problem(model, training.tensors)
        headers[label] = {
            "model": NETWORK, "weights": str(file), "data": "digits", "split": "train", "trained": True,
            "learning_rate": LEARNING_RATE,
        }  # fmt: skip
    if not quiet:
        print("measuring both, and which orderings survive rescaling …", file=sys.stderr, flush=True)
    comparison = compare(problems, list(MEASURES), test=test.tensors, headers=headers, progress=not quiet)
    screen.print(comparison.table())
    reports = comparison.reports
    margins = {label: report.per_sample["output_margin"].double().numpy() for label, report in reports.items()}
    for label, report in reports.items():
        report.save(_file(place, label, ".json"))
    comparison.save(place / "comparison.json")
    written = _page(comparison, place)
    for line in [*margin_lines(margins), "", CAVEAT, "", *_what_next(place, written)]:
        screen.print(Text(line))
    return 0


def _file(place: Path, label: str, ending: str) -> Path:
    return place / f"{label.replace(' ', '-')}{ending}"


def _page(comparison: Comparison, place: Path) -> str:
    """Write the page where its packages are installed, and say in one line where it is or how to get it."""
    try:
        comparison.html(place / "page.html")
    except SpiritlevelError as error:
        return f"No page was written: {error}."
    return f"The page to open is {place / 'page.html'}."


def margin_lines(margins: dict[str, np.ndarray]) -> list[str]:
    """Return the margin distributions as text: quartiles and skewness, then a histogram with common bins."""
    from scipy.stats import skew

    lines = ["", "Output margins of the training samples (label's output minus the strongest other one):"]
    lines.append(f"  {'':12}{'least':>9}{'quarter':>9}{'median':>9}{'3/4':>9}{'largest':>9}{'skewness':>10}")
    for label, values in margins.items():
        points = np.quantile(values, (0, 0.25, 0.5, 0.75, 1))
        lines.append(f"  {label:12}" + "".join(f"{point:9.2f}" for point in points) + f"{skew(values):10.2f}")
    edges = np.histogram_bin_edges(np.concatenate(list(margins.values())), bins=BINS)
    counts = {label: np.histogram(values, edges)[0] for label, values in margins.items()}
    highest = max(int(count.max()) for count in counts.values())
    lines += ["", "  " + " " * 18 + "".join(f"{label:<{BAR + 8}}" for label in counts)]
    for bin_ in range(BINS):
        bars = ""
        for count in counts.values():
            length = -(-int(count[bin_]) * BAR // highest)  # rounded up: one sample still shows
            bars += f"{'█' * length} {int(count[bin_]) or ''}".ljust(BAR + 8)
        lines.append(f"  {edges[bin_]:7.2f} … {edges[bin_ + 1]:6.2f} │{bars}".rstrip())
    return lines


def _what_next(place: Path, page: str) -> list[str]:
    return [
        f"Checkpoints, reports and the comparison are in {place}. {page}",
        "To try next:",
        f"  spiritlevel report {place}/small-batch.json --layers",
        f"  spiritlevel audit {NETWORK} {place}/small-batch.pt --data digits",
        f"  spiritlevel measure {NETWORK} {place}/*.pt --data digits:test --measures papers",
        "  spiritlevel measure your_module.py:YourNet your_weights.pt --data your_module.py:your_data",
        "  spiritlevel list measures",
    ]


def _save_weights(model: nn.Module, stream: IO[bytes]) -> None:
    try:
        torch.save(model.state_dict(), stream)
    except RuntimeError as error:  # torch reports a full disk this way
        raise SpiritlevelError(f"the weights could not be written: {error}") from error


@contextmanager
def _training_bar(label: str, steps: int, quiet: bool) -> Iterator[StepHook | None]:
    """Show on stderr how far a training is; yields the hook for the training loop."""
    stderr = Console(file=sys.stderr)
    if quiet or not stderr.is_terminal:
        if not quiet:
            print(f"training the {label} network …", file=sys.stderr, flush=True)
        yield None
        return
    with Progress(console=stderr, transient=True) as bar:
        task = bar.add_task(f"training, {label}", total=steps)

        def advance(done: int, model: nn.Module, loss: torch.Tensor) -> None:
            if done % 50 == 0 or done == steps:
                bar.update(task, completed=done)

        yield advance
