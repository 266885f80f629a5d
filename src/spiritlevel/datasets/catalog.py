"""The data sets by name and the one way to load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spiritlevel.datasets.digits import digits
from spiritlevel.datasets.labelled import LabelledData
from spiritlevel.errors import UsageError, near_names

SPLITS = ("train", "test")


@dataclass(frozen=True)
class DataSpec:
    """A data set by name: what it is, the shape of an image, its sizes and how one split is read from a root."""

    name: str
    meaning: str
    shape: tuple[int, int, int]
    classes: int
    samples: tuple[int, int]
    reader: Callable[[str, Path | None], LabelledData]


DATASETS: dict[str, DataSpec] = {
    spec.name: spec
    for spec in (
        DataSpec(
            "digits", "handwritten digits, built in", (1, 8, 8), 10, (1437, 360), lambda split, root: digits(split)
        ),
    )
}


def parse(text: str) -> tuple[str, str]:
    """Return (name, split) of ``"mnist:test"``; train unless said."""
    name, _, split = text.partition(":")
    split = split or "train"
    if split not in SPLITS:
        raise UsageError(f"{text!r} asks for the split {split!r}: the splits are train and test.")
    return name, split


def load(name: str, split: str = "train", *, root: str | Path | None = None) -> LabelledData:
    """Return one split of a named data set, in memory."""
    if name not in DATASETS:
        raise UsageError(
            f"No data set is called {name!r}{near_names(name, DATASETS) or '.'} The names are {', '.join(DATASETS)}."
        )
    if split not in SPLITS:
        raise UsageError(f"{name} has no split {split!r}: the splits are train and test.")
    return DATASETS[name].reader(split, None if root is None else Path(root))
