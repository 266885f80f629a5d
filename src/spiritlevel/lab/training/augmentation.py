"""Random crops and flips of small images, the augmentation customary for CIFAR."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def crop_and_flip(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Return each image shifted by up to ``padding`` pixels over black and mirrored with probability one half.

    Parameters
    ----------
    images : Tensor
        A batch (B, C, H, W).
    generator : torch.Generator
        What the shifts and mirrorings are drawn from.
    padding : int
        The most pixels to shift by.

    Returns
    -------
    Tensor
        A batch of the same shape.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> images = sl.datasets.load("digits").x[:5]
    >>> generator = torch.Generator().manual_seed(0)
    >>> changed = sl.training.crop_and_flip(images, generator, padding=1)
    >>> changed.shape == images.shape, bool(torch.equal(changed, images))
    (True, False)
    """
    count, _, height, width = images.shape
    rows = torch.randint(2 * padding + 1, (count,), generator=generator)
    columns = torch.randint(2 * padding + 1, (count,), generator=generator)
    mirrored = torch.randint(2, (count,), generator=generator).bool()
    down = rows[:, None] + torch.arange(height)
    across = torch.where(mirrored[:, None], torch.arange(width - 1, -1, -1), torch.arange(width)) + columns[:, None]
    padded = functional.pad(images, (padding,) * 4)
    which = torch.arange(count, device=images.device)[:, None, None]
    # Indices around the channel axis put it last: (N, H, W, C).
    return padded[which, :, down.to(images.device)[:, :, None], across.to(images.device)[:, None, :]].permute(
        0, 3, 1, 2
    )
