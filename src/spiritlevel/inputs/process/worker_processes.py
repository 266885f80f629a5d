"""Processes beside this one: each does piece after piece of work, and one that dies takes down its piece alone."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import connection, get_context, parent_process
from typing import Any, Generic

from spiritlevel.inputs.process.workers import Ended, Made, Piece, WorkerLost, Workers

PATIENCE = 5.0  # seconds that a process has to end when it is told to
_NO_PIECE: Any = object()
# What a terminal sends to all processes of a command is for the first of them to answer.
_FROM_TERMINAL = ("SIGINT", "SIGHUP", "SIGQUIT")


def in_processes(
    function: Callable[[Piece], Made], pieces: Iterable[Piece], workers: Workers
) -> Generator[Ended[Piece, Made], None, None]:
    """Yield pieces as processes end them."""
    left = iter(pieces)
    assert workers.count is not None
    crew: list[_Worker[Piece, Made]] = []
    try:
        for number in range(workers.count):
            piece = next(left, _NO_PIECE)
            if piece is _NO_PIECE:
                break
            crew.append(_Worker(number, function, workers.begin))
            crew[-1].hand(piece)
        while busy := [worker for worker in crew if worker.busy]:
            ready = connection.wait([each for worker in busy for each in worker.signs])
            for worker in busy:
                if any(sign in ready for sign in worker.signs):
                    done = worker.taken_back()
                    piece = next(left, _NO_PIECE)
                    if piece is not _NO_PIECE:
                        worker.hand(piece)
                    yield done
    finally:
        for worker in crew:
            worker.tell_to_end()
        for worker in crew:
            worker.end()


class _Worker(Generic[Piece, Made]):
    """One place for a process, which another takes where it died."""

    def __init__(self, number: int, function: Callable[[Piece], Made], begin: Callable[[int], object] | None) -> None:
        self._number, self._function, self._begin = number, function, begin
        self._piece: Piece = _NO_PIECE
        self._start()

    @property
    def busy(self) -> bool:
        """Whether it has a piece of work."""
        return self._piece is not _NO_PIECE

    @property
    def signs(self) -> list[Any]:
        """What becomes ready when there is an answer or the process is dead."""
        return [self._channel, self._process.sentinel]

    def hand(self, piece: Piece) -> None:
        """Give a piece of work to the process, or to a new one where it is dead."""
        self._piece = piece
        if not self._process.is_alive():
            self.end()
            self._start()
        with contextlib.suppress(OSError):  # it died just now, which its sign will say
            self._channel.send_bytes(pickle.dumps(piece))

    def taken_back(self) -> Ended[Piece, Made]:
        """Return the piece of work as it ended."""
        piece, self._piece = self._piece, _NO_PIECE
        try:
            found, error = pickle.loads(self._channel.recv_bytes())
        except (EOFError, OSError):
            self._process.join(PATIENCE)
            return Ended(piece, error=WorkerLost(_end_in_words(self._process.exitcode)))
        return Ended(piece, found, error)

    def tell_to_end(self) -> None:
        """Tell the process to end."""
        self._process.terminate()

    def end(self) -> None:
        """See to it that the process is no more."""
        self._process.join(PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._channel.close()

    def _start(self) -> None:
        context = get_context("spawn")  # a forked process cannot use a GPU
        self._channel, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(self._number, self._function, self._begin, theirs))
        with _held_back():
            self._process.start()
        theirs.close()


def _work(number: int, function: Callable[[Any], Any], begin: Callable[[int], object] | None, channel: Any) -> None:
    """Do pieces of work until there are no more: what a process runs."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if begin is not None:
        begin(number)
    while True:
        try:
            piece = pickle.loads(channel.recv_bytes())
        except EOFError:
            return
        try:
            answer: tuple[Any, BaseException | None] = (function(piece), None)
        except BaseException as error:
            answer = (None, error)
        channel.send_bytes(_pickled(answer))


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # whoever asked was killed: nobody waits for an answer


def _pickled(answer: tuple[Any, BaseException | None]) -> bytes:
    try:
        packed = pickle.dumps(answer)
        if answer[1] is not None:
            pickle.loads(packed)  # an exception with arguments of its own may not come back
        return packed
    except Exception as failure:
        error = answer[1] or failure
        return pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    """Hold back signals of the terminal: a process started within never gets them, this one does afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    numbers = {getattr(signal, name) for name in _FROM_TERMINAL}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_in_words(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        why = ", as the system does where memory runs out" if name == "SIGKILL" else ""
        return f"its worker process was ended by {name}{why}; run the same command again, with fewer workers"
    return f"its worker process ended with exit code {code}; run it in one process to see why"
