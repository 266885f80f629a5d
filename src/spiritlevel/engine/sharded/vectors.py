"""Vectors over the parameters of a sharded model: every rank holds the entries beside its own parameters."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from spiritlevel.engine.estimators.held_part import HeldPart
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.sharded.open_sharded import ShardedProblem

SQUARES_AT_ONCE = 2**20  # entries of which copies in float64 are made


def held_part(problem: ShardedProblem) -> HeldPart:
    """Return what of every vector lies here."""
    return HeldPart(problem.local_size, problem.company.total, (problem.company.rank,))


def norm(problem: ShardedProblem, parts: Sequence[Tensor]) -> float:
    """Return the length of a vector, accumulated in float64 over all ranks."""
    return float(problem.company.total(squares(parts).sum()).sqrt())


def squares(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of squares of every part here, in float64."""
    found = torch.zeros(len(parts), dtype=torch.float64, device=parts[0].device)
    for row, part in zip(found, parts):
        for piece in part.detach().reshape(-1).split(SQUARES_AT_ONCE):  # not a part of any graph
            row += piece.double().square().sum()
    return found


def local_signs(problem: ShardedProblem, count: int, *, seed: int, first: int = 0) -> Tensor:
    """Return this rank's entries of random signs, (local, count): those that the whole model has at its places."""
    sizes = [problem.layouts[name].shape.numel() for name in problem.parameters]
    begins = itertools.accumulate(sizes, initial=0)
    rows = []
    for name, begin, size in zip(problem.parameters, begins, sizes):
        layout = problem.layouts[name]
        if layout.dim == 0:
            begin, size = begin + layout.start * layout.inner.numel(), layout.length * layout.inner.numel()
        if size == 0:
            continue
        drawn = random_signs(
            size, count, seed=seed, first=first, begin=begin, dtype=problem.dtype, device=problem.device
        ).T
        if layout.dim != 0:
            drawn = drawn.reshape(count, *layout.shape).narrow(layout.dim + 1, layout.start, layout.length)
        rows.append(drawn.reshape(count, size if layout.dim == 0 else layout.length * layout.inner.numel()))
    return torch.cat(rows, 1).T if rows else torch.zeros(0, count, dtype=problem.dtype, device=problem.device)


def inner_products(problem: ShardedProblem, left: Tensor, right: Tensor) -> Tensor:
    """Return each parameter's part of the inner products of columns, (parameters, columns), over all ranks."""
    sizes = [part.numel() for part in problem.tensors]
    own = left.new_zeros((len(sizes), left.shape[1]), dtype=torch.float64)
    for row, a, b in zip(own, left.split(sizes), right.split(sizes)):
        for first, second in zip(a.split(SQUARES_AT_ONCE), b.split(SQUARES_AT_ONCE)):
            row += (first.double() * second.double()).sum(0)
    return problem.company.total(own).cpu()


def split(problem: ShardedProblem, columns: Tensor) -> list[Tensor]:
    """Return the columns (local, K) by parameter, (K, *shape of the part)."""
    pieces = columns.split([part.numel() for part in problem.tensors])
    return [piece.T.reshape(columns.shape[1], *part.shape) for piece, part in zip(pieces, problem.tensors)]


def join(parts: Sequence[Tensor]) -> Tensor:
    """Return columns (local, K) of tensors (K, *shape of the part)."""
    return torch.cat([part.reshape(len(part), part[0].numel()) for part in parts], 1).T


def leading(problem: ShardedProblem, span: tuple[Tensor, Tensor], count: int) -> tuple[Tensor, Tensor]:
    """Return the Ritz vectors of largest magnitude of a space (orthonormal rows), and the products with them."""
    basis, images = span
    projection = problem.company.total(basis @ images.T).cpu()
    values, vectors = torch.linalg.eigh((projection + projection.T) / 2)
    inner = vectors[:, values.abs().argsort(descending=True)[:count]].T.to(basis)
    return inner @ basis, inner @ images
