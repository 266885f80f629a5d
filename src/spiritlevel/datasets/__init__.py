"""Data sets in memory: the built-in digits, and MNIST and CIFAR from torchvision's folder layout."""

from spiritlevel.datasets.catalog import DATASETS, DataSpec, load, parse
from spiritlevel.datasets.labelled import LabelledData, fit_images, to_grey, with_random_labels

__all__ = ["DATASETS", "DataSpec", "LabelledData", "fit_images", "load", "parse", "to_grey", "with_random_labels"]
