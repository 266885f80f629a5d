"""The data sets by name, what their files are called, and the one way to load them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spiritlevel.lab.datasets.cifar import cifar_images
from spiritlevel.lab.datasets.digits import digits
from spiritlevel.lab.datasets.files import ENVIRONMENT, data_roots
from spiritlevel.lab.datasets.idx import idx_images
from spiritlevel.lab.datasets.labelled import LabelledData
from spiritlevel.lab.datasets.npz import from_npz
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names

SPLITS = ("train", "test")


@dataclass(frozen=True)
class DataSpec:
    """A data set by name: what it is, an image's shape, samples to train and test, and the files it is read from."""

    name: str
    meaning: str
    shape: tuple[int, int, int]
    classes: int
    samples: tuple[int, int]
    files: str
    reader: Callable[[str, str, Path | None], LabelledData | None]
    fetchable: bool = False


_IDX = "{train,t10k}-images-idx3-ubyte[.gz] and {train,t10k}-labels-idx1-ubyte[.gz]"

DATASETS: dict[str, DataSpec] = {
    spec.name: spec
    for spec in (
        DataSpec(
            "digits", "handwritten digits, built in", (1, 8, 8), 10, (1437, 360), "",
            lambda name, split, root: digits(split),
        ),
        DataSpec(
            "mnist", "handwritten digits", (1, 28, 28), 10, (60000, 10000), f"MNIST/raw/{_IDX}", idx_images,
            fetchable=True,
        ),
        DataSpec(
            "fashion-mnist", "pieces of clothing", (1, 28, 28), 10, (60000, 10000), f"FashionMNIST/raw/{_IDX}",
            idx_images,
        ),
        DataSpec(
            "cifar10", "small colour photographs of 10 classes", (3, 32, 32), 10, (50000, 10000),
            "cifar-10-batches-py/{data_batch_1..5,test_batch} or cifar-10-python.tar.gz", cifar_images,
            fetchable=True,
        ),
        DataSpec(
            "cifar100", "small colour photographs of 100 classes", (3, 32, 32), 100, (50000, 10000),
            "cifar-100-python/{train,test} or cifar-100-python.tar.gz", cifar_images,
        ),
    )
}  # fmt: skip


def data_spec(name: str) -> DataSpec:
    """Return the declaration of a named data set."""
    if name not in DATASETS:
        raise UsageError(
            f"No data set is called {name!r}{near_names(name, DATASETS) or '.'} The names are {', '.join(DATASETS)}."
        )
    return DATASETS[name]


def parse(text: str) -> tuple[str, str]:
    """Return (name, split) of ``"mnist:test"``; train unless said."""
    name, _, split = text.partition(":")
    split = split or "train"
    if split not in SPLITS:
        raise UsageError(f"{text!r} asks for the split {split!r}: the splits are train and test.")
    return data_spec(name).name, split


def load(name: str, split: str = "train", *, root: str | Path | None = None) -> LabelledData:
    """Return one split of a named data set, in memory, its files checked against the published sums."""
    spec = data_spec(name)
    if split not in SPLITS:
        raise UsageError(f"{name} has no split {split!r}: the splits are train and test.")
    folder = None if root is None else Path(root)
    data = spec.reader(name, split, folder)
    if data is None:
        places = " or ".join(str(place) for place in data_roots(folder))
        fetch = f"run `spiritlevel data get {name}`, or " if spec.fetchable else ""
        raise SpiritlevelError(
            f"The {split} split of {name} was not found under {places}: {fetch}{what_to_place(name)}."
        )
    return data


def open_data(text: str, *, root: str | Path | None = None) -> LabelledData:
    """Return the data that a text names: ``digits``, ``mnist:test``, or the path of an .npz file."""
    if text.lower().endswith(".npz"):
        return from_npz(text)
    name, split = parse(text)
    return load(name, split, root=root)


def what_to_place(name: str) -> str:
    """Return in words which files make a data set and where they are looked for."""
    return f"place {data_spec(name).files} in a folder and name that folder with --data-root or {ENVIRONMENT}"
