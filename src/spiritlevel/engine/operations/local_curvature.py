"""Local second derivatives M of an operation, split into signed columns: E[s₊s₊ᵀ - s₋s₋ᵀ] = M over random signs.

The remainder of a layer's block is a sum of Gauss–Newton terms, R_ll = mean Σ_k J_kᵀ M_k J_k over the curved operations
k above the layer, with M_k = Σ_c g_c ∇²φ_{k,c} in the operation's own inputs and g the loss's gradient at its output.
Whoever pulls the columns of all operations back together gets R as the mean of what the loss's own columns give for G.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

# s₊ and s₋, each with one tensor (draws, …) for every input
SignedColumns = tuple[list[Tensor], list[Tensor]]
HALF_ROOT = 0.5**0.5


def _root(values: Tensor) -> Tensor:
    """√max(values, 0)."""
    return values.clamp(min=0).sqrt()


def _roots(values: Tensor) -> tuple[Tensor, Tensor]:
    """√max(values, 0) and √max(-values, 0)."""
    return _root(values), _root(-values)


def _summed_to(values: Tensor, shape: torch.Size, ndim: int) -> Tensor:
    """Sum what was broadcast from a shape to ``ndim`` dimensions, keeping any that stand before these."""
    before = values.shape[: values.ndim - ndim]
    return values.sum_to_size(*before, *[1] * (ndim - len(shape)), *shape).reshape(*before, *shape)


class LocalCurvature(ABC):
    """M over some inputs of one operation."""

    @abstractmethod
    def sign_shapes(self) -> list[torch.Size]:
        """Shapes of the independent random signs that one draw of columns takes."""

    @abstractmethod
    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        """Return s₊ and s₋ for these signs, (draws, …) each: what does not depend on them is computed once."""

    @abstractmethod
    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        """Return M t, one tensor for every input."""


@dataclass(frozen=True)
class Diagonal(LocalCurvature):
    """Entry by entry: M = diag(c)."""

    values: Tensor

    def sign_shapes(self) -> list[torch.Size]:
        return [self.values.shape]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        plus, minus = self._both
        return [plus * signs[0]], [minus * signs[0]]

    @cached_property
    def _both(self) -> tuple[Tensor, Tensor]:
        return _roots(self.values)

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        return [self.values * tangents[0]]


@dataclass(frozen=True)
class TwoByTwo(LocalCurvature):
    """Entry by entry in two inputs: [[0, q], [q, r]], split by its eigenvectors; inputs may have been broadcast."""

    mixed: Tensor  # q, in the shape of the operation's output
    second: Tensor  # r
    shapes: tuple[torch.Size, torch.Size]  # of the two inputs

    def sign_shapes(self) -> list[torch.Size]:
        # One sign for both eigenvectors: what they share in one input cancels in every draw, not only on average.
        return [self.mixed.shape]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        # The eigenvalues r/2 ± √(q² + r²/4) never have one sign: there is one column of each.
        half = self.second / 2
        radius = torch.hypot(half, self.mixed)
        share = torch.where(radius > 0, half / radius, 0.0)
        # Sine and cosine of the first eigenvector.
        near, far = _root((1 - share) / 2), _root((1 + share) / 2)
        turned = torch.where(self.mixed < 0, -1.0, 1.0)
        plus, minus = _root(radius + half) * signs[0], _root(radius - half) * signs[0]
        return (
            self._as_inputs([plus * near, plus * far * turned]),
            self._as_inputs([minus * far, -minus * near * turned]),
        )

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        first, second = tangents
        return self._as_inputs([self.mixed * second, self.mixed * first + self.second * second])

    def _as_inputs(self, values: list[Tensor]) -> list[Tensor]:
        return [_summed_to(value, shape, self.mixed.ndim) for value, shape in zip(values, self.shapes)]


@dataclass(frozen=True)
class Projected(LocalCurvature):
    """κ Π with a projector Π and one number κ for every row."""

    scale: Tensor  # κ, of the input's shape up to broadcasting
    project: Callable[[Tensor], Tensor]
    shape: torch.Size

    def sign_shapes(self) -> list[torch.Size]:
        return [self.shape]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        projected = self.project(signs[0])
        return [_root(self.scale) * projected], [_root(-self.scale) * projected]

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        return [self.scale * self.project(tangents[0])]


@dataclass(frozen=True)
class RankTwo(LocalCurvature):
    """a bᵀ + b aᵀ in every row along ``dims``: half (βa + b/β)² less half (βa - b/β)², the two of equal length."""

    left: Tensor  # a
    right: Tensor  # b
    dims: tuple[int, ...]  # counted from the last

    def sign_shapes(self) -> list[torch.Size]:
        return [self.left.sum(self.dims, keepdim=True).shape]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        plus, minus = self._both
        return [plus * signs[0]], [minus * signs[0]]

    @cached_property
    def _both(self) -> tuple[Tensor, Tensor]:
        lengths = [torch.linalg.vector_norm(part, dim=self.dims, keepdim=True) for part in (self.left, self.right)]
        defined = (lengths[0] > 0) & (lengths[1] > 0)
        balance = torch.where(defined, lengths[1] / torch.where(defined, lengths[0], 1.0), 1.0).sqrt()
        left, right = self.left * (balance * HALF_ROOT * defined), self.right * (defined / balance * HALF_ROOT)
        return left + right, left - right

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        (tangent,) = tangents
        along = [(part * tangent).sum(self.dims, keepdim=True) for part in (self.left, self.right)]
        return [self.left * along[1] + self.right * along[0]]


@dataclass(frozen=True)
class Sum(LocalCurvature):
    """Several parts over one input, each with signs of its own."""

    parts: Sequence[LocalCurvature]

    def sign_shapes(self) -> list[torch.Size]:
        return [shape for part in self.parts for shape in part.sign_shapes()]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        left = iter(signs)
        found = [part.columns([next(left) for _ in part.sign_shapes()]) for part in self.parts]
        plus, minus = ([sum(rest, first) for first, *rest in zip(*sides)] for sides in zip(*found))
        return plus, minus

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        found = [part.product(tangents) for part in self.parts]
        return [sum(rest, first) for first, *rest in zip(*found)]


@dataclass(frozen=True)
class WeightedSpread(LocalCurvature):
    """Σ_c d_c (e_c - p)(e_c - p)ᵀ in every row along ``dim``, for shares p of each entry."""

    values: Tensor  # d
    shares: Tensor  # p
    dim: int

    def sign_shapes(self) -> list[torch.Size]:
        return [self.values.shape]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        plus, minus = self._both
        return [self._spread(plus * signs[0])], [self._spread(minus * signs[0])]

    @cached_property
    def _both(self) -> tuple[Tensor, Tensor]:
        return _roots(self.values)

    def _spread(self, entries: Tensor) -> Tensor:
        return entries - self.shares * entries.sum(self.dim, keepdim=True)

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        about = tangents[0] - (self.shares * tangents[0]).sum(self.dim, keepdim=True)
        return [self._spread(self.values * about)]


@dataclass(frozen=True)
class MatrixProduct(LocalCurvature):
    """A product A B of two activations: tᵀMt = 2 Σ g_ij t_A,ik t_B,kj, with signs on the side that has fewer rows."""

    gradient: Tensor  # g, (..., i, j)
    inner: int  # entries that a row of A and a column of B share

    def sign_shapes(self) -> list[torch.Size]:
        *batch, rows, columns = self.gradient.shape
        return [torch.Size((*batch, min(rows, columns), self.inner))]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        gradient, (ones,) = self.gradient, signs
        rows, columns = gradient.shape[-2:]
        # The pair (ε, εᵀg), or the same from the other side, made of equal length in every matrix.
        if rows <= columns:
            left, right = ones, ones.mT @ gradient
        else:
            left, right = gradient @ ones, ones.mT
        of_left, of_right = self._factors
        left, right = left * of_left, right * of_right
        return [left, right], [left, -right]

    @cached_property
    def _factors(self) -> tuple[Tensor, Tensor]:
        rows, columns = self.gradient.shape[-2:]
        length = torch.linalg.matrix_norm(self.gradient, keepdim=True) / min(rows, columns) ** 0.5
        some = length > 0
        balance = torch.where(some, length, 1.0).sqrt()
        balance = balance if rows <= columns else 1 / balance
        return balance * HALF_ROOT * some, some / balance * HALF_ROOT

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        left, right = tangents
        return [self.gradient @ right.mT, left.mT @ self.gradient]


@dataclass(frozen=True)
class Applied(LocalCurvature):
    """Whatever is only known by its products: the pair (ε, Mε) made of equal length, half its square of each sign.

    Unbiased for any M, at several times the variance of a split that knows it.
    """

    apply: Callable[[Tensor], Tensor]
    shape: torch.Size

    def sign_shapes(self) -> list[torch.Size]:
        return [self.shape]

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        (ones,) = signs
        applied = torch.stack([self.apply(one) for one in ones])
        dims = tuple(range(2, ones.ndim)) or (1,)
        length = torch.linalg.vector_norm(applied, dim=dims, keepdim=True)
        some = length > 0
        balance = torch.where(some, length / torch.linalg.vector_norm(ones, dim=dims, keepdim=True), 1.0).sqrt()
        left, right = torch.where(some, ones * (balance / 2), 0.0), applied / (2 * balance)
        return [left + right], [left - right]

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        return [self.apply(tangents[0])]


@dataclass(frozen=True)
class Reshaped(LocalCurvature):
    """A part that sees its one input in another shape."""

    part: LocalCurvature
    inside: tuple[int, ...]
    outside: torch.Size

    def sign_shapes(self) -> list[torch.Size]:
        return self.part.sign_shapes()

    def columns(self, signs: Sequence[Tensor]) -> SignedColumns:
        plus, minus = self.part.columns(signs)
        return [part.reshape(-1, *self.outside) for part in plus], [part.reshape(-1, *self.outside) for part in minus]

    def product(self, tangents: Sequence[Tensor]) -> list[Tensor]:
        found = self.part.product([tangent.reshape(self.inside) for tangent in tangents])
        return [value.reshape(self.outside) for value in found]
