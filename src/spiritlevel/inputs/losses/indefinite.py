"""Signed factors of symmetric matrices that need not be positive semidefinite."""

from __future__ import annotations

import torch
from torch import Tensor

# Eigenvalues below this share of the largest are rounding of zeros.
NEGLIGIBLE = 1e-14


def eigen_columns(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Columns ``(K, B, D)`` and signs ``(K, B)`` with Σ_k sign_k S_k S_kᵀ the matrices ``(B, D, D)``.

    The columns are eigenvectors times √|λ|, by falling |λ|. K is the largest number of non-zero eigenvalues in the
    batch; matrices with fewer have zero columns.
    """
    values, vectors = _eigenpairs(matrices)
    order = values.abs().argsort(-1, descending=True)
    values = values.gather(-1, order)
    vectors = vectors.gather(-1, order[:, None].expand_as(vectors))
    kept = max(1, int((values != 0).sum(-1).max()))
    columns = (vectors * values.abs().sqrt()[:, None])[..., :kept].permute(2, 0, 1)
    signs = (values[:, :kept] >= 0).to(values.dtype) * 2 - 1
    return columns, signs.T


def signed_roots(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Positive semidefinite roots P and N ``(B, D, D)`` with P P - N N the matrices.

    Unlike eigenvectors, which turn freely where eigenvalues coincide, the roots are unique: a random combination of
    their columns is the same number whatever else was in the batch.
    """
    values, vectors = _eigenpairs(matrices)
    positive = (vectors * values.clamp(min=0).sqrt()[:, None]) @ vectors.mT
    negative = (vectors * (-values).clamp(min=0).sqrt()[:, None]) @ vectors.mT
    return positive, negative


def _eigenpairs(matrices: Tensor) -> tuple[Tensor, Tensor]:
    double = matrices.double()
    values, vectors = torch.linalg.eigh(0.5 * (double + double.mT))
    largest = values.abs().amax(-1, keepdim=True)
    return values.where(values.abs() > NEGLIGIBLE * largest, 0.0), vectors
