"""Directions in a layer's parameters, every sample's own, made of few signs.

For a matrix V = Σ_i e_i f_iᵀ / √r, i = 1 … r, with a sign for every row in e_i and for every column in f_i: entries are
uncorrelated and of variance one, and what V makes of an input costs r (rows + columns), not rows · columns.  A matrix
of no more rows or columns than r, and a vector, has a sign for each entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.inputs.losses.signs import index_signs

RANK = 8
_APART = 7_368_787  # between the seeds of two parameters


@dataclass(frozen=True)
class EntryDirection:
    """A sign for each entry, (B, rows, columns)."""

    entries: Tensor

    @property
    def dense(self) -> Tensor:
        """All entries."""
        return self.entries

    def to_rows(self, inputs: Tensor) -> Tensor:
        """Return V x for inputs (B, T, columns)."""
        return inputs @ self.entries.mT

    def to_columns(self, inputs: Tensor) -> Tensor:
        """Return Vᵀ x for inputs (B, T, rows)."""
        return inputs @ self.entries

    def looked_up(self, places: Tensor) -> Tensor:
        """Return the rows (B, T, columns) at some places (B, T)."""
        return self.entries.gather(1, places[..., None].expand(-1, -1, self.entries.shape[2]))

    @property
    def kernels(self) -> Tensor:
        """What inputs are multiplied with first, (B, n, columns)."""
        return self.entries

    def of_products(self, products: Tensor) -> Tensor:
        """Return V x, (B, rows, …), from the kernels' products."""
        return products


@dataclass(frozen=True)
class OuterDirection:
    """Signs of the rows (B, r, rows), and of the columns over √r, (B, r, columns)."""

    of_rows: Tensor
    of_columns: Tensor

    @property
    def dense(self) -> Tensor:
        """All entries."""
        return self.of_rows.mT @ self.of_columns

    def to_rows(self, inputs: Tensor) -> Tensor:
        """Return V x for inputs (B, T, columns)."""
        return (inputs @ self.of_columns.mT) @ self.of_rows

    def to_columns(self, inputs: Tensor) -> Tensor:
        """Return Vᵀ x for inputs (B, T, rows)."""
        return (inputs @ self.of_rows.mT) @ self.of_columns

    def looked_up(self, places: Tensor) -> Tensor:
        """Return the rows (B, T, columns) at some places (B, T)."""
        picked = self.of_rows.gather(2, places[:, None].expand(-1, self.of_rows.shape[1], -1))
        return picked.mT @ self.of_columns

    @property
    def kernels(self) -> Tensor:
        """What inputs are multiplied with first, (B, n, columns)."""
        return self.of_columns

    def of_products(self, products: Tensor) -> Tensor:
        """Return V x, (B, rows, …), from the kernels' products."""
        return self.of_rows.mT @ products


MatrixDirection = EntryDirection | OuterDirection


class SampleDirections:
    """A direction for each of some samples, from the seed, the sample's index in the data and the draw's number."""

    def __init__(self, seed: int, indices: Tensor, draws: range, places: Mapping[str, int], dtype: torch.dtype) -> None:
        self.seed, self.indices, self.draws, self.places, self.dtype = seed, indices, draws, places, dtype
        self._matrices: dict[str, MatrixDirection] = {}
        self._vectors: dict[str, Tensor] = {}

    @property
    def samples(self) -> int:
        """Samples, each counted once a draw: (draws, samples) in one dimension."""
        return len(self.draws) * len(self.indices)

    def _signs(self, full: str, count: int) -> Tensor:
        seed = self.seed + _APART * (self.places[full] + 1)
        draws = len(self.draws)
        signs = index_signs(seed, draws, self.indices, count, first_draw=self.draws.start, dtype=self.dtype)
        return signs.flatten(0, 1)

    def matrix(self, full: str, rows: int, columns: int) -> MatrixDirection:
        """Return the directions of a matrix; the same ones wherever it is used again."""
        if full not in self._matrices:
            self._matrices[full] = self._drawn(full, rows, columns)
        return self._matrices[full]

    def _drawn(self, full: str, rows: int, columns: int) -> MatrixDirection:
        if min(rows, columns) <= RANK:
            return EntryDirection(self._signs(full, rows * columns).reshape(-1, rows, columns))
        signs = self._signs(full, RANK * (rows + columns)).reshape(-1, RANK, rows + columns)
        of_rows, of_columns = signs.split([rows, columns], 2)
        return OuterDirection(of_rows, of_columns / RANK**0.5)

    def vector(self, full: str, size: int) -> Tensor:
        """Return the directions (B, size) of a vector."""
        if full not in self._vectors:
            self._vectors[full] = self._signs(full, size)
        return self._vectors[full]

    def dense(self, full: str, shape: torch.Size) -> Tensor:
        """Return the directions (B, *shape) of a parameter that was used."""
        found = self._vectors[full] if full in self._vectors else self._matrices[full].dense
        return found.reshape(-1, *shape)
