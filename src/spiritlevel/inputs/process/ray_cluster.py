"""Pieces of work as tasks of a Ray cluster: the one at an address, or one started for the purpose."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any

from spiritlevel.inputs.process.workers import Ended, Made, Piece, WorkerLost, Workers
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.extras import need_of_extra

TRIED_AGAIN = 1  # a task whose machine is gone


def on_ray(
    function: Callable[[Piece], Made], pieces: Iterable[Piece], workers: Workers
) -> Generator[Ended[Piece, Made], None, None]:
    """Yield pieces as the cluster ends them."""
    ray = need_of_extra("ray", "the engine ray", "ray")
    ours = not ray.is_initialized()
    if ours:
        _join(ray, workers.address)
    gpus = 1 if workers.on_gpu else 0
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=TRIED_AGAIN)(_call)
    under_way: dict[Any, Piece] = {}
    try:
        at_once = workers.count or int(ray.cluster_resources().get("GPU" if gpus else "CPU", 1))
        left, shared = iter(pieces), ray.put(function)
        while True:
            while len(under_way) < at_once:
                try:
                    piece = next(left)
                except StopIteration:
                    break
                under_way[task.remote(shared, piece)] = piece
            if not under_way:
                return
            (finished,), _ = ray.wait(list(under_way), num_returns=1)
            yield _ended(ray, under_way.pop(finished), finished)
    finally:
        for reference in under_way:
            with contextlib.suppress(Exception):
                ray.cancel(reference, force=True)
        if ours:
            ray.shutdown()


def _call(function: Callable[[Piece], Made], piece: Piece) -> Made:
    return function(piece)


def _ended(ray: Any, piece: Piece, reference: Any) -> Ended[Piece, Any]:
    try:
        return Ended(piece, ray.get(reference))
    except ray.exceptions.RayTaskError as error:
        return Ended(piece, error=error.cause or error)
    except ray.exceptions.RayError as error:
        words = " ".join(str(error).split())
        return Ended(piece, error=WorkerLost(f"its worker on the cluster was lost ({words}); run the command again"))


def _join(ray: Any, address: str | None) -> None:
    """Join a cluster; signals are answered as before, which Ray would do its own way."""
    caught = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise SpiritlevelError(
            f"no Ray cluster was joined at {address or 'this machine'} ({words}); start one with ray start --head, or "
            "give the address of its head"
        ) from error
    finally:
        for number, handler in before.items() if caught else ():
            signal.signal(number, handler)
