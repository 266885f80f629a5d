"""Being asked to stop: SIGINT, SIGTERM and SIGHUP end the work alike, with what is finished kept."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


class Stopped(Exception):
    """The work was interrupted and what was finished is kept; the message says where."""


class SignalWatch:
    """Which signal asked this process to stop, if any did."""

    def __init__(self) -> None:
        self.received: int | None = None

    @property
    def code(self) -> int:
        """The exit code of an interrupted command, as a shell counts: 130, 143 or 129."""
        return 128 + (self.received or signal.SIGINT)


WATCH = SignalWatch()  # signals are the process's, so there is one


@contextmanager
def watched() -> Iterator[SignalWatch]:
    """Turn the signals into ``KeyboardInterrupt`` within; handlers are put back afterwards.

    A signal that is ignored stays so: ``nohup`` asks for that.
    """
    WATCH.received = None
    if threading.current_thread() is not threading.main_thread():
        yield WATCH
        return
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a worker that was forked from this process dies as if nothing had been set
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        WATCH.received = number
        raise KeyboardInterrupt(signal.Signals(number).name)

    before: dict[int, Any] = {}
    try:
        for name in _NAMES:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, stop)
        yield WATCH
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_if_asked() -> None:
    """Stop between two pieces of work where a signal came and code in between swallowed the interruption."""
    if WATCH.received is not None:
        raise KeyboardInterrupt
