"""Random signs that belong to a sample of the data set, whatever batch or device it is met on."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spiritlevel.inputs.splitmix import splitmix64

_WORD = 64
_BYTE = 8


@functools.cache
def _signs_of_bytes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """The eight signs of each of the 256 bytes, the lowest bit first."""
    with torch.inference_mode(False):  # kept for later calls, which may differentiate
        values = torch.arange(1 << _BYTE, device=device)[:, None]
        return ((values >> torch.arange(_BYTE, device=device) & 1) * 2 - 1).to(dtype)


def index_signs(
    seed: int,
    draws: int,
    indices: Tensor,
    count: int,
    *,
    first_draw: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Signs ±1 ``(draws, B, count)``, each a function of (seed, draw, sample index, position) alone.

    Integer arithmetic is the same on every device, so the signs are made where the indices are.

    Parameters
    ----------
    seed : int
        The seed.
    draws : int
        How many draws.
    indices : Tensor
        The samples' indices in the data set, (B,).
    count : int
        Signs a sample and draw.
    first_draw : int
        The number of the first draw, for those who take them in several calls.
    dtype : torch.dtype
        Of the signs.

    Returns
    -------
    Tensor
        The signs (draws, B, count).

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> signs = sl.losses.index_signs(0, 2, torch.tensor([4, 7]), 3)
    >>> tuple(signs.shape)
    (2, 2, 3)
    >>> bool((sl.losses.index_signs(0, 1, torch.tensor([7]), 3) == signs[:1, 1:]).all())
    True
    """
    return next(index_signs_in_parts(seed, draws, indices, [count], first_draw=first_draw, dtype=dtype))


def index_signs_in_parts(
    seed: int,
    draws: int,
    indices: Tensor,
    counts: Sequence[int],
    *,
    first_draw: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Iterator[Tensor]:
    """Yield signs ``(draws, B, count)`` for each count, from one hash of all, which keeps eight signs in a byte."""
    device = indices.device
    state: int | Tensor = int(splitmix64(0, torch.tensor(seed, device="cpu")))
    state = splitmix64(state, torch.arange(first_draw, first_draw + draws, device=device)[:, None])
    state = splitmix64(state, indices[None].to(torch.int64))
    sizes = [-(-count // _BYTE) for count in counts]
    words = splitmix64(state[..., None], torch.arange(-(-sum(sizes) * _BYTE // _WORD), device=device))
    # A word's lowest byte comes first in memory, on every processor and device that torch is built for.
    rows = words.view(torch.uint8)
    signs, start = _signs_of_bytes(dtype, device), 0
    for count, size in zip(counts, sizes):
        places = rows[..., start : start + size].reshape(-1).int()
        found = signs.index_select(0, places).view(*state.shape, size * _BYTE)
        yield found[..., :count].contiguous()
        start += size
