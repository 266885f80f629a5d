"""A fingerprint of the data: the same for the same samples in the same order, however they are batched or kept."""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spiritlevel.inputs.process.ranks import Ranks
from spiritlevel.inputs.row_buffer import RowBuffer
from spiritlevel.inputs.splitmix import splitmix64
from spiritlevel.inputs.sweeping import laid_out

if TYPE_CHECKING:
    from spiritlevel.inputs.open_problem import OpenProblem


class Fingerprint:
    """Takes in batch after batch.

    Each sample becomes one number where it lies, a sum of its bits times odd constants modulo 2^64; only these numbers
    leave a GPU, and only at the end.  They go through one hash for each field of the data.
    """

    def __init__(self) -> None:
        self._shapes: list[tuple[int, ...]] = []
        self._fields: list[RowBuffer] = []
        self._places: list[RowBuffer] = []  # of the samples whose numbers these are

    def add(self, tensors: list[Tensor], places: Tensor | None = None) -> None:
        """Take in the fields of a batch, whose samples have these places in the data."""
        for position, tensor in enumerate(tensors):
            if position == len(self._fields):
                self._shapes.append(tuple(tensor.shape[1:]))
                self._fields.append(RowBuffer())
                self._places.append(RowBuffer())
            numbers = _numbers(tensor.detach())
            self._fields[position].add(numbers)
            if places is not None:
                self._places[position].add(places[: len(numbers)])

    def unite(self, problem: OpenProblem, group: Ranks) -> None:
        """Take in what the other ranks took in."""
        known: dict[str, Tensor] = {}
        for position, (numbers, places) in enumerate(zip(self._fields, self._places)):
            rows, where = numbers.whole(), places.whole()
            known[f"numbers {position}"] = laid_out(problem, rows, where)
            known[f"given {position}"] = laid_out(problem, torch.ones_like(rows, dtype=torch.bool), where)
        known, shapes = group.united(known, self._shapes, device=problem.device)
        self._shapes = max(shapes, key=len)
        self._fields = []
        for position in range(len(self._shapes)):
            self._fields.append(RowBuffer())
            self._fields[-1].add(known[f"numbers {position}"][known[f"given {position}"]])

    def __str__(self) -> str:
        digests = [
            hashlib.blake2b(str(shape).encode() + numbers.whole().cpu().numpy().tobytes(), digest_size=8).digest()
            for shape, numbers in zip(self._shapes, self._fields)
        ]
        return hashlib.blake2b(b"".join(digests), digest_size=8).hexdigest()


def _numbers(tensor: Tensor) -> Tensor:
    """Return one whole number a sample."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    # A float32 and a float64 reading of the same data are the same data.
    bits = tensor.float().contiguous().view(torch.int32) if tensor.is_floating_point() else tensor.long()
    bits = bits.reshape(len(bits), -1) if bits.ndim else bits.reshape(1, 1)
    return (bits * _constants(bits.shape[1], tensor.device)).sum(1, dtype=torch.int64)


@functools.lru_cache(maxsize=8)
def _constants(count: int, device: torch.device) -> Tensor:
    """Return odd numbers without visible order, one after the other from SplitMix64."""
    return splitmix64(0, torch.arange(count, device=device)) | 1
