"""The group of this run: which rank this process is, and what all ranks add up, agree on and wait for.

Each rank goes over its own batches of the data, and every sweep ends with a reunion: sums are added in float64, rows
laid in place, facts exchanged.  Everything else runs on all ranks alike, on equal numbers, and so decides alike.  What
differs between machines (the time, free memory, how long a sweep took) is exchanged at the end of every sweep and stays
what it was until the next.  Within a sweep a rank is on its own: whatever begins there concerns it alone.
"""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from spiritlevel.inputs.process.journal import Journal
from spiritlevel.inputs.process.meeting import Meeting
from spiritlevel.values.errors import SpiritlevelError

# Numbers that are summed over ranks at a time: a copy of so many is made.
AT_ONCE = 2**24

Sums = Mapping[str, Tensor]


class Adder(Protocol):
    """Adds a tensor over all ranks, in place."""

    def __call__(self, tensor: Tensor) -> None:
        """Add it."""


class Ranks:
    """The ranks that measure together; one alone where there is no group."""

    def __init__(self, meeting: Meeting | None = None) -> None:
        self.meeting = meeting
        self.adder: Adder | None = None
        self.journal: Journal | None = None  # of the first rank, where the run is kept
        self.kept = False  # whether it is
        self.again = False  # whether what the present sweep gave is known from it
        self.rank = 0 if meeting is None else meeting.rank
        self.size = 1 if meeting is None else meeting.size
        self._depth = 0  # of sweeps inside each other
        self._place = 0  # of the sample that the present sweep has come to
        self.free: dict[str, int] = {}  # bytes that every rank has, by type of device, as was last exchanged
        self._agreed, self._heard = 0.0, time.monotonic()  # the first rank's clock at that time, and this one's

    @property
    def several(self) -> bool:
        """Whether there is anybody to agree with, be it an earlier run of the same."""
        return self.meeting is not None or self.kept

    @property
    def sharing(self) -> bool:
        """Whether batches are divided among the ranks now: in a sweep, and not in what one rank does within it."""
        return self.several and self._depth == 1

    @property
    def meets(self) -> bool:
        """Whether all ranks are at one place now."""
        return self.several and self._depth == 0

    def exchange(self, first: float, free: list[Mapping[str, int]]) -> None:
        """Take over what all ranks go by until the next sweep ends: the first one's clock, and the least memory."""
        self._agreed, self._heard = first, time.monotonic()
        self.free = {kind: min(each[kind] for each in free if kind in each) for kind in free[0]}

    def time(self) -> float:
        """Return the seconds of one clock: between sweeps it stands still, so that all ranks decide by the same."""
        if self.meets:
            return self._agreed
        now = time.monotonic()
        return self._agreed + now - self._heard if self.sharing else now

    def own(self, number: int) -> bool:
        """Whether a batch of this number is one that this rank is to work on."""
        return number % self.size == self.rank

    def reached(self, place: int) -> None:
        """Note how far a sweep has come: of several failures the first in the data is told."""
        self._place = place
        if self.meeting is not None:
            self.meeting.tick()

    @contextlib.contextmanager
    def together(self, what: str, said: Callable[[], Any], heard: Callable[[list[Any]], None]) -> Iterator[None]:
        """Enter a sweep that all ranks make; what fails on one rank fails on all, with the same words."""
        if not self.meets:
            self._depth += self.several
            try:
                yield
            finally:
                self._depth -= self.several
            return
        failure: Exception | None = None
        self.again = self._begins_again(what)
        self._depth, self._place = 1, 0
        try:
            yield
        except Exception as error:
            failure = error
        except BaseException as stop:
            if self.meeting is not None:
                self.meeting.leave(str(stop) or "it was interrupted")
            raise
        finally:
            self._depth = 0
        if self.again:
            answers = self.meet("swept", None)
        else:
            answers = self._exchanged(f"sweep {what}", (_portable(failure), self._place, said()))
            if self.journal is not None:
                self.journal.swept(what, well=all(bad is None for bad, _, _ in answers))
                self.journal.record("swept", answers)
        failed = [(place, rank) for rank, (bad, place, _) in enumerate(answers) if bad is not None]
        if failed:
            _, first = min(failed)
            if failure is not None and first == self.rank:
                raise failure
            raise pickle.loads(answers[first][0])
        heard([told for _, _, told in answers])

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Let this rank do something by itself, with whatever sweeps that takes."""
        self._depth += 2
        try:
            yield
        finally:
            self._depth -= 2

    def meet(self, what: str, said: Any) -> list[Any]:
        """Return what every rank says, in their order; of one rank alone its own words."""
        if not self.meets:
            return [said]
        if self.again:
            return list(self._taken(what))
        answers = self._exchanged(what, said)
        if self.journal is not None:
            self.journal.record(what, answers)
        return answers

    def _exchanged(self, what: str, said: Any) -> list[Any]:
        return [said] if self.meeting is None else self.meeting.meet(what, said)

    def _taken(self, what: str) -> Any:
        """Return what the journal has at this place, to all ranks."""
        return self._exchanged(f"again {what}", None if self.journal is None else self.journal.take(what))[0]

    def _begins_again(self, what: str) -> bool:
        if not self.kept:
            return False
        return bool(self._exchanged("again", None if self.journal is None else self.journal.begin(what))[0])

    def everywhere(self, flag: bool) -> bool:
        """Whether something holds on all ranks."""
        return all(self.meet("everywhere", bool(flag)))

    def anywhere(self, flag: bool) -> bool:
        """Whether something holds on some rank."""
        return any(self.meet("anywhere", bool(flag)))

    def united(self, sums: Sums, facts: Any = None, *, device: torch.device) -> tuple[dict[str, Tensor], list[Any]]:
        """Return sums over all ranks, each in its own dtype, and every rank's facts.

        A rank that had no batch gives none of the sums: it learns from the others which there are.
        """
        if not self.meets:
            return dict(sums), [facts]
        if self.again:  # as if the first rank had found it all
            taken: tuple[dict[str, tuple[Tensor, str]], Any] = ({}, None)
            if self.journal is not None:
                taken = self.journal.take("united")
            sums = {
                name: part.to(device if device.type == place else place) for name, (part, place) in taken[0].items()
            }
            facts = taken[1]
        kinds = {name: (part.shape, part.dtype, part.device.type) for name, part in sums.items()}
        answers = self._exchanged("united", (kinds, facts))
        wanted: dict[str, tuple[torch.Size, torch.dtype, str]] = {}
        for known, _ in answers:
            wanted.update({name: kind for name, kind in known.items() if name not in wanted})
        found = {}
        for name, (shape, dtype, place) in wanted.items():
            own = sums.get(name)
            # A copy: what is summed may be something that others hold, or expanded.
            found[name] = (
                torch.zeros(shape, dtype=dtype, device=device if device.type == place else place)
                if own is None
                else own.detach().clone(memory_format=torch.contiguous_format)
            )
        if self.adder is not None:
            self._add(list(found.values()))
        if self.again:
            return found, list(answers[0][1])
        told = [own for _, own in answers]
        if self.journal is not None:
            # Copies: sums are divided in place before the journal is written.
            copies = {name: (part.to("cpu", copy=True), part.device.type) for name, part in found.items()}
            self.journal.record("united", (copies, told))
        return found, told

    def _add(self, tensors: list[Tensor]) -> None:
        """Add tensors over ranks, many small ones at once and large ones in parts."""
        waiting: list[Tensor] = []
        for tensor in tensors:
            for part in tensor.view(-1).split(AT_ONCE):
                waiting.append(part)
                if sum(one.numel() for one in waiting) >= AT_ONCE:
                    self._add_now(waiting)
                    waiting = []
        self._add_now(waiting)

    def _add_now(self, parts: list[Tensor]) -> None:
        assert self.adder is not None
        for device, dtype in dict.fromkeys((part.device, _wide(part)) for part in parts):
            own = [part for part in parts if (part.device, _wide(part)) == (device, dtype) and part.numel()]
            if own:
                joined = torch.cat([part.to(dtype) for part in own])
                self.adder(joined)
                for part, total in zip(own, joined.split([part.numel() for part in own])):
                    part.copy_(total)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.is_floating_point() else torch.int64


def _portable(error: Exception | None) -> bytes | None:
    """Return an exception as another process can raise it; one that cannot be sent becomes its sentence."""
    if error is None:
        return None
    try:
        sent = pickle.dumps(error)
        pickle.loads(sent)
        return sent
    except Exception:
        return pickle.dumps(SpiritlevelError(f"{type(error).__name__}: {error}"))


ALONE = Ranks()
_PRESENT: ContextVar[Ranks | None] = ContextVar("ranks", default=None)  # another thread's work is its own


def ranks() -> Ranks:
    """Return the group of this run."""
    return _PRESENT.get() or ALONE


@contextlib.contextmanager
def kept_in(path: str | Path, identity: str) -> Iterator[None]:
    """Keep what sweeps give in a file until the block is done; where an earlier run left one, go on from there.

    ``identity`` stands for all that decides the numbers: a file of another one is refused.
    """
    group = ranks() if ranks().several else Ranks()
    journal = Journal(path, identity) if group.rank == 0 else None
    group.journal, group.kept = journal, True
    try:
        with measuring_by(group):
            yield
    except BaseException:
        if journal is not None:
            journal.close()
        raise
    else:
        if journal is not None:
            journal.remove()
    finally:
        group.journal, group.kept, group.again = None, False, False


@contextlib.contextmanager
def measuring_by(group: Ranks) -> Iterator[Ranks]:
    """Let a group measure together meanwhile."""
    token = _PRESENT.set(group)
    try:
        yield group
    finally:
        _PRESENT.reset(token)
