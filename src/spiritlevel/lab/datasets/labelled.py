"""Inputs with labels in memory, and what the studies do to them: subsets, grey images, larger images, random labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from spiritlevel.values.errors import UsageError


@dataclass(frozen=True)
class LabelledData:
    """A data set held in memory: images of shape (N, C, H, W) in [0, 1], labels, and notes on what was done to them.

    It is a sequence of (x, y) pairs, so it also serves wherever a torch Dataset is asked for.

    Attributes
    ----------
    x : Tensor
        The inputs (N, …).
    y : Tensor
        The labels (N,).
    name : str
        The data set's name.
    split : str
        "train" or "test".
    classes : int
        How many classes there are.
    notes : tuple of str
        What was done to the data.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> data = sl.datasets.load("digits")
    >>> len(data), tuple(data.x.shape), data.classes
    (1437, (1437, 1, 8, 8), 10)
    >>> len(data.subset(range(100))), len(data.subset(data.y == 3))
    (100, 146)
    """

    x: Tensor
    y: Tensor
    name: str
    split: str
    classes: int
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """The inputs and the labels as a pair."""
        return self.x, self.y

    @property
    def channels(self) -> int:
        """The number of colour planes."""
        return self.x.shape[1]

    @property
    def size(self) -> int:
        """The side of the images, the longer one where they are not square."""
        return max(self.x.shape[2:])

    def subset(self, index: Tensor | Sequence[int] | slice, note: str = "") -> LabelledData:
        """Return the chosen samples in the chosen order.

        Parameters
        ----------
        index : Tensor, sequence of int, or slice
            Places of the samples, or a mask over all of them.
        note : str
            What to note of the choice.

        Returns
        -------
        LabelledData
            Those samples.
        """
        chosen = index if isinstance(index, slice) else torch.as_tensor(index)
        notes = (*self.notes, note) if note else self.notes
        return replace(self, x=self.x[chosen], y=self.y[chosen], notes=notes)


def fit_images(data: LabelledData, size: int) -> LabelledData:
    """Return the images resized up to a network's own side by bilinear interpolation; larger images stay.

    Parameters
    ----------
    data : LabelledData
        Images (N, C, H, W) or (N, H, W).
    size : int
        The side to reach.

    Returns
    -------
    LabelledData
        The images, with a note of what was done.

    Raises
    ------
    UsageError
        The inputs are no images.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> larger = sl.datasets.fit_images(sl.datasets.load("digits"), 28)
    >>> tuple(larger.x.shape), larger.notes[-1]
    ((1437, 1, 28, 28), 'images resized from 8x8 to 28x28 (bilinear)')
    """
    x = data.x.unsqueeze(1) if data.x.dim() == 3 else data.x
    if x.dim() != 4:
        raise UsageError(
            f"The inputs of {data.name} have shape {tuple(data.x.shape[1:])}, which are not images (C, H, W), so they "
            "cannot be fitted to a built-in network: give images, or a model of your own."
        )
    height, width = x.shape[2:]
    if min(height, width) >= size:
        return replace(data, x=x)
    target = (max(height, size), max(width, size))
    larger = functional.interpolate(x, size=target, mode="bilinear", align_corners=False)
    note = f"images resized from {height}x{width} to {target[0]}x{target[1]} (bilinear)"
    return replace(data, x=larger, notes=(*data.notes, note))


def to_grey(data: LabelledData) -> LabelledData:
    """Return the luminance 0.299 R + 0.587 G + 0.114 B: 1,024 inputs for CIFAR-10 as in Lengyel et al. 2021.

    It is rounded to one of 256 levels, as image libraries turn images of bytes grey, so that a set of grey images kept
    as bytes is the same data.

    Parameters
    ----------
    data : LabelledData
        Images of three channels; those of one stay as they are.

    Returns
    -------
    LabelledData
        Images of one channel.

    Raises
    ------
    UsageError
        The images have two channels, or more than three.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> x, y = torch.rand(5, 3, 8, 8), torch.arange(5) % 2
    >>> colour = sl.datasets.LabelledData(x, y, "mine", "train", classes=2)
    >>> tuple(sl.datasets.to_grey(colour).x.shape)
    (5, 1, 8, 8)
    """
    if data.channels == 1:
        return data
    if data.channels != 3:
        raise UsageError(f"{data.name} has {data.channels} channels, and only colour images (3) can be made grey.")
    weights = torch.tensor([299.0, 587.0, 114.0], dtype=data.x.dtype).view(1, 3, 1, 1)
    levels = (data.x.mul(255).round_() * weights).sum(dim=1, keepdim=True)  # whole numbers, exact in float32
    grey = levels.add_(500).div_(1000).floor_().div_(255)
    return replace(data, x=grey, notes=(*data.notes, "colour turned to grey (0.299 R + 0.587 G + 0.114 B, in bytes)"))


def standardised(data: LabelledData, mean: float, deviation: float) -> LabelledData:
    """Return the inputs less a mean, over a standard deviation: one of each for all pixels.

    Parameters
    ----------
    data : LabelledData
        The data.
    mean : float
        What is taken off.
    deviation : float
        What is divided by; positive.

    Returns
    -------
    LabelledData
        The data, with a note of what was done.

    Raises
    ------
    UsageError
        ``deviation`` is not positive.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> data = sl.datasets.load("digits")
    >>> scaled = sl.datasets.standardised(data, data.x.mean().item(), data.x.std().item())
    >>> round(scaled.x.std().item(), 3), scaled.notes[-1]
    (1.0, 'inputs standardised: less 0.305383, over 0.376121')
    """
    if not deviation > 0:
        raise UsageError(f"deviation={deviation} must be positive: inputs are divided by it.")
    note = f"inputs standardised: less {mean:g}, over {deviation:g}"
    return replace(data, x=(data.x - mean).div_(deviation), notes=(*data.notes, note))


def with_random_labels(data: LabelledData, fraction: float, seed: int, mode: str = "uniform") -> LabelledData:
    """Return the data with a fraction of its labels replaced at random (Tsuzuku et al. 2019, section 6).

    Parameters
    ----------
    data : LabelledData
        The data.
    fraction : float
        The share of labels to replace, from 0 to 1.
    seed : int
        Seed of which and by what.
    mode : str
        "uniform" draws each replaced label anew from all classes, so one in C stays right by chance; "shuffle" permutes
        the chosen labels among themselves, which keeps the class counts.

    Returns
    -------
    LabelledData
        The data, with a note of how many labels changed.

    Raises
    ------
    UsageError
        ``fraction`` is not between 0 and 1, or there is no such mode.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> noisy = sl.datasets.with_random_labels(sl.datasets.load("digits"), 0.2, seed=0)
    >>> noisy.notes[-1]
    '287 of 1437 labels drawn at random (uniform, seed 0), 265 of them changed'
    """
    if not 0.0 <= fraction <= 1.0:
        raise UsageError(f"fraction={fraction} is not between 0 and 1: it is the share of labels to replace.")
    if mode not in ("uniform", "shuffle"):
        raise UsageError(f"mode={mode!r} is not a way to draw random labels: use 'uniform' or 'shuffle'.")
    if fraction == 0.0:
        return data
    generator = torch.Generator().manual_seed(seed)
    count = round(fraction * len(data))
    chosen = torch.randperm(len(data), generator=generator)[:count]
    y = data.y.clone()
    if mode == "uniform":
        y[chosen] = torch.randint(data.classes, (count,), generator=generator)
    else:
        y[chosen] = data.y[chosen[torch.randperm(count, generator=generator)]]
    changed = int((y != data.y).sum())
    note = f"{count} of {len(data)} labels drawn at random ({mode}, seed {seed}), {changed} of them changed"
    return replace(data, y=y, notes=(*data.notes, note))
