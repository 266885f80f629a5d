"""Small work beside what a GPU is busy with: checks of many steps, whose answers a processor waits for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    # One for all: torch keeps a workspace of its own for matrix products on every stream that has seen one.
    return torch.cuda.Stream(device, priority=-1)


def mark(device: torch.device) -> torch.cuda.Event | None:
    """Return the present point in the work of a GPU; there is none elsewhere."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


@contextlib.contextmanager
def side_stream(device: torch.device, after: torch.cuda.Event | None = None) -> Iterator[None]:
    """Run what follows beside a GPU's other work, all that came ``after`` a mark included; elsewhere as it comes."""
    if device.type != "cuda":
        yield
        return
    stream = _stream(device)
    if after is not None:
        stream.wait_event(after)
    with torch.cuda.stream(stream):
        yield
