"""A command that torchrun starts on several ranks: all of them measure, the first one prints and writes."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from spiritlevel.cli.sharing import Command
from spiritlevel.values.errors import UsageError

if TYPE_CHECKING:
    from spiritlevel.inputs.process.meeting import Meeting

RENDEZVOUS = "SPIRITLEVEL_RENDEZVOUS"  # where the ranks find each other, if not as torchrun tells them
# Seconds that ranks have at least to find each other: some machines start later than others.
STARTING = 300.0


class _Group:
    """The ranks of the present command, where there are several."""

    def __init__(self) -> None:
        self.meeting: Meeting | None = None
        self.lost = False  # whether the command ended because of another rank


_GROUP = _Group()  # a process runs one command at a time


def by_ranks(command: Command) -> Command:
    """Return a command that is run by all ranks together where torchrun started it on several."""

    @functools.wraps(command)
    def run(**options: Any) -> int:
        if int(os.environ.get("WORLD_SIZE") or 1) < 2 or "RANK" not in os.environ:
            return command(**options)
        if options.get("workers") is not None or options.get("ray") is not None:
            raise UsageError("--workers and --ray share out weights files, and torchrun the data of one; leave one out")
        with _joined(options.get("timeout")):
            return command(**options)

    return run


@contextlib.contextmanager
def _joined(timeout: float | None) -> Iterator[None]:
    import torch
    from torch import distributed

    from spiritlevel.inputs.process.joining import joined, left_at_the_end, seconds_of
    from spiritlevel.inputs.process.meeting import RankLost
    from spiritlevel.inputs.process.ranks import measuring_by
    from spiritlevel.values.errors import SpiritlevelError

    seconds = seconds_of(timeout)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK") or 0) % torch.cuda.device_count())
    starting = max(seconds, STARTING)
    where, own = (
        os.environ.get(RENDEZVOUS) or "env://",
        {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE")},
    )
    try:
        distributed.init_process_group(
            "gloo",
            init_method=where,
            rank=own["RANK"],
            world_size=own["WORLD_SIZE"],
            timeout=timedelta(seconds=starting),
        )
    except (RuntimeError, ValueError) as error:
        raise SpiritlevelError(
            f"the {own['WORLD_SIZE']} ranks that WORLD_SIZE speaks of did not come together within {starting:g} s "
            f"({str(error).splitlines()[0][:160]}); start the command by torchrun, or take RANK and WORLD_SIZE out of "
            "its environment where one process is to measure"
        ) from error
    group = joined(seconds)
    _GROUP.meeting = group.meeting
    try:
        with measuring_by(group), _watched(group.meeting, seconds), _hushed(group.rank), left_at_the_end(group):
            yield
    except RankLost as lost:
        _GROUP.lost = True
        raise SpiritlevelError(str(lost)) from None
    distributed.destroy_process_group()


@contextlib.contextmanager
def _hushed(rank: int) -> Iterator[None]:
    """Let nothing that a rank beside the first prints or writes be seen, whoever prints it."""
    if rank == 0:
        yield
        return
    from spiritlevel.results.writing import writing_nothing

    kept = {number: os.dup(number) for number in (1, 2)}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in kept:
        os.dup2(nowhere, number)
    os.close(nowhere)
    try:
        with writing_nothing():
            yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        for number, own in kept.items():
            os.dup2(own, number)
            os.close(own)


@contextlib.contextmanager
def _watched(meeting: Meeting | None, seconds: float) -> Iterator[None]:
    """End the process where the store itself no longer answers, which nothing else could get it out of."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(min(seconds, 1.0)):
            since = None if meeting is None else meeting.asked_since
            if since is not None and time.monotonic() - since > seconds:
                words = f"the store of the ranks gave no answer for {seconds:g} s; the rank that holds it was stopped"
                os.write(2, f"spiritlevel: {words}\n".encode())
                os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def may_speak() -> bool:
    """Whether this process is to say why the command ended: of several ranks the first that asks."""
    if _GROUP.meeting is None:
        return True
    try:
        return _GROUP.meeting.speaks_first()
    except RuntimeError:  # the store is gone
        return True


def end_at_once(code: int) -> None:
    """End the process where another rank is lost: what torch would wait for at its end never comes."""
    if _GROUP.lost:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
