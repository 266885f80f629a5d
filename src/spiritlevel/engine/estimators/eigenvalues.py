"""Eigenpairs at an end of the spectrum, each with the residual of an actual product as its certificate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from spiritlevel.engine.estimators.held_part import HeldPart
from spiritlevel.engine.estimators.lanczos import (
    BREAKDOWN_ROUNDINGS,
    ENOUGH,
    Matvec,
    checked_product,
    distance_along,
    fresh_direction,
    inner_product,
    length,
    orthogonalised,
)
from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.inputs.process.memory_limit import free_bytes
from spiritlevel.values.errors import UsageError

Which = Literal["largest", "smallest", "magnitude"]

# Share of the free memory that the basis and its images may take, and how many numbers need no counting.
BASIS_SHARE, SMALL_BASIS = 0.4, 10_000
# Vectors that the basis and its images are given room for at a time, where they are large.
GROWTH = 8
# Vectors that a product has in most sweeps of a search: few pairs are still on their way after the first ones.
USUAL_WIDTH = 3
# No residual can be asked to fall below this many roundings of the matrix's norm.
ROUNDING_FLOOR = 50.0
# A product with a Ritz vector is the same combination of the products with the basis, up to some roundings, which are
# added to its residual.  Where a residual many times as large is good enough, that is the certificate.
COMBINED_ROUNDINGS, WELL_ABOVE = 10.0, 50.0


@dataclass(frozen=True)
class Eigenpairs:
    """Approximate eigenpairs in the order asked for, with ||A v - value v|| from actual products as a certificate.

    An eigenvalue of A lies in every certificate interval [value - residual, value + residual].  That it is the
    largest, or the second largest, no residual can prove: the random start block makes it so with probability one in
    exact arithmetic, and copies of a multiple eigenvalue are found up to the width of the block.
    """

    values: Tensor  # (k,) float64 on the CPU
    vectors: Tensor  # (P, k), unit columns
    residuals: Tensor  # (k,) float64 on the CPU
    status: Literal["ok", "budget_spent"]
    sweeps: int  # calls of the matrix product
    products: int  # columns multiplied in all
    lowest: float  # the smallest Ritz value of the search, converged or not
    highest: float  # the largest one

    @property
    def intervals(self) -> Tensor:
        """The certificate intervals, (k, 2)."""
        return torch.stack([self.values - self.residuals, self.values + self.residuals], dim=1)

    def first(self, k: int, tolerance: float) -> Eigenpairs:
        """Return the first k of these pairs, with the status they have at a tolerance relative to the norm."""
        met = bool((self.residuals[:k] <= tolerance * max(abs(self.lowest), abs(self.highest))).all())
        return replace(
            self,
            values=self.values[:k],
            vectors=self.vectors[:, :k],
            residuals=self.residuals[:k],
            status="ok" if met else "budget_spent",
        )


# Order of a matrix up to which all of it costs little more than a search that may stop at the second largest.
WRITTEN_OUT = 24


def top_eigenpairs(
    matvec: Matvec,
    size: int,
    k: int = 1,
    which: Which = "largest",
    *,
    callback: Callable[[int, Tensor, Tensor], bool | None] | None = None,
    **options: Any,
) -> Eigenpairs:
    """Find the k largest, smallest or largest-in-magnitude eigenpairs of a symmetric matrix of order ``size``.

    ``options`` are those of an ``EigenpairSearch``, which this runs to its end.  ``callback`` sees (sweeps, values,
    residuals by recurrence) after each sweep and stops the search by returning True.
    """
    return EigenpairSearch(matvec, size, k, which, **options).run(callback)


def basis_limit(size: int, k: int, block: int, itemsize: int, home: torch.device) -> int:
    """Return the most vectors that the basis of a search for k pairs may hold, beside as many images, by the memory."""
    limit = max(6 * block, 2 * k + 24)
    if min(limit, size) * size > SMALL_BASIS:
        room = BASIS_SHARE * free_bytes(home)
        limit = max(k + 2 * block, min(limit, int(room / (2 * size * itemsize))))
    return limit


class EigenpairSearch:
    """A search for extreme eigenpairs of a symmetric matrix, which may be left at any sweep and gone on with.

    Davidson's method with thick restart: from ``block`` random columns (default k, so that every copy of a multiple
    eigenvalue is met) the basis grows by the residuals of the wanted pairs that are not there yet, at most ``width`` of
    them a sweep (default half a block), up to ``max_basis`` vectors (default what memory allows, 6 ``block`` or
    2 k + 24 at most), of which the best Ritz vectors survive a restart.
    While all pairs are on their way that is block Krylov; a pair that has arrived costs nothing more.  Done when the
    residual of every pair asked for is at most ``tolerance`` times the largest Ritz value in magnitude; otherwise
    ``max_sweeps`` products are spent and the status says so, and the residuals say how far it came.  Where rounding
    might matter, or products are not ``linear`` (differences), residuals are measured by one more product.
    With ``relative_to="value"`` the residual must be small against the eigenvalue itself, down to rounding: ask for
    that at an end of the spectrum much shorter than the other (a slightly negative smallest eigenvalue beside a large
    positive one), where a residual small against the norm says nothing, not even about the sign.
    ``start`` (P, any number of columns) is filled up with random columns to the width of the block, at least ``fresh``:
    it may miss what is sought, unless something random is in it already.
    """

    def __init__(
        self,
        matvec: Matvec,
        size: int,
        k: int = 1,
        which: Which = "largest",
        *,
        tolerance: float = 1e-3,
        relative_to: Literal["norm", "value"] = "norm",
        max_sweeps: int = 200,
        block: int | None = None,
        width: int | None = None,
        max_basis: int | None = None,
        start: Tensor | None = None,
        fresh: int = 1,
        linear: bool = True,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        basis_device: torch.device | str | None = None,
        held: HeldPart | None = None,
    ) -> None:
        held = held or HeldPart(size)
        if which not in get_args(Which):
            raise UsageError(f"which must be one of {', '.join(get_args(Which))}; found {which!r}.")
        if not 1 <= k <= size:
            raise UsageError(f"k must lie between 1 and the order of the matrix, {size}; found {k}.")
        if relative_to not in ("norm", "value"):
            raise UsageError(f"relative_to must be norm or value; found {relative_to!r}.")
        if max_sweeps < 2 or tolerance <= 0:
            raise UsageError(f"max_sweeps must be at least 2 and tolerance positive; found {max_sweeps}, {tolerance}.")
        block = min(size, block if block is not None else k)
        if size <= WRITTEN_OUT:
            block = size  # a small matrix is written out: nothing is left to chance
        width = width if width is not None else (block + 1) // 2
        if block < 1 or width < 1:
            raise UsageError(f"block and width must be at least 1; found {block} and {width}.")
        if start is not None:
            held.check(start)
            block = min(size, max(block, start.shape[1] + fresh))
        least, device = k + 2 * block, torch.device(device)
        limit = max_basis
        if limit is None:
            home = torch.device(basis_device) if basis_device is not None else device
            limit = basis_limit(size, k, block, dtype.itemsize, home)
        if limit < least and limit < size:
            raise UsageError(f"max_basis must hold k + 2 block = {least} vectors; found {limit}.")

        self._may_combine = (
            linear and relative_to == "norm" and tolerance >= WELL_ABOVE * COMBINED_ROUNDINGS * torch.finfo(dtype).eps
        )
        self._space = _KrylovSpace(
            matvec,
            size,
            k,
            which,
            limit=min(limit, size),
            dtype=dtype,
            device=device,
            basis_device=basis_device,
            seed=seed,
            held=held,
        )
        self._tolerance, self._relative_to, self._linear, self._start = tolerance, relative_to, linear, start
        self._max_sweeps, self._block, self._width, self._eps = max_sweeps, block, width, torch.finfo(dtype).eps
        self._next: Tensor | None = None  # rows of the basis that were not multiplied yet
        self._best = torch.full((k,), torch.inf, dtype=torch.float64)

    def _arrived(self, values: Tensor, residuals: Tensor, scale: float) -> Tensor:
        allowed = torch.full_like(values, self._tolerance * scale)
        if self._relative_to == "value":
            allowed = (self._tolerance * values.abs()).clamp_min(ROUNDING_FLOOR * self._eps * scale)
        return residuals <= allowed

    def run(self, callback: Callable[[int, Tensor, Tensor], bool | None] | None = None) -> Eigenpairs:
        """Search until all pairs have arrived, the sweeps are spent, or ``callback`` says so.

        What a product raises leaves the search as it was: it goes on where it is run again.
        """
        space = self._space
        if not space.held:
            self._next = space.start_block(self._start, self._block)
        while True:
            if self._next is not None:
                space.expand(self._next)
                self._next = None
            values, directions, expected, scale = space.ritz()
            # What is of rounding size says no more; a product will tell.
            there = self._arrived(values, expected, scale) | (expected <= BREAKDOWN_ROUNDINGS * self._eps * scale)
            complete = len(values) == space.k
            stop = callback is not None and bool(callback(space.sweeps, values, expected))
            last = stop or space.sweeps + 1 >= self._max_sweeps
            if space.full or last or (complete and bool(there.all())):
                anew = space.full or last or not self._may_combine
                pairs = space.found(self._arrived, "new" if anew else "combined")
                # Rounding sets a floor: a measured residual that no longer halves will not reach the tolerance.
                stalled = float(pairs.residuals.max()) > 0.5 * float(self._best.max())
                if pairs.status == "ok" or space.full or last or stalled or space.sweeps + 1 >= self._max_sweeps:
                    return pairs
                self._best = pairs.residuals
                there = torch.zeros_like(there)
            self._next = space.next_block(directions[~there.to(directions.device)][: self._width], self._block)

    @property
    def span(self) -> tuple[Tensor, Tensor]:
        """The orthonormal vectors multiplied so far (rows), and the products with them."""
        return self._space.basis[: self._space.held], self._space.images[: self._space.held]

    def so_far(self) -> Eigenpairs | None:
        """Return the pairs as they stand without another product; None before there are any.

        Their residuals are of combinations of the products made so far, which says nothing where these are not linear.
        """
        if not self._linear or self._space.torn or self._space.held < self._space.k:
            return None
        return self._space.found(self._arrived, "combined")


class _KrylovSpace:
    """An orthonormal basis V (rows), its images A V and the projection T = V A V^T."""

    def __init__(
        self,
        matvec: Matvec,
        size: int,
        k: int,
        which: Which,
        *,
        limit: int,
        dtype: torch.dtype,
        device: torch.device,
        basis_device: torch.device | str | None,
        seed: int,
        held: HeldPart,
    ) -> None:
        self.part, self.matvec, self.size, self.k, self.which, self.limit = held, matvec, size, k, which, limit
        self.home = torch.device(basis_device) if basis_device is not None else device
        self.basis = torch.zeros(0, held.rows, dtype=dtype, device=self.home)
        self.images = torch.zeros_like(self.basis)
        self.torn = False  # while it is cut to its best part
        self.projection = torch.zeros(limit, limit, dtype=torch.float64)
        self.held, self.scale = 0, 0.0
        self.device, self.seed, self.sweeps, self.products, self.draws = device, seed, 0, 0, 0
        self.eps = torch.finfo(dtype).eps

    def _make_room(self, count: int) -> None:
        """Let the basis hold so many vectors: a search of few steps does not take the memory of a long one."""
        room = len(self.basis)
        if count <= room:
            return
        small = self.limit * self.size <= SMALL_BASIS
        more = (self.limit if small else min(self.limit, max(count, room + GROWTH))) - room
        for name in ("basis", "images"):  # one after the other
            held = getattr(self, name)
            setattr(self, name, torch.cat([held, held.new_zeros(more, self.part.rows)]))

    @property
    def full(self) -> bool:
        """Whether the basis spans the whole space, so that the projection is the matrix."""
        return self.held == self.size

    def start_block(self, start: Tensor | None, block: int) -> Tensor:
        return self._orthonormal(self.basis[:0] if start is None else start.T.to(self.basis), block)

    def next_block(self, directions: Tensor, block: int) -> Tensor:
        """Return the directions made orthonormal to the basis, which is first cut to its best part where it is full.

        Directions of rounding size mean an exhausted Krylov space: as many random ones as a block holds take over.
        """
        if self.held + len(directions) > self.limit and self.limit < self.size:
            values, vectors = torch.linalg.eigh(self.projection[: self.held, : self.held])
            keep = min(self.held - 1, self.k + (self.limit - self.k - block) // 2)
            order = self._order(values)[:keep]
            inner = vectors[:, order].T.to(self.basis)
            self.torn = True
            self.basis[:keep] = inner @ self.basis[: self.held]
            self.images[:keep] = inner @ self.images[: self.held]
            self.projection.zero_()
            self.projection[:keep, :keep] = torch.diag(values[order])
            self.held, self.torn = keep, False
        negligible = BREAKDOWN_ROUNDINGS * self.eps * self.scale
        usable = [row for row in directions if length(row, self.part.total) > negligible]
        return self._orthonormal(directions, len(usable) or block, negligible)

    def expand(self, rows: Tensor) -> None:
        """Multiply the new rows behind the basis and take them into it."""
        product = self._product(rows)
        first, held = self.held, self.held + rows.shape[0]
        self.images[first:held] = product
        coupling = self.part.total(self.basis[:held] @ product.T).cpu().double()  # (held, new)
        self.projection[:held, first:held] = coupling
        self.projection[first:held, :held] = coupling.T
        for column, (row, image) in enumerate(zip(rows, product, strict=True)):
            self.projection[first + column, first + column] = inner_product(row, image, self.part.total)
            self.scale = max(self.scale, length(image, self.part.total))
        self.held = held  # last: what stops a product leaves the space as it was

    def ritz(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """Return the wanted Ritz values, the residuals A y - theta y, their lengths, and the largest magnitude of all.

        There are fewer than k while the basis is smaller: the search has only begun.
        """
        values, vectors = torch.linalg.eigh(self.projection[: self.held, : self.held])
        order = self._order(values)[: self.k]
        inner = vectors[:, order].T.to(self.basis)
        directions = inner @ self.images[: self.held]
        directions -= (values[order].to(self.basis)[:, None] * inner) @ self.basis[: self.held]
        lengths = torch.tensor([length(row, self.part.total) for row in directions], dtype=torch.float64)
        return values[order], directions, lengths, float(values.abs().max())

    def found(
        self, arrived: Callable[[Tensor, Tensor, float], Tensor], products: Literal["new", "combined"]
    ) -> Eigenpairs:
        """Return the wanted Ritz vectors with their Rayleigh quotients and residuals.

        These are of a ``new`` product with each, or of the same combination of the products made so far.
        """
        values, vectors = torch.linalg.eigh(self.projection[: self.held, : self.held])
        order = self._order(values)[: self.k]
        inner = vectors[:, order].T.to(self.basis)
        rows = inner @ self.basis[: self.held]
        lengths = self.part.total(rows.square().sum(1, keepdim=True)).sqrt().to(rows)
        rows = rows / lengths
        again = products == "new"
        images = self._product(rows) if again else inner @ self.images[: self.held] / lengths
        rounding = 0.0 if again else COMBINED_ROUNDINGS * self.eps * float(values.abs().max())
        quotients, residuals = [], []
        for row, image in zip(rows, images, strict=True):
            total = self.part.total
            quotient = inner_product(row, image, total) / inner_product(row, row, total)
            quotients.append(quotient)
            residuals.append(distance_along(image, row, quotient, total) / length(row, total) + rounding)
        found = torch.tensor(quotients, dtype=torch.float64)
        errors = torch.tensor(residuals, dtype=torch.float64)
        order = self._order(found)
        found, errors, rows = found[order], errors[order], rows[order.to(rows.device)]
        scale = max(float(values.abs().max()), float(found.abs().max()))
        met = len(found) == self.k and bool(arrived(found, errors, scale).all())
        status: Literal["ok", "budget_spent"] = "ok" if met else "budget_spent"
        ends = (float(values[0]), float(values[-1]))
        return Eigenpairs(found, rows.T.to(self.device), errors, status, self.sweeps, self.products, *ends)

    def _product(self, rows: Tensor) -> Tensor:
        self.sweeps += 1
        self.products += rows.shape[0]
        return checked_product(self.matvec, rows.to(self.device).T, self.part.total).T.to(self.home)

    def _order(self, values: Tensor) -> Tensor:
        key = {"largest": -values, "smallest": values, "magnitude": -values.abs()}[self.which]
        return key.argsort()

    def _orthonormal(self, rows: Tensor, count: int, negligible: float = 0.0) -> Tensor:
        """Return ``count`` orthonormal rows orthogonal to the basis: the given ones, then fresh random ones.

        They are written into the basis behind the rows held, so that no second copy of it is ever needed.
        """
        done, end = self.held, min(self.held + count, self.limit)
        self._make_room(end)
        total, key = self.part.total, self.part.key
        for row in rows:
            before = length(row, total)
            if done == end or before <= negligible:
                continue
            new = orthogonalised(row / before, self.basis[:done], total)
            left = length(new, total)
            if left * before > negligible and left > 100 * self.eps:
                if left < ENOUGH:  # cancellation multiplied what rounding left along the basis
                    new = orthogonalised(new / left, self.basis[:done], total)
                self.basis[done] = new / length(new, total)
                done += 1
        while done < end:
            self.draws += 1
            self.basis[done] = fresh_direction(self.basis[:done], seeded_generator(self.seed, self.draws, *key), total)
            done += 1
        return self.basis[self.held : end]
