"""Interleaved timing of the same work by several contenders, with every answer's error beside its time."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils.flop_counter


@dataclass(frozen=True)
class Contender:
    """One way to do a work: ``run`` starts from the model and the data and returns the answer."""

    name: str
    run: Callable[[], Any]
    error: Callable[[Any], float]  # relative error of the answer against the exact one
    note: str = ""
    # The whole work is this many times what ``run`` does: a peer that would take hours runs a part of it.
    parts: Callable[[Any], float] = lambda answer: 1.0


@dataclass(frozen=True)
class Work:
    """A work with its contenders, ours first, and one gradient pass over the same data as the unit of cost."""

    name: str
    title: str
    unit: Callable[[], Any]
    contenders: Sequence[Contender]
    targets: dict[str, float] = field(default_factory=dict)  # contender -> times slower than ours, at least
    unavailable: dict[str, str] = field(default_factory=dict)  # contender -> why it has no row
    error_meaning: str = "relative error"
    limits: dict[str, float] = field(default_factory=dict)  # "passes" or "seconds" -> the most that ours may take
    # Where the time goes in its own words, each with its share; by operation where it has none.
    shares: Callable[[], list[tuple[str, float]]] | None = None


@dataclass
class Row:
    """What one contender's repetitions gave."""

    name: str
    seconds: list[float]
    error: float
    note: str
    ratios: list[float] = field(default_factory=list)  # seconds over ours, round by round
    passes: list[float] = field(default_factory=list)  # seconds over the unit's, round by round


def synchronise(device: torch.device) -> None:
    """Wait for the device, so that the clock sees the work and not its launch."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(run: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Return how long one run took, and its answer."""
    gc.collect()
    synchronise(device)
    start = time.perf_counter()
    answer = run()
    synchronise(device)
    return time.perf_counter() - start, answer


def measure(work: Work, repeats: int, device: torch.device, say: Callable[[str], None]) -> dict[str, Any]:
    """Run every contender once to warm up and check it, then all of them in turn, ``repeats`` times."""
    say(f"{work.title}")
    rows: list[Row] = []
    running: list[Contender] = []
    unavailable = dict(work.unavailable)
    parts: dict[str, float] = {}
    for contender in work.contenders:
        try:
            _, answer = seconds_of(contender.run, device)
        except Exception as error:  # a peer refuses in its own way; its sentence is the result
            unavailable[contender.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            continue
        rows.append(Row(contender.name, [], float(contender.error(answer)), contender.note))
        parts[contender.name] = contender.parts(answer)
        running.append(contender)
    unit: list[float] = []
    for _ in range(repeats):
        unit.append(min(seconds_of(work.unit, device)[0] for _ in range(3)))
        for contender, row in zip(running, rows):
            seconds, _ = seconds_of(contender.run, device)
            row.seconds.append(seconds * parts[contender.name])
    for row in rows:
        row.ratios = [mine / first for mine, first in zip(row.seconds, rows[0].seconds)]
        row.passes = [mine / one for mine, one in zip(row.seconds, unit)]
        say(f"  {row.name}: {spread(row.ratios)}x ours, {spread(row.passes)} gradient passes, error {row.error:.1e}")
    for name, reason in unavailable.items():
        say(f"  {name}: {reason}")
    found = {
        "name": work.name,
        "title": work.title,
        "error_meaning": work.error_meaning,
        "repeats": repeats,
        "unit_seconds": unit,
        "targets": work.targets,
        "limits": work.limits,
        "unavailable": unavailable,
        "rows": [vars(row) for row in rows],
    }
    if rows and any(not met for _, met in verdicts(found)):
        ours = work.contenders[0].run
        found["profile"] = work.shares() if work.shares is not None else profile(ours, device)
        if work.shares is None:
            found["arithmetic"] = arithmetic(ours, device) / statistics.median(rows[0].seconds)
    return found


def arithmetic(run: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds that a run's products and convolutions would take at the rate of a large matrix product."""
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counted:
        run()
    matrix = torch.randn(1024, 1024, device=device)

    def products() -> None:
        for _ in range(10):
            matrix @ matrix

    products()
    rate = 10 * 2 * 1024**3 / min(seconds_of(products, device)[0] for _ in range(5))
    return counted.get_total_flops() / rate


def verdicts(found: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return each target in words, with whether the medians meet it."""
    by_name = {row["name"]: row for row in found["rows"]}
    against = [
        (f"at least {number(wanted)} times as fast as {name}", statistics.median(by_name[name]["ratios"]) >= wanted)
        for name, wanted in found["targets"].items()
        if name in by_name
    ]
    units = {"passes": "gradient passes", "seconds": "s"}
    alone = [
        (f"at most {number(most)} {units[kind]}", statistics.median(found["rows"][0][kind]) <= most)
        for kind, most in found["limits"].items()
    ]
    return against + alone


def profile(run: Callable[[], Any], device: torch.device, lines: int = 8) -> list[tuple[str, float]]:
    """Return the operations that take the most time of a run, each with its share of all operations' time."""
    on_gpu = device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU] + [torch.profiler.ProfilerActivity.CUDA] * on_gpu
    with torch.profiler.profile(activities=activities) as record:
        run()
        synchronise(device)
    own = {
        event.key: event.self_device_time_total if on_gpu else event.self_cpu_time_total
        for event in record.key_averages()
        if event.key.startswith("aten::")
    }
    total = sum(own.values()) or 1.0
    largest = sorted(own.items(), key=lambda pair: -pair[1])[:lines]
    return [(name.removeprefix("aten::"), spent / total) for name, spent in largest]


def spread(values: Sequence[float]) -> str:
    """Write a median with the range around it."""
    if not values:
        return "–"
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{number(middle)} ({number(low)}–{number(high)})"


def number(value: float) -> str:
    """Write a number with about three figures."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "–"
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    rounded = round(value, digits)
    if 1e-3 <= abs(rounded) < 1e5:
        return f"{rounded:,.{max(0, digits)}f}"
    return f"{rounded:.1e}"


def best_setting(
    settings: Mapping[str, Callable[[], Any]],
    device: torch.device,
    accepted: Callable[[Any], bool] = lambda answer: True,
    rounds: int = 1,
) -> tuple[str, Callable[[], Any]]:
    """Return the fastest of several settings whose answer is accepted; of none, the last one.

    They take turns for some rounds, and the median counts: one run each would let the machine's mood choose.
    """
    seconds: dict[str, list[float]] = {}
    for name, run in settings.items():
        try:
            if accepted(run()):
                seconds[name] = []
        except Exception:  # a setting that fails is not the best one
            continue
    for _ in range(rounds):
        for name, taken in seconds.items():
            taken.append(seconds_of(settings[name], device)[0])
    best = min(seconds, key=lambda name: statistics.median(seconds[name])) if seconds else list(settings)[-1]
    return best, settings[best]


def relative(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the relative error of a tensor in norm."""
    found, exact = found.detach().double().cpu(), exact.detach().double().cpu()
    return float((found - exact).norm() / exact.norm())
