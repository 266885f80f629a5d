"""Running a grid: what is finished is kept, what is missing is computed here, in local processes, or on Ray."""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from spiritlevel.inputs.process.workers import Workers, ended, threads_each
from spiritlevel.lab.studies.store import RunStore
from spiritlevel.lab.studies.study import Outcome, Place, Settings, Study
from spiritlevel.lab.studies.telling import logger, print_lines

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
    place = place or Place()
    crew = Workers(
        engine=engine,
        count=None if engine == "ray" else workers,
        address=address,
        on_gpu=place.device.startswith("cuda"),
        begin=_print_lines if _by_lines() else None,
    )
    groups = study.groups(size)
    threads = threads_each(workers) if engine == "processes" else 0
    missing = [group for group in groups if not all(store.has(study, settings) for settings in group)]
    work = [Work(study.name, tuple(group), place, threads) for group in missing]
    total, done = sum(map(len, groups)), sum(map(len, groups)) - sum(map(len, missing))
    if on_progress is not None:
        on_progress(study.name, done, total)
    with closing(ended(compute, work, crew)) as each_ended:  # one failure ends the rest
        for finished in (each.result for each in each_ended):
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


def _by_lines() -> bool:
    """Whether processes print lines of their own: a bar in a terminal is their parent's."""
    return logger.isEnabledFor(logging.INFO) and not sys.stderr.isatty()


def _print_lines(_: int) -> None:
    print_lines()
