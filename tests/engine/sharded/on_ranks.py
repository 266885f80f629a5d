"""Running a function on several processes of one group, which meet by a file of their own."""

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

LONGEST = 240.0  # seconds


def run_on_ranks(
    size: int, function: Callable[..., Any], folder: Path, *arguments: Any, ends: bool = True
) -> list[Any]:
    """Return what the function returns on each of so many ranks, which are to end together; it is found by its name."""
    spawning = multiprocessing.get_context("spawn")
    processes = [
        spawning.Process(target=_joined, args=(rank, size, function, str(folder), arguments, ends), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(LONGEST)
            assert process.exitcode == 0, f"a rank ended with {process.exitcode}"
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(size)]


def _joined(
    rank: int, size: int, function: Callable[..., Any], folder: str, arguments: tuple[Any, ...], ends: bool
) -> None:
    torch.set_num_threads(1)
    store = distributed.FileStore(f"{folder}/store", size)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    found = function(rank, *arguments)
    torch.save(found, f"{folder}/{rank}.pt")
    if ends:
        distributed.barrier()
        distributed.destroy_process_group()
    # A process that used fully_shard over Gloo may abort when Python ends, without any of our code (torch 2.13).
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
