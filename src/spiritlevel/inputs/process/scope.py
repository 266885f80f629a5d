"""One measurement at a time in a process: what is switched for it (precision, kernels, random state) all threads share.

A switch is set by the first that needs it and put back when the last one leaves, in whatever order they leave.  Other
threads that want to measure wait meanwhile: their models, their switches and Python's warnings would mix otherwise.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Any

_changed = threading.Condition()
_owner: int | None = None  # the thread inside
_depth = 0
_switches = ExitStack()
_held: set[str] = set()


@contextlib.contextmanager
def process_scope() -> Iterator[None]:
    """Keep other threads from measuring until the outermost scope of this one ends, and then undo its switches."""
    _enter()
    try:
        yield
    finally:
        _leave()


def hold(switch: str, make: Callable[[], AbstractContextManager[Any]]) -> None:
    """Enter what ``make`` gives until the outermost scope ends, unless the switch is held already."""
    assert _depth, "a switch belongs to a scope"
    if switch not in _held:
        _switches.enter_context(make())
        _held.add(switch)


def _enter() -> None:
    global _owner, _depth
    me = threading.get_ident()
    with _changed:
        while _owner not in (None, me):
            _changed.wait()
        _owner = me
        _depth += 1


def _leave() -> None:
    # Not only by the thread inside: what an abandoned generator holds is let go by whoever collects it.
    global _owner, _depth
    if _depth > 1:
        _depth -= 1
        return
    try:
        _held.clear()
        _switches.close()
    finally:
        with _changed:
            _owner, _depth = None, 0
            _changed.notify_all()
