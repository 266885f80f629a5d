"""Activation checkpointing taken away while a problem is measured: it saves memory, and loses second derivatives.

What is recomputed in a backward pass does not hang on the graph that is differentiated again: products with the Hessian
come out wrong without an error.  The function is the same without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import checkpoint

# Private names of torch; where a version has others, checkpointing stays and the check of derivatives finds it out.
_RECOMPUTING = "_checkpoint_without_reentrant_generator"
_REENTRANT = "CheckpointFunction"


class _Plainly:
    """In place of the reentrant kind's autograd function."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_random_state: bool, *arguments: Any) -> Any:
        return function(*arguments)


def _nothing_around(*arguments: Any, **named: Any) -> Iterator[None]:
    """In place of what the other kind does before and after the function that it calls itself."""
    yield


@contextlib.contextmanager
def without_checkpointing() -> Iterator[None]:
    """Let ``torch.utils.checkpoint`` call its functions plainly; process-wide."""
    before = {name: getattr(checkpoint, name) for name in (_RECOMPUTING, _REENTRANT) if hasattr(checkpoint, name)}
    try:
        for name in before:
            setattr(checkpoint, name, _nothing_around if name == _RECOMPUTING else _Plainly)
        yield
    finally:
        for name, original in before.items():
            setattr(checkpoint, name, original)
