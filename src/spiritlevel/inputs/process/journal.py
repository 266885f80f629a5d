"""What every sweep of a run gave, on disk as it is found, so that an interrupted run goes on and ends as it would have.

A run is decided by its problem, its settings and what its sweeps give.  So one that was interrupted begins again, takes
what is in the journal where it would sweep, and sweeps from there on.  A sweep is written once all that was united
after it is known, and read again as a whole: what was cut off in the middle of writing is not there.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import torch

from spiritlevel.values.errors import SpiritlevelError

SweptPart = list[
    tuple[str, Any]
]  # what one sweep gave: its name and whether it went well, and all that was united after it
_LENGTH = 8  # bytes in front of every part


class Journal:
    """The file of one run."""

    def __init__(self, path: str | Path, identity: str) -> None:
        self.path = Path(path)
        self._known: list[int] = []  # where the parts begin that are not yet taken
        self._part: SweptPart = []  # of the present sweep: what was found so far
        self._left: SweptPart = []  # of the present sweep: what is still to be taken
        self._muted = False  # the present sweep failed before and is made again
        self._file = open(self.path, "r+b" if self.path.exists() else "w+b")  # noqa: SIM115  (open as long as the run)
        try:
            self._read(identity)
        except BaseException:
            self.close()
            raise

    def _read(self, identity: str) -> None:
        size, end = self.path.stat().st_size, 0
        while length := int.from_bytes(self._file.read(_LENGTH), "big"):
            if end + _LENGTH + length > size:
                break
            self._known.append(end)
            end = self._file.seek(end + _LENGTH + length)
        if not self._known and size:
            raise self._unknown()
        if self._known and self._part_at(self._known.pop(0)) != [("run", identity)]:
            raise SpiritlevelError(
                f"{self.path} is the state of a run with another network, data, settings or versions; remove it, or "
                "name another file"
            )
        self._file.seek(end)
        self._file.truncate()
        if not end:
            self._write([("run", identity)])

    def _part_at(self, start: int) -> SweptPart:
        self._file.seek(start)
        length = int.from_bytes(self._file.read(_LENGTH), "big")
        try:
            part: SweptPart = torch.load(io.BytesIO(self._file.read(length)), weights_only=True)
        except Exception as error:
            raise self._unknown() from error
        return part

    def _unknown(self) -> SpiritlevelError:
        return SpiritlevelError(f"{self.path} is not the state of a run; remove it, or name another file")

    @property
    def kept(self) -> int:
        """How many sweeps are still to be taken from it."""
        return len(self._known)

    def begin(self, what: str) -> bool:
        """Begin a sweep; whether what it gave is known."""
        self.finish()
        if not self._known:
            return False
        part = self._part_at(self._known[0])
        if part[0][0] != what:  # the run took another way before
            self._forget(self._known[0])
            return False
        self._known.pop(0)
        self._muted = part[0][1] is False
        self._left = [] if self._muted else part[1:]
        return not self._muted

    def finish(self) -> None:
        """Write what the present sweep gave."""
        if self._left:
            raise SpiritlevelError(f"{self.path} does not fit this run any more; remove it, and begin again")
        if self._part and not self._muted:
            self._write(self._part)
        self._part, self._muted = [], False

    def swept(self, what: str, well: bool) -> None:
        """Note how a sweep that was made ended; one that failed is made again by the run that takes this up."""
        if self._muted and well:
            self._forget(self._known[0] if self._known else self._file.seek(0, os.SEEK_END))
            self._muted = False
        self._part = [(what, well)]

    def record(self, what: str, found: Any) -> None:
        """Keep what was found after the present sweep."""
        if self._part:
            self._part.append((what, found))

    def take(self, what: str) -> Any:
        """Return what was found at this place."""
        if not self._left or self._left[0][0] != what:
            raise SpiritlevelError(f"{self.path} does not fit this run any more; remove it, and begin again")
        return self._left.pop(0)[1]

    def remove(self) -> None:
        """Close the journal of a run that is done."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave the journal for a later run."""
        self._file.close()

    def _forget(self, start: int) -> None:
        self._known = []
        self._file.seek(start)
        self._file.truncate()

    def _write(self, part: SweptPart) -> None:
        stream = io.BytesIO()
        torch.save(part, stream)
        self._file.seek(0, os.SEEK_END)
        self._file.write(len(stream.getbuffer()).to_bytes(_LENGTH, "big"))
        self._file.write(stream.getbuffer())
        self._file.flush()
        os.fsync(self._file.fileno())
