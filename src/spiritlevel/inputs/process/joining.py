"""Measuring over the ranks of torch.distributed: entered on all of them, left on all of them."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta

import torch
from torch import Tensor, distributed

from spiritlevel.inputs.process.meeting import Meeting, RankLost
from spiritlevel.inputs.process.memory_limit import free_bytes_here
from spiritlevel.inputs.process.ranks import Adder, Ranks, measuring_by, ranks
from spiritlevel.inputs.torch_internals.stores import store_of_the_group
from spiritlevel.values.errors import SpiritlevelError, UsageError

VARIABLE = "SPIRITLEVEL_TIMEOUT"
TIMEOUT = 600.0  # seconds
_entered = itertools.count()  # times that this process measured over ranks: the same number on all of them


def over_ranks(timeout: float | None = None) -> AbstractContextManager[None]:
    """Measure over all ranks of the process group: entered by each of them, with the same calls inside.

    Batches of the data are divided among the ranks and sums over samples are added in float64, so that every rank
    returns the numbers that one process would have found. What fails on one rank fails on all, and a rank that dies,
    hangs or is stopped ends the block on the others.

    Parameters
    ----------
    timeout : float
        Seconds after which a rank that gives no sign of life, at least one a batch, is given up; by default those of
        the environment variable SPIRITLEVEL_TIMEOUT, or 600.

    Returns
    -------
    context manager
        What is measured inside a ``with`` of it is measured together.

    Raises
    ------
    UsageError
        There is no process group, or the timeout is no number of seconds.
    SpiritlevelError
        Another rank failed, or gave no sign of life.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> from torch import distributed
    >>> distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    >>> problem = sl.Problem(sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits"), samples=100)
    >>> with sl.over_ranks():
    ...     report = sl.measure(problem, ["hessian_trace"])
    >>> report["hessian_trace"].value > 0
    True
    >>> distributed.destroy_process_group()
    """
    return _entered_by_all(seconds_of(timeout))


@contextlib.contextmanager
def _entered_by_all(timeout: float) -> Iterator[None]:
    try:
        with measuring_by(joined(timeout)) as group, left_at_the_end(group):
            yield
    except RankLost as lost:
        raise SpiritlevelError(str(lost)) from None


@contextlib.contextmanager
def left_at_the_end(group: Ranks) -> Iterator[None]:
    """Wait for the other ranks at the end; whatever ends this one before is told to them."""
    assert group.meeting is not None
    try:
        yield
        group.meeting.meet("the end", None)
    except BaseException as error:
        group.meeting.leave(" ".join(str(error).split()) or type(error).__name__)
        raise


def seconds_of(timeout: float | None) -> float:
    """Return the seconds after which a rank is given up: those given, those of the environment, or the usual ones."""
    given: object = os.environ.get(VARIABLE, "").strip() or TIMEOUT if timeout is None else timeout
    try:
        seconds = float(given)  # type: ignore[arg-type]  # what is no number raises
    except (TypeError, ValueError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError(f"the timeout is {given!r}, which is no number of seconds; give one above 0, such as 600")
    return seconds


def joined(timeout: float) -> Ranks:
    """Return the group of all ranks of torch.distributed, once all have come."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise UsageError(
            "there is no process group: call torch.distributed.init_process_group on every rank first, or start the "
            "command by torchrun"
        )
    if ranks().several:
        raise UsageError("this rank measures with the others already; enter over_ranks once")
    store = store_of_the_group()
    if store is None:
        raise SpiritlevelError("this release of torch keeps its store elsewhere; measure with one process")
    number = next(_entered)
    meeting = Meeting(store, distributed.get_rank(), distributed.get_world_size(), timeout, f"spiritlevel/{number}")
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    group = Ranks(meeting)
    free = {device.type: free_bytes_here(device) for device in devices}
    known = group.meet("the beginning", (time.monotonic(), free))
    group.exchange(known[0][0], [each for _, each in known])
    own = (socket.gethostname(), torch.cuda.current_device()) if torch.cuda.is_available() else None
    places = group.meet("the devices", own)
    # NCCL wants a GPU for every rank; where some share one, sums go by the processor.
    group.adder = _adder(timeout, by_nccl=None not in places and len(set(places)) == len(places))
    return group


def _adder(timeout: float, by_nccl: bool) -> Adder:
    """Return what adds tensors: by Gloo on a CPU and by NCCL on GPUs, whatever the group itself was made with."""
    limit = timedelta(seconds=timeout)
    on_cpu = distributed.new_group(backend="gloo", timeout=limit)
    on_gpu = distributed.new_group(backend="nccl", timeout=limit) if by_nccl else None

    def add(tensor: Tensor) -> None:
        try:
            if tensor.is_cuda and on_gpu is None:
                there = tensor.cpu()
                distributed.all_reduce(there, group=on_cpu)
                tensor.copy_(there)
            else:
                distributed.all_reduce(tensor, group=on_gpu if tensor.is_cuda else on_cpu)
        except RuntimeError as error:
            raise RankLost(
                f"a sum over the ranks was broken off ({str(error).splitlines()[0][:160]}): another rank has died or "
                "was stopped; start all ranks again"
            ) from error

    return add
