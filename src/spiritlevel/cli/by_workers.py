"""Several weights files measured at once, by processes of this machine or tasks of a cluster."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch

from spiritlevel.cli.counting import pieces_counted
from spiritlevel.cli.failures import failure_in_words
from spiritlevel.cli.keeping import Keeper
from spiritlevel.cli.request import Request
from spiritlevel.cli.subject import NotLoaded, Subject
from spiritlevel.inputs.deadline import Deadline
from spiritlevel.inputs.process import memory_limit
from spiritlevel.inputs.process.workers import Workers, ended, threads_each
from spiritlevel.results import Report
from spiritlevel.results.numerals import value_text
from spiritlevel.values.errors import UsageError

SHOWN = 3  # measures in the line about a network that is finished


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """One weights file to measure, and all that a worker must know for it."""

    request: Request
    label: str
    path: str | None
    identity: str  # by which its report is known again
    folder: str  # that names of files begin in
    until: float | None  # by the clock of the day, which machines share


@dataclass(frozen=True, kw_only=True)
class MeasuredFile:
    """What became of a weights file: its report, or why there is none."""

    report: Report | None = None
    reason: str = ""
    refused: bool = False  # the request itself is wrong, whatever the file


def crew_of(subject: Subject, workers: int | None, address: str | None, files: int) -> Workers | None:
    """Return who measures so many weights files, None where this process does it by itself."""
    if workers is not None and workers < 1:
        raise UsageError(f"--workers {workers} must be at least 1")
    device = subject.request.device or next((str(each.device) for each in subject.named.model.parameters()), "cpu")
    if address is not None and files:
        return Workers(engine="ray", count=workers, address=address, on_gpu=device.startswith("cuda"))
    count = min(workers or 1, files)
    if count <= 1:
        return None
    return Workers(engine="processes", count=count, begin=_beginning(torch.device(device), count))


def by_workers(
    crew: Workers, keeper: Keeper, subject: Subject, deadline: Deadline | None, *, quiet: bool
) -> Generator[tuple[WeightsFile, MeasuredFile], None, None]:
    """Yield the weights files that are not kept, as they are finished."""
    files: dict[str, str | None] = dict(zip(keeper.labels, subject.request.weights or (None,)))
    waiting = [label for label in keeper.labels if label not in keeper.reports]
    known, at_once = len(keeper.reports), crew.count or 1

    def handed_out() -> Iterator[WeightsFile]:
        for place, label in enumerate(waiting):
            path = files[label]
            rounds = math.ceil((len(waiting) - place) / at_once)  # among which the time is divided
            yield WeightsFile(
                request=subject.request,
                label=label,
                path=path,
                identity=keeper.identify(path) if path is not None else "",
                folder=os.getcwd(),
                until=None if deadline is None else time.time() + deadline.left / rounds,
            )

    with pieces_counted("networks") as told, closing(ended(measure_file, handed_out(), crew)) as each_ended:
        for done, each in enumerate(each_ended, start=known + 1):
            lost = None if each.error is None else MeasuredFile(reason=failure_in_words(each.error))
            found = _on_the_same_data(lost or each.result, keeper)
            if not quiet:
                told.count(_in_a_line(each.piece.label, found), done, len(files))
            yield each.piece, found


def _on_the_same_data(found: MeasuredFile, keeper: Keeper) -> MeasuredFile:
    """Return what was found, but for a report on data that differs from the others': each worker opens it anew."""
    others = next(iter(keeper.reports.values()), None)
    if found.report is None or others is None or found.report.fingerprint == others.fingerprint:
        return found
    return MeasuredFile(
        reason="its worker found other data than the others, as the fingerprints show; fix the seed of what draws the "
        "data, or measure without --workers"
    )


def measure_file(file: WeightsFile) -> MeasuredFile:
    """Measure one weights file: what a worker does. The network and the data are built for the first, and kept."""
    try:
        subject = _subject(file)
        seconds = None
        if file.until is not None:
            whole = Deadline(file.request.seconds or 1.0)
            seconds = whole.share(max(file.until - time.time(), 0.0) / whole.left)
        return MeasuredFile(report=subject.report(file.path, progress=False, seconds=seconds))
    except (Exception, SystemExit) as error:
        refused = isinstance(error, UsageError) and not isinstance(error, NotLoaded)
        return MeasuredFile(reason=" ".join(failure_in_words(error).split()), refused=refused)


_HELD: dict[str, tuple[Request, Subject]] = {}  # the subject of the files before, in a worker


def _subject(file: WeightsFile) -> Subject:
    held = _HELD.get(file.folder)
    if held is None or held[0] != file.request:
        if os.getcwd() != file.folder:  # a task of a cluster begins elsewhere
            os.chdir(file.folder)
        _HELD.clear()
        held = _HELD[file.folder] = (file.request, Subject(file.request))
    return held[1]


def _beginning(device: torch.device, count: int) -> Callable[[int], None]:
    """Return what each of so many processes does first."""
    threads = threads_each(count)
    if device.type != "cuda":
        return partial(_begin, threads, memory_limit.free_bytes(device) // count)
    devices = _visible_devices() if device.index is None else ()
    sharing = math.ceil(count / max(len(devices), 1))
    return partial(_begin_on_gpu, threads, devices, device.index or 0, sharing)


def _begin(threads: int, memory: int, _: int) -> None:
    """Give a process its threads and its share of the memory."""
    torch.set_num_threads(threads)
    os.environ[memory_limit.VARIABLE] = str(memory)


def _begin_on_gpu(threads: int, devices: tuple[str, ...], index: int, sharing: int, number: int) -> None:
    """Give a process its threads, a GPU in turn where none was named, and its share of it."""
    torch.set_num_threads(threads)
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices[number % len(devices)]
    if sharing > 1:
        whole = torch.cuda.get_device_properties(index).total_memory
        os.environ[memory_limit.VARIABLE] = str(min(memory_limit.memory_limit() or whole, whole) // sharing)


def _visible_devices() -> tuple[str, ...]:
    """Return the GPUs that this process sees, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(each.strip() for each in named.split(",") if each.strip())
    return tuple(map(str, range(torch.cuda.device_count())))


def _in_a_line(label: str, found: MeasuredFile) -> str:
    if found.report is None:
        return f"{label} was not measured ({found.reason})"
    values = [f"{name} {value_text(estimate)}" for name, estimate in found.report.items()]
    more = ", …" if len(values) > SHOWN else ""
    return f"{label}  {', '.join(values[:SHOWN])}{more}"
