"""Running a grid: what is finished is kept, what is missing is computed here, in local processes, or on Ray."""

from __future__ import annotations

import logging
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from spiritlevel.lab.studies.store import RunStore
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study
from spiritlevel.lab.studies.telling import logger, print_lines
from spiritlevel.values.errors import UsageError
from spiritlevel.values.extras import need_of_extra

ENGINES = ("here", "processes", "ray")
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Work:
    """Runs trained together: the unit that is handed to a worker."""

    study: str
    settings: tuple[Settings, ...]
    place: Place
    threads: int


@dataclass(frozen=True)
class Done:
    """What came back from a worker."""

    work: Work
    outcomes: tuple[Outcome, ...]
    seconds: float
    environment: dict[str, Any]


def run_study(
    study: Study,
    size: str,
    store: RunStore,
    *,
    place: Place | None = None,
    engine: str = "here",
    workers: int = 1,
    address: str | None = None,
    on_progress: OnProgress | None = None,
) -> int:
    """Compute the runs of a size that the store does not have and return how many that were.

    Runs are stored as they finish, by this process: killed at any moment, the next call goes on from there, and a group
    that was under way is computed again from its seeds.
    """
    if engine not in ENGINES:
        raise UsageError(f"There is no engine {engine!r}: the engines are {', '.join(ENGINES)}.")
    if workers < 1:
        raise UsageError(f"workers={workers} must be at least 1.")
    place = place or Place()
    groups = study.groups(size)
    threads = max(1, (os.cpu_count() or 1) // workers) if engine == "processes" else 0
    missing = [group for group in groups if not all(store.has(study, settings) for settings in group)]
    work = [Work(study.name, tuple(group), place, threads) for group in missing]
    total, done = sum(map(len, groups)), sum(map(len, groups)) - sum(map(len, missing))
    if on_progress is not None:
        on_progress(study.name, done, total)
    for finished in _engine(engine, workers, address)(work):
        for settings, outcome in zip(finished.work.settings, finished.outcomes, strict=True):
            if not store.has(study, settings):
                each = finished.seconds / len(finished.outcomes)
                store.write(study, settings, outcome, each, finished.environment)
        done += len(finished.outcomes)
        if on_progress is not None:
            on_progress(study.name, done, total)
    return sum(map(len, missing))


def compute(work: Work) -> Done:
    """Train and measure one group of runs; the function that workers call."""
    import torch

    from spiritlevel.lab.studies.registry import study_named

    if work.threads:
        torch.set_num_threads(work.threads)
    study = study_named(work.study)
    started = time.perf_counter()
    trained = study.train(work.settings, work.place)
    halfway = time.perf_counter()
    outcomes = tuple(
        study.measure(settings, each, work.place) for settings, each in zip(work.settings, trained, strict=True)
    )
    ended = time.perf_counter()
    logger.info("%s: %s trained in %.1f s, measured in %.1f s", work.study, len(outcomes), halfway - started,
                ended - halfway)  # fmt: skip
    return Done(work, outcomes, ended - started, environment(work.place))


def environment(place: Place) -> dict[str, Any]:
    """Return what a run was computed with."""
    import torch

    from spiritlevel.analyses.measuring import versions

    device = torch.cuda.get_device_name() if place.device.startswith("cuda") else platform.machine()
    return {**versions(), "device": f"{place.device} ({device})"}


def _engine(name: str, workers: int, address: str | None) -> Callable[[Sequence[Work]], Iterator[Done]]:
    if name == "here":
        return lambda work: map(compute, work)
    if name == "processes":
        return lambda work: _in_processes(work, workers)
    return lambda work: _on_ray(work, address)


def _in_processes(work: Sequence[Work], workers: int) -> Iterator[Done]:
    """Yield groups as local processes finish them; one failure ends the rest after what is finished was handed over."""
    if not work:
        return
    import multiprocessing

    context = multiprocessing.get_context("spawn")  # a forked process cannot use a GPU
    # A bar in a terminal is the parent's; lines can come from anywhere.
    lines = logger.isEnabledFor(logging.INFO) and not sys.stderr.isatty()
    with ProcessPoolExecutor(
        min(workers, len(work)), mp_context=context, initializer=print_lines if lines else None
    ) as pool:
        waiting: set[Future[Done]] = {pool.submit(compute, each) for each in work}
        try:
            while waiting:
                finished, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                for each in finished:
                    yield each.result()
        finally:
            for each in waiting:
                each.cancel()


def _on_ray(work: Sequence[Work], address: str | None) -> Iterator[Done]:
    """Yield groups as a Ray cluster finishes them: the one at ``address``, or a local one started for the purpose."""
    if not work:
        return
    ray = need_of_extra("ray", "the engine ray", "ray")
    ours = not ray.is_initialized()
    if ours:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    on_gpu = work[0].place.device.startswith("cuda")
    remote = ray.remote(compute).options(num_cpus=1, num_gpus=1 if on_gpu else 0)
    try:
        waiting = [remote.remote(each) for each in work]
        while waiting:
            finished, waiting = ray.wait(waiting, num_returns=1)
            yield from ray.get(finished)
    finally:
        if ours:
            ray.shutdown()
