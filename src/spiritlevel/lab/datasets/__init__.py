"""Data sets in memory: the built-in digits, MNIST and CIFAR from torchvision's folder layout, a user's .npz."""

from spiritlevel.lab.datasets.catalog import DATASETS, DataSpec, data_spec, load, open_data, parse, what_to_place
from spiritlevel.lab.datasets.fetch import get
from spiritlevel.lab.datasets.files import cache_folder
from spiritlevel.lab.datasets.labelled import LabelledData, fit_images, standardised, to_grey, with_random_labels
from spiritlevel.lab.datasets.npz import from_npz

__all__ = [
    "DATASETS",
    "DataSpec",
    "LabelledData",
    "cache_folder",
    "data_spec",
    "fit_images",
    "from_npz",
    "get",
    "load",
    "open_data",
    "parse",
    "standardised",
    "to_grey",
    "what_to_place",
    "with_random_labels",
]
