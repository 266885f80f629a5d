"""The exact pass without any of its checks, to know what they cost.  Its answers are right here and proven nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from torch import Tensor

from spiritlevel.engine.passes import curvature, linearity, rules
from spiritlevel.engine.passes.graph import Graph
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.inputs import open_problem as problems
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.losses import Factor
from spiritlevel.inputs.survey import Surveyor

NAME = "Spiritlevel, without its checks"
ALLOWED = 1.1  # times the pass without them


def _unchecked(
    self: rules.Rules, batch: Batch, outputs: Tensor, recorder: Recorder, factor: Factor, graph: Graph
) -> None:
    known = self._by_graph.get(graph.signature)
    if known is None:
        self.guess(outputs, recorder, factor, graph)
    else:
        self._go_by(*known)


class _Blind:
    """In place of the watch over forward passes."""

    left_out: frozenset[str] = frozenset()
    values_left_the_graph = False

    def __enter__(self) -> _Blind:
        return self

    def __exit__(self, *error: object) -> None:
        pass


class _Unguarded:
    """In place of the copies of weights before the first forward pass."""

    def __init__(self, model: Any) -> None:
        pass

    def refuse_changes(self) -> None:
        pass

    def written_buffers(self) -> dict[str, Tensor]:
        return {}

    def put_back(self) -> None:
        pass


def _nothing(*arguments: Any, **named: Any) -> None:
    pass


@contextlib.contextmanager
def without_checks() -> Iterator[None]:
    """Switch every check of a first exact pass off."""
    with contextlib.ExitStack() as stack:
        for target, name, other in (
            (rules.Rules, "choose", _unchecked),
            (rules.Rules, "follow", lambda self, batch, recorder, graph: self._go_by(*self._by_graph[graph.signature])),
            (rules.Rules, "confirm", _nothing),
            (linearity.Linearity, "check", _nothing),
            (linearity.Linearity, "finish", _nothing),
            (Surveyor, "look", _nothing),
            (curvature, "vet", _nothing),
            (problems, "Watch", _Blind),
            (problems, "WeightsBefore", _Unguarded),
        ):
            stack.enter_context(patch.object(target, name, other))
        yield
