"""Failures a person can act on: one sentence that names what was found, why it stops the work and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from spiritlevel.values.cleaning import lines_for_terminal


class SpiritlevelError(Exception):
    """The work could not be done; the message is one sentence for the user (exit code 1).

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> try:
    ...     sl.Problem(torch.nn.ReLU(), sl.datasets.load("digits"))
    ... except sl.SpiritlevelError as error:
    ...     print(error)
    ReLU has no parameters, so there is no minimum to measure; pass the trained network
    """

    def __str__(self) -> str:
        return lines_for_terminal(super().__str__())  # it may name tensors and files, which may hold anything


class UsageError(SpiritlevelError, ValueError):
    """The request itself was wrong: a name, a type or a value the caller can correct (exit code 2).

    It is a `SpiritlevelError` and a ``ValueError``.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> try:
    ...     sl.nets.build("lenet5", size=8)
    ... except sl.UsageError as error:
    ...     print(error)
    The network lenet5 is made for images of 28x28 or larger, not 8x8: resize the images up to it with fit_images.
    """


def near_names(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean a, b?"`` for the known names closest to a misspelt one, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f"; did you mean {', '.join(close)}?" if close else ""
