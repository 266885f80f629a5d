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
    """A data set by name: what it is, an image's shape, samples to train and test, and the files it is read from.

    Attributes
    ----------
    name : str
        The name it is loaded by.
    meaning : str
        What it is, in words.
    shape : tuple of int
        (C, H, W) of an image.
    classes : int
        How many classes there are.
    samples : pair of int
        How many samples to train and to test.
    files : str
        The files it is read from, in torchvision's folder layout; nothing where it is built in.
    reader : callable
        What reads a split of it.
    fetchable : bool
        Whether `get` can fetch it.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> for spec in sl.datasets.DATASETS.values():
    ...     print(spec.name, spec.shape, spec.samples)
    digits (1, 8, 8) (1437, 360)
    mnist (1, 28, 28) (60000, 10000)
    fashion-mnist (1, 28, 28) (60000, 10000)
    cifar10 (3, 32, 32) (50000, 10000)
    cifar100 (3, 32, 32) (50000, 10000)
    """

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
    """Return the declaration of a named data set.

    Parameters
    ----------
    name : str
        The name.

    Returns
    -------
    DataSpec
        What it is.

    Raises
    ------
    UsageError
        There is no such data set.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.datasets.data_spec("cifar10").meaning
    'small colour photographs of 10 classes'
    """
    if name not in DATASETS:
        raise UsageError(
            f"No data set is called {name!r}{near_names(name, DATASETS) or '.'} The names are {', '.join(DATASETS)}."
        )
    return DATASETS[name]


def parse(text: str) -> tuple[str, str]:
    """Return (name, split) of ``"mnist:test"``; train unless said.

    Parameters
    ----------
    text : str
        A name, or a name and a split.

    Returns
    -------
    pair of str
        The name and the split.

    Raises
    ------
    UsageError
        There is no such data set or split.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.datasets.parse("mnist:test"), sl.datasets.parse("digits")
    (('mnist', 'test'), ('digits', 'train'))
    """
    name, _, split = text.partition(":")
    split = split or "train"
    if split not in SPLITS:
        raise UsageError(f"{text!r} asks for the split {split!r}: the splits are train and test.")
    return data_spec(name).name, split


def load(name: str, split: str = "train", *, root: str | Path | None = None) -> LabelledData:
    """Return one split of a named data set, in memory, its files checked against the published sums.

    Parameters
    ----------
    name : str
        digits, mnist, fashion-mnist, cifar10 or cifar100.
    split : str
        "train" or "test".
    root : path
        The folder of the files; by default that in the environment variable ``SPIRITLEVEL_DATA``, then the cache.

    Returns
    -------
    LabelledData
        The split.

    Raises
    ------
    UsageError
        There is no such data set or split.
    SpiritlevelError
        The files were not found, or are not the published ones.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> data = sl.datasets.load("digits", "test")
    >>> len(data), data.split
    (360, 'test')
    """
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
    """Return the data that a text names: ``digits``, ``mnist:test``, or the path of an .npz file.

    Parameters
    ----------
    text : str
        A name with or without a split, or a path that ends in .npz.
    root : path
        The folder of the files, as for `load`.

    Returns
    -------
    LabelledData
        The data.

    Raises
    ------
    UsageError
        There is no such data set, split or file.
    SpiritlevelError
        The files were not found or cannot be read.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> len(sl.datasets.open_data("digits:test"))
    360
    """
    if text.lower().endswith(".npz"):
        return from_npz(text)
    name, split = parse(text)
    return load(name, split, root=root)


def what_to_place(name: str) -> str:
    """Return in words which files make a data set and where they are looked for.

    Parameters
    ----------
    name : str
        The data set.

    Returns
    -------
    str
        The words.

    Raises
    ------
    UsageError
        There is no such data set.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> sl.datasets.what_to_place("cifar100").split(" in a folder")[0]
    'place cifar-100-python/{train,test} or cifar-100-python.tar.gz'
    """
    return f"place {data_spec(name).files} in a folder and name that folder with --data-root or {ENVIRONMENT}"
