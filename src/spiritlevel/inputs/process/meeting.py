"""Where the processes of a group meet: each leaves what it has to say and waits until all have, but not for ever.

They meet by the group's key-value store before anything is summed, so that a rank that died, raised or stalls is found
out while nothing is under way that could not be left.
"""

from __future__ import annotations

import pickle
import time
from typing import Any

LOOK_SECONDS = 0.2  # between two looks whether the others are still at work
TICK_SECONDS = 1.0  # between two signs of life
LONGEST_NAP = 0.02


class RankLost(BaseException):
    """The run cannot go on because of another rank, whatever it was doing: no measure may take it for its own failure.

    The message is one sentence for the user.
    """


class Meeting:
    """One rank's side of it."""

    def __init__(self, store: Any, rank: int, size: int, timeout: float, name: str) -> None:
        self.store, self.rank, self.size, self.timeout, self.name = store, rank, size, timeout, name
        self.lost = ""  # why the run cannot go on
        self.asked_since: float | None = None  # the store, while it has not answered
        self._number = 0
        self._ticks, self._ticked = 0, 0.0

    def tick(self) -> None:
        """Give a sign of life, now and then."""
        now = time.monotonic()
        if now - self._ticked >= TICK_SECONDS:
            self._ticks, self._ticked = self._ticks + 1, now
            self.store.set(f"{self.name}/tick/{self.rank}", str(self._ticks))

    def leave(self, why: str) -> None:
        """Tell the others that this rank goes no further."""
        if not self.lost:
            self.lost = why
            self.store.set(f"{self.name}/gone", f"rank {self.rank} of {self.size} stopped: {why}")

    def speaks_first(self) -> bool:
        """Whether nobody asked this before: of one sentence that all know one copy is printed."""
        return int(self.store.add(f"{self.name}/spoken", 1)) == 1

    def meet(self, what: str, said: Any) -> list[Any]:
        """Return what every rank says, in their order; ``what`` must be the same for all."""
        if self.lost:
            raise RankLost(self.lost)
        self._number += 1
        keys = [self._key(self._number, rank) for rank in range(self.size)]
        self.asked_since = time.monotonic()
        self.store.set(keys[self.rank], pickle.dumps((what, said)))
        try:
            self._wait(keys, what)
            found = [pickle.loads(self.store.get(key)) for key in keys]
        finally:
            self.asked_since = None
        if self._number > 2:  # all that are here have read what was said the time before the last
            self.store.delete_key(self._key(self._number - 2, self.rank))
        for rank, (theirs, _) in enumerate(found):
            if theirs != found[0][0]:
                self._end(
                    f"rank 0 is at {found[0][0]!r} and rank {rank} at {theirs!r}: they took different ways, as on "
                    "machines that round differently; use ranks of one kind, and the same command on all of them"
                )
        return [words for _, words in found]

    def _key(self, number: int, rank: int) -> str:
        return f"{self.name}/{number}/{rank}"

    def _wait(self, keys: list[str], what: str) -> None:
        nap, looked, began = 2e-5, time.monotonic(), time.monotonic()
        seen: dict[int, bytes] = {}
        while not self.store.check(keys):
            time.sleep(nap)
            nap = min(1.5 * nap, LONGEST_NAP)
            now = self.asked_since = time.monotonic()
            if now - looked < LOOK_SECONDS:
                continue
            looked = now
            if self.store.check([f"{self.name}/gone"]):
                self._end(self.store.get(f"{self.name}/gone").decode(), told=True)
            missing = [rank for rank, key in enumerate(keys) if not self.store.check([key])]
            ticks = {rank: self._tick_of(rank) for rank in missing}
            if ticks != seen:  # somebody who is not here works on
                seen, began = ticks, now
            if missing and now - began > self.timeout:
                self._end(
                    f"rank {missing[0]} of {self.size} gave no sign of life for {self.timeout:g} s while the others "
                    f"waited at {what!r}: it has died, hangs or was stopped; start all ranks again, with a longer "
                    "--timeout where one batch takes that long"
                )

    def _tick_of(self, rank: int) -> bytes:
        key = f"{self.name}/tick/{rank}"
        return bytes(self.store.get(key)) if self.store.check([key]) else b""

    def _end(self, why: str, told: bool = False) -> None:
        self.lost = why
        if not told:
            self.store.set(f"{self.name}/gone", why)
        raise RankLost(why)
