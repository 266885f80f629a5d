"""Several processes that measure together: each runs one function and hands back what it returned, or how it ended."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from torch import distributed

import spiritlevel as sl

WAIT = 240.0  # seconds, for a test that hangs


def started(
    size: int, function: Callable[..., Any], folder: Path, *arguments: Any, timeout: float
) -> list[BaseProcess]:
    """Start ``function(*arguments)`` on every rank, inside `over_ranks`; they meet by a file of their own."""
    context = multiprocessing.get_context("forkserver")  # which imports torch once for all of them
    context.set_forkserver_preload([__name__])
    work = pickle.dumps((function, arguments))
    processes: list[BaseProcess] = [
        context.Process(target=_rank, args=(rank, size, folder, work, timeout)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    return processes


def on_ranks(size: int, function: Callable[..., Any], folder: Path, *arguments: Any, timeout: float = 60) -> list[Any]:
    """Return what a function gave on every rank, or the error that it ended with."""
    for process in started(size, function, folder, *arguments, timeout=timeout):
        process.join(WAIT)
        process.kill()
    return [pickle.loads((folder / f"rank-{rank}").read_bytes()) for rank in range(size)]


def _rank(rank: int, size: int, folder: Path, work: bytes, timeout: float) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    function, arguments = pickle.loads(work)
    found: Any
    try:
        with sl.over_ranks(timeout):
            found = function(*arguments)
    except Exception as error:
        found = error
    (folder / f"rank-{rank}").write_bytes(pickle.dumps(found))
