"""Activation checkpointing taken away while a problem is measured: it saves memory, and loses second derivatives.

What is recomputed in a backward pass does not hang on the graph that is differentiated again: products with the Hessian
come out wrong without an error.  The function is the same without it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from spiritlevel.inputs.torch_internals import checkpointing


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
    before = [(module, name, getattr(module, name)) for module, name in checkpointing.places()]
    try:
        for module, name, _ in before:
            setattr(module, name, _nothing_around if name == checkpointing.AROUND else _Plainly)
        yield
    finally:
        for module, name, original in before:
            setattr(module, name, original)
