"""Lanczos for several start vectors in lock-step: one product with all of them a step, each with its own basis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from spiritlevel.engine.estimators.held_part import Total, whole
from spiritlevel.engine.estimators.probes import random_signs, seeded_generator
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.inputs.process.precision import full_float32
from spiritlevel.values.errors import SpiritlevelError, UsageError

Matvec = Callable[[Tensor], Tensor]  # (P, K) -> (P, K), a symmetric matrix applied to K columns

# A new direction shorter than this many roundings of ||T|| is rounding: the Krylov space is exhausted.
BREAKDOWN_ROUNDINGS = 10.0
# A pass of Gram-Schmidt that leaves this share of a vector's length need not be repeated (Daniel et al. 1976).
ENOUGH = 0.7
# Numbers of a vector that are taken to float64 at a time: no copy of a large one is made.
AT_ONCE = 2**24
# Allowance for the rounding of the products themselves in a bound read off the recurrence, in roundings of ||T||.
PRODUCT_ROUNDINGS = 16.0


@dataclass(frozen=True)
class Lanczos:
    """Tridiagonal projections of one symmetric matrix, one per start vector, with the bases they were made in.

    For probe k the rows q_1 … q_m of ``basis[k]`` are orthonormal and A is tridiagonal in them: ``alphas[:, k]`` on
    the diagonal, ``betas[:-1, k]`` beside it, and ``betas[-1, k]`` the length of what is left over.  Where
    ``broken[j, k]``, the Krylov space was exhausted after step j + 1, the next vector is a fresh random direction and
    the coupling is 0; ``betas`` then holds the rounding-sized remainder that was dropped.
    """

    alphas: Tensor  # (m, K) float64 on the CPU
    betas: Tensor  # (m, K) float64 on the CPU
    broken: Tensor  # (m, K) bool on the CPU
    basis: Tensor  # (K, m, P) in the matrix's dtype, on the basis device
    start_norms: Tensor  # (K,) float64 on the CPU: lengths of the start vectors as given

    @property
    def steps(self) -> int:
        """The number of products made with each probe."""
        return self.alphas.shape[0]

    @property
    def probes(self) -> int:
        """The number of start vectors."""
        return self.alphas.shape[1]

    @property
    def size(self) -> int:
        """The order P of the matrix."""
        return self.basis.shape[2]

    def tridiagonal(self, probe: int) -> Tensor:
        """Return the (m, m) projection of the matrix on one probe's basis, zeros where the space was exhausted."""
        off = torch.where(self.broken[:-1, probe], 0.0, self.betas[:-1, probe])
        return torch.diag(self.alphas[:, probe]) + torch.diag(off, 1) + torch.diag(off, -1)

    @cached_property
    def _decomposition(self) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues (K, m) ascending, their vectors (K, m, m) and |beta * last component| of the block (K, m)."""
        values = torch.zeros(self.probes, self.steps, dtype=torch.float64)
        vectors = torch.zeros(self.probes, self.steps, self.steps, dtype=torch.float64)
        remainders = torch.zeros_like(values)
        for probe in range(self.probes):
            matrix = self.tridiagonal(probe)
            ends = [j for j in range(self.steps - 1) if self.broken[j, probe]] + [self.steps - 1]
            first = 0
            # Block by block, so that equal eigenvalues of decoupled blocks cannot mix and share out the weight.
            for end in ends:
                block = slice(first, end + 1)
                values[probe, block], inner = torch.linalg.eigh(matrix[block, block])
                vectors[probe, block, block] = inner
                remainders[probe, block] = (self.betas[end, probe] * inner[-1]).abs()
                first = end + 1
            order = values[probe].argsort()
            values[probe] = values[probe][order]
            vectors[probe] = vectors[probe][:, order]
            remainders[probe] = remainders[probe][order]
        return values, vectors, remainders

    @property
    def ritz_values(self) -> Tensor:
        """Eigenvalues of the projections, (K, m), ascending."""
        return self._decomposition[0]

    @property
    def weights(self) -> Tensor:
        """Squared first components of the projections' eigenvectors, (K, m): quadrature weights that sum to 1."""
        return self._decomposition[1][:, 0, :].square()

    @property
    def residual_bounds(self) -> Tensor:
        """Lengths ||A y - theta y|| of each Ritz pair by the recurrence, |beta_m s_mi|, plus the products' rounding.

        An eigenvalue of A lies within this distance of the Ritz value; which one it is the bound does not say.
        """
        return self._decomposition[2] + self.rounding[:, None]

    @property
    def rounding(self) -> Tensor:
        """The allowance for rounding in the products of each probe, (K,)."""
        return PRODUCT_ROUNDINGS * torch.finfo(self.basis.dtype).eps * self.ritz_values.abs().amax(dim=1)

    def ritz_vectors(self, probe: int, indices: Tensor | list[int]) -> Tensor:
        """Return the unit Ritz vectors of the Ritz values numbered ``indices``, as (P, n) on the basis device."""
        inner = self._decomposition[1][probe][:, torch.as_tensor(indices)]
        return self.basis[probe].T @ inner.to(self.basis)


def lanczos(
    matvec: Matvec,
    start: Tensor,
    steps: int,
    *,
    basis_device: torch.device | str | None = None,
    callback: Callable[[Lanczos], bool | None] | None = None,
    seed: int = 0,
) -> Lanczos:
    """Run ``steps`` of Lanczos from every column of ``start`` (P, K) at once, one call of ``matvec`` a step.

    Every new vector is orthogonalised against its probe's whole basis after the recurrence's own two terms, until a
    pass takes nothing more away; the scalars are float64 and the off-diagonal is taken after re-orthogonalisation, so
    the tridiagonal is the projection onto the stored basis.
    The bases take ``steps * K * P`` numbers, kept on ``basis_device`` (default: where ``start`` is); orthogonalisation
    happens there.  ``callback`` sees the result after each step and stops the run by returning True.
    """
    if start.ndim != 2 or not start.is_floating_point():
        raise UsageError(f"start must be a floating-point (P, K) tensor; found {tuple(start.shape)} of {start.dtype}.")
    if steps < 1:
        raise UsageError(f"steps must be at least 1; found {steps}.")
    size, probes = start.shape
    steps = min(steps, size)  # then the space is full and the projection is the matrix itself
    home = torch.device(basis_device) if basis_device is not None else start.device

    alphas = torch.zeros(steps, probes, dtype=torch.float64)
    betas = torch.zeros(steps, probes, dtype=torch.float64)
    broken = torch.zeros(steps, probes, dtype=torch.bool)
    basis = torch.zeros(probes, steps, size, dtype=start.dtype, device=home)
    norms = torch.tensor([length(start[:, k]) for k in range(probes)], dtype=torch.float64)
    if not bool(torch.isfinite(norms).all()) or bool((norms == 0).any()):
        raise UsageError("every start vector must be finite and not zero; pass random signs or normal draws.")
    for k in range(probes):
        basis[k, 0] = (start[:, k] / norms[k].to(start.device, start.dtype)).to(home)

    result = Lanczos(alphas, betas, broken, basis, norms)
    scale = torch.zeros(probes, dtype=torch.float64)  # running bound of ||T||
    for step in range(steps):
        last = basis[:, step]
        new = checked_product(matvec, last.T.to(start.device)).T.to(home)
        alphas[step], squares = _on_cpu(_rowwise(last, new), _rowwise(new, new))
        scale = torch.maximum(scale, squares.sqrt())
        # The recurrence's own two terms first: what is left then has about its final length, so that one pass over the
        # whole basis removes rounding alone, and only where it took away more than that a second one is needed.
        new = new - alphas[step].to(new)[:, None] * last
        if step:
            coupling = torch.where(broken[step - 1], 0.0, betas[step - 1])
            new -= coupling.to(new)[:, None] * basis[:, step - 1]
        betas[step] = _without_basis(new, basis[:, : step + 1])
        if step + 1 < steps:
            broken[step] = betas[step] <= BREAKDOWN_ROUNDINGS * torch.finfo(start.dtype).eps * scale
            basis[:, step + 1] = new / betas[step].where(~broken[step], 1.0).to(new)[:, None]
            for k in broken[step].nonzero()[:, 0].tolist():
                basis[k, step + 1] = fresh_direction(basis[k, : step + 1], seeded_generator(seed, k, step))
        if callback is not None:
            done = step + 1
            result = Lanczos(alphas[:done], betas[:done], broken[:done], basis[:, :done], norms)
            if callback(result):
                return result
    return Lanczos(alphas, betas, broken, basis, norms)


def lanczos_in_time(
    matvec: Matvec, start: Tensor, steps: int, callback: Callable[[Lanczos], bool | None] | None = None, **options: Any
) -> Lanczos:
    """Run so many steps of Lanczos, or as many as there was time for where a product is refused after some."""
    known: list[Lanczos] = []

    def keep(run: Lanczos) -> bool:
        known[:] = [run]
        return callback is not None and bool(callback(run))

    try:
        return lanczos(matvec, start, steps, callback=keep, **options)
    except TimeSpent:
        if not known:
            raise
        return known[0]


def _without_basis(rows: Tensor, bases: Tensor) -> Tensor:
    """Take from each row (K, P), in place, its part along its own basis (K, m, P); return the lengths left, float64."""
    left = _rowwise(rows, rows)
    again = list(range(len(rows)))
    # A GPU takes all at once, for launches count there; a CPU one a core, so that a basis is still in its caches when
    # it is read the second time.
    at_once = len(rows) if rows.is_cuda else torch.get_num_threads()
    lengths: Tensor
    while True:
        before = left
        step = at_once if len(again) == len(rows) else 1
        with full_float32():
            for k in again[::step]:
                some, theirs = rows[k : k + step, None], bases[k : k + step]
                some.baddbmm_(torch.bmm(some, theirs.mT), theirs, alpha=-1)
        left = _rowwise(rows, rows)
        lengths_before, lengths = _on_cpu(before, left).sqrt()
        # Cancellation multiplies what rounding left along the basis; after a pass without it there is none to multiply.
        again = [k for k in again if 0 < lengths[k] < ENOUGH * lengths_before[k]]
        if not again:
            return lengths


def _rowwise(left: Tensor, right: Tensor) -> Tensor:
    """Return the inner products of corresponding rows, accumulated in float64, where the rows are."""
    if left.is_cuda:
        products: Tensor = torch.linalg.vecdot(wide(left), wide(right))
        return products
    return torch.stack([torch.dot(wide(a), wide(b)) for a, b in zip(left, right)])


def _on_cpu(*vectors: Tensor) -> Tensor:
    """Return vectors as the rows of one float64 tensor on the CPU: a GPU is waited for once."""
    return torch.stack(vectors).cpu().double()


def checked_product(matvec: Matvec, columns: Tensor, total: Total = whole) -> Tensor:
    """Return ``matvec(columns)``, refusing a result of the wrong shape or one that is not finite."""
    product = matvec(columns)
    if product.shape != columns.shape:
        raise UsageError(
            f"the matrix product must return the shape it was given, {tuple(columns.shape)}; "
            f"found {tuple(product.shape)}."
        )
    # The sum tells, unless it is the sum itself that is too large.
    if not bool(torch.isfinite(total(product.sum()))) and bool(total((~torch.isfinite(product)).sum()) > 0):
        raise SpiritlevelError(
            "a product with the matrix is not finite, so no spectrum exists here; check the weights and the loss for "
            "infinities, or measure in float64."
        )
    return product


def orthogonalised(vector: Tensor, basis: Tensor, total: Total = whole) -> Tensor:
    """Return the part of ``vector`` orthogonal to the rows of ``basis``: Gram-Schmidt twice, which is enough."""
    for _ in range(2):
        vector = torch.addmv(vector, basis.T, total(basis @ vector).to(vector), alpha=-1)
    return vector


def fresh_direction(basis: Tensor, generator: torch.Generator, total: Total = whole) -> Tensor:
    """Return a random unit vector orthogonal to the rows of ``basis``, which must not span the space."""
    while True:
        draw = _drawn(basis, generator)
        before = length(draw, total)
        draw = orthogonalised(draw, basis, total)
        after = length(draw, total)
        if after > 100 * torch.finfo(basis.dtype).eps * before:
            draw = orthogonalised(draw / after, basis, total)
            return draw / length(draw, total)


def _drawn(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random vector of rows' length: normal numbers, or signs where drawing these would take long."""
    size = like.shape[1]
    if size <= AT_ONCE:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(like.dtype).to(like.device)
    seed = int(torch.randint(2**62, (), generator=generator))
    return random_signs(size, 1, seed=seed, dtype=like.dtype, device=like.device)[:, 0]


def wide(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, the precision scalars are accumulated in (float32 on MPS, which has no other)."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def inner_product(left: Tensor, right: Tensor, total: Total = whole) -> float:
    """Return the inner product of two vectors, accumulated in float64."""
    parts = [torch.dot(wide(a), wide(b)) for a, b in zip(left.split(AT_ONCE), right.split(AT_ONCE))]
    return float(total(torch.stack(parts).sum()))


def length(vector: Tensor, total: Total = whole) -> float:
    """Return the Euclidean length of a vector, accumulated in float64."""
    return distance_along(vector, total=total)


def distance_along(vector: Tensor, other: Tensor | None = None, factor: float = 0.0, total: Total = whole) -> float:
    """Return the length of ``vector - factor * other``, formed and accumulated in float64."""
    norms = []
    for start in range(0, len(vector), AT_ONCE):
        part = wide(vector[start : start + AT_ONCE])
        if other is not None:
            part = part - factor * wide(other[start : start + AT_ONCE])
        norms.append(torch.linalg.vector_norm(part))
    own = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    return float(own if total is whole else total(own.square()).sqrt())
