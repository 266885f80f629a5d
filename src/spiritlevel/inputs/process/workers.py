"""One function over many pieces of work: here, in processes of this machine, or on a Ray cluster; each as it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from spiritlevel.values.errors import SpiritlevelError, UsageError

ENGINES = ("here", "processes", "ray")

Piece = TypeVar("Piece")
Made = TypeVar("Made")


class WorkerLost(SpiritlevelError):
    """The process that did a piece of work ended before it was done."""


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Who does the work: this process, processes beside it, or a Ray cluster."""

    engine: str = "here"
    count: int | None = 1  # of pieces at once; None for as many as a cluster has room for
    address: str | None = None  # of the cluster
    on_gpu: bool = False
    begin: Callable[[int], object] | None = None  # called in every process of this machine, with its number

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise UsageError(f"There is no engine {self.engine!r}: the engines are {', '.join(ENGINES)}.")
        if self.count is not None and self.count < 1:
            raise UsageError(f"workers={self.count} must be at least 1.")


@dataclass(frozen=True)
class Ended(Generic[Piece, Made]):
    """A piece of work with what was found, or with what went wrong."""

    piece: Piece
    found: Made | None = None
    error: BaseException | None = None

    @property
    def result(self) -> Made:
        """What was found; what went wrong is raised."""
        if self.error is not None:
            raise self.error
        assert self.found is not None
        return self.found


def ended(
    function: Callable[[Piece], Made], pieces: Iterable[Piece], workers: Workers
) -> Generator[Ended[Piece, Made], None, None]:
    """Yield pieces of work as they end, in any order; a piece is taken from ``pieces`` when a worker is free for it.

    Whoever stops before the end closes the iterator, which ends the workers.
    """
    if workers.engine == "processes":
        from spiritlevel.inputs.process.worker_processes import in_processes

        return in_processes(function, pieces, workers)
    if workers.engine == "ray":
        from spiritlevel.inputs.process.ray_cluster import on_ray

        return on_ray(function, pieces, workers)
    return _here(function, pieces)


def threads_each(workers: int) -> int:
    """Return the threads of each of so many workers: their share of this process's, or what OMP_NUM_THREADS says."""
    import torch

    threads = torch.get_num_threads()
    return threads if os.environ.get("OMP_NUM_THREADS") else max(1, threads // workers)


def _here(function: Callable[[Piece], Made], pieces: Iterable[Piece]) -> Generator[Ended[Piece, Made], None, None]:
    for piece in pieces:
        try:
            found = function(piece)
        except Exception as error:
            yield Ended(piece, error=error)
        else:
            yield Ended(piece, found)
