"""Extreme eigenpairs of D⁻¹AD⁻¹ for one diagonal D after another, from one growing set of products with A.

With u = Dx an eigenpair of D⁻¹AD⁻¹ is one of the pencil A x = λ D² x.  So vectors x that were multiplied by A once
serve every D: their Rayleigh quotients xᵀAx / xᵀD²x and the residuals D⁻¹Ax - θDx take no further product.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spiritlevel.engine.estimators.eigenvalues import BASIS_SHARE, COMBINED_ROUNDINGS, Eigenpairs, Which
from spiritlevel.engine.estimators.lanczos import AT_ONCE, Matvec, checked_product, length, orthogonalised, wide
from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.inputs.process.memory_limit import free_bytes

MOST_VECTORS = 96
FEWEST, MOST = 3, 60  # products for a D
# Eigenvalues of the vectors' D-weighted Gram matrix below this share of its largest are rounding.
NEGLIGIBLE_SHARE = 1e-13


class ScaledEigenpairs:
    """The search: an orthonormal basis V (rows) with its images V A, which each D that is asked for may extend."""

    def __init__(
        self,
        matvec: Matvec,
        size: int,
        *,
        span: tuple[Tensor, Tensor] | None = None,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self._matvec, self._size, self._seed = matvec, size, seed
        self._basis = torch.zeros(0, size, dtype=dtype, device=device)
        self._images = self._basis.clone()
        if span is not None:
            self._basis, self._images = (part.to(self._basis).clone() for part in span)
        room = BASIS_SHARE * free_bytes(self._basis.device) / (2 * size * dtype.itemsize)
        self._limit = max(8, min(MOST_VECTORS, size, int(room)))
        self._draws = 0
        self.products = 0

    def find(
        self,
        scale: Tensor,
        k: int = 1,
        which: Which = "largest",
        *,
        tolerance: float = 1e-3,
        least: int = FEWEST,
        most: int = MOST,
    ) -> Eigenpairs:
        """Return the k pairs of D⁻¹AD⁻¹ at an end of its spectrum, D = diag(``scale``), with at most so many products.

        As in every search a random direction, random in the coordinates of u, keeps the basis from missing what is
        sought, and ``least`` products from it must have been made before a pair is believed to be the outermost;
        0 where this D is close to one that was looked at.
        """
        scale = scale.to(self._basis)
        before = self.products
        if least or not len(self._basis):
            self._draws += 1
            generator = seeded_generator(self._seed, self._draws)
            drawn = torch.randn(self._size, generator=generator, dtype=torch.float64).to(self._basis)
            self.extend([drawn / scale])
        while True:
            pairs, residuals = self._ritz(scale, k, which, tolerance)
            looked = self.products - before >= least or len(self._basis) == self._size
            if (pairs.status == "ok" and looked) or self.products - before >= most:
                return pairs
            allowed = tolerance * max(abs(pairs.lowest), abs(pairs.highest))
            open_ones = [row for row, found in zip(residuals, pairs.residuals) if float(found) > allowed]
            if len(self._basis) + k > self._limit:
                self._keep_best(scale, which, self._limit // 2)
            if not self.extend([row / scale for row in (open_ones or list(residuals))]):
                return pairs

    def extend(self, rows: list[Tensor]) -> bool:
        """Multiply what of some directions is new to the basis; False where nothing of them is."""
        if len(self._basis) == self._size:
            return False
        if len(self._basis) + len(rows) > self._limit:
            self._basis, self._images = self._basis[len(rows) :], self._images[len(rows) :]  # the oldest go
        new: list[Tensor] = []
        for row in rows[: self._size - len(self._basis)]:
            before = length(row)
            if before == 0:
                continue
            held = torch.cat([self._basis, *(one[None] for one in new)])
            left = orthogonalised(row / before, held)
            if length(left) > 100 * torch.finfo(row.dtype).eps:
                left = orthogonalised(left / length(left), held)
                new.append(left / length(left))
        if not new:
            return False
        block = torch.stack(new)
        self.products += len(new)
        self._images = torch.cat([self._images, checked_product(self._matvec, block.T).T])
        self._basis = torch.cat([self._basis, block])
        return True

    def _keep_best(self, scale: Tensor, which: Which, count: int) -> None:
        """Cut the basis to the best Ritz vectors of a D, as a thick restart does."""
        combinations, _ = self._combinations(scale, which)
        best = combinations[:count].to(self._basis.device)
        rows, mixed = torch.linalg.qr((best @ wide(self._basis)).T)
        images = torch.linalg.solve_triangular(mixed.T, best @ wide(self._images), upper=False)
        self._basis, self._images = rows.T.to(self._basis).contiguous(), images.to(self._images)

    def _ritz(self, scale: Tensor, k: int, which: Which, tolerance: float) -> tuple[Eigenpairs, Tensor]:
        """Return the wanted Ritz pairs in the coordinates of u with their residual vectors (k, P)."""
        combinations, values = self._combinations(scale, which)
        combined = wide(combinations[:k].to(self._basis.device))
        parts = self._parts()
        rows = torch.cat([combined @ wide(self._basis[:, some]) * wide(scale[some]) for some in parts], dim=1)
        images = torch.cat([combined @ wide(self._images[:, some]) / wide(scale[some]) for some in parts], dim=1)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows, images = rows / lengths, images / lengths
        found = torch.linalg.vecdot(rows, images)
        directions = images - found[:, None] * rows
        scaled = float(values.abs().max())
        rounding = COMBINED_ROUNDINGS * torch.finfo(self._basis.dtype).eps * scaled
        errors = torch.linalg.vector_norm(directions, dim=1).cpu() + rounding
        met = len(found) == k and bool((errors <= tolerance * scaled).all())
        status: Literal["ok", "budget_spent"] = "ok" if met else "budget_spent"
        ends = (float(values[0]), float(values[-1]))
        vectors = rows.T.to(self._basis)
        pairs = Eigenpairs(found.cpu(), vectors, errors, status, self.products, self.products, *ends)
        return pairs, directions.to(self._basis)

    def _combinations(self, scale: Tensor, which: Which) -> tuple[Tensor, Tensor]:
        """Return the Ritz vectors as combinations (rows) of the basis, the wanted ones first, and all Ritz values."""
        held = len(self._basis)
        projection, gram = torch.zeros(2, held, held, dtype=torch.float64)
        for some in self._parts():
            rows = wide(self._basis[:, some])
            projection += (rows @ wide(self._images[:, some]).T).cpu().double()
            gram += ((rows * wide(scale[some]).square()) @ rows.T).cpu().double()
        weights, axes = torch.linalg.eigh(gram)
        kept = weights > NEGLIGIBLE_SHARE * weights[-1]
        white = axes[:, kept] / weights[kept].sqrt()
        values, inner = torch.linalg.eigh(white.T @ ((projection + projection.T) / 2) @ white)
        order = {"largest": -values, "smallest": values, "magnitude": -values.abs()}[which].argsort()
        return (white @ inner[:, order]).T, values

    def _parts(self) -> list[slice]:
        """Return slices of the parameters that are taken in float64 at one time."""
        step = max(1, AT_ONCE // max(len(self._basis), 1))
        return [slice(start, start + step) for start in range(0, self._size, step)]
