"""What workers are given to do in tests, in a file that loads nothing: each worker imports it."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path


class Peculiar(Exception):
    """An exception that pickle cannot make again."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(one + two)


def done(piece: str) -> tuple[str, int]:
    """Do a piece of work as it says, and return it with the process that did it."""
    word, _, rest = piece.partition(" ")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "exit":
        os._exit(int(rest))
    if word == "sys.exit":
        sys.exit(rest)
    if word == "fail":
        raise ValueError(rest)
    if word == "peculiar":
        raise Peculiar("no", "thing")
    if word == "interrupt":
        os.kill(os.getpid(), signal.SIGINT)  # as a terminal does to all processes of a command
    if word == "wait":
        Path(rest).write_text(str(os.getpid()), encoding="utf-8")
        time.sleep(600)
    return piece, os.getpid()
