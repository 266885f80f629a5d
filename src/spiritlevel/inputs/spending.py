"""The sweeps of every measurement that is opened while one question is answered, copies of networks included."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar, Token
from typing import Self


class Spent(Counter[str]):
    """Sweeps over the data by kind, and how many samples one of them takes in."""

    samples = 0


class Spending:
    """Entered around a question, it keeps what measurements opened meanwhile spend.

    It belongs to its thread, so that two questions asked at once do not count each other's sweeps.
    """

    def __init__(self) -> None:
        self._opened: list[Spent] = []

    def __enter__(self) -> Self:
        self._token: Token[Spending | None] = _AROUND.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _AROUND.reset(self._token)
        around = _AROUND.get()
        if around is not None:  # a question that is part of another one
            around._opened += self._opened

    def passes(self, samples: int | None) -> dict[str, float]:
        """Return the passes over so many samples that all sweeps come to, by kind."""
        found: dict[str, float] = {}
        for spent in self._opened:
            share = min(spent.samples / samples, 1.0) if samples and spent.samples else 1.0
            for kind, count in spent.items():
                found[kind] = found.get(kind, 0.0) + share * count
        return found


_AROUND: ContextVar[Spending | None] = ContextVar("spending", default=None)


def new_spent() -> Spent:
    """Return a count for a measurement that is opened, which the question it belongs to will ask for."""
    spent, around = Spent(), _AROUND.get()
    if around is not None:
        around._opened.append(spent)
    return spent
