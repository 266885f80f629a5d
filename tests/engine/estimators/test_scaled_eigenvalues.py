"""Eigenpairs of D⁻¹AD⁻¹ for many D from shared products, against dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spiritlevel.engine.estimators.scaled_eigenvalues import ScaledEigenpairs

SIZE = 120


def matrix() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(SIZE, 20, generator=generator, dtype=torch.float64)
    diagonal = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    return (
        vectors @ torch.diag(torch.logspace(0, 2, 20, dtype=torch.float64)) @ vectors.T / SIZE + 0.1 * diagonal.diag()
    )


def scaled(a: Tensor, scale: Tensor) -> Tensor:
    return a / scale[:, None] / scale[None]


@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
@pytest.mark.parametrize("size", [0.0, 0.5, 2.0, 5.0])
def test_pairs_of_every_scale_are_those_of_the_dense_matrix(which: str, size: float) -> None:
    a = matrix()
    search = ScaledEigenpairs(lambda v: a @ v, SIZE, dtype=torch.float64)
    for seed in range(3):
        signs = torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).sign()
        scale = torch.exp(size * signs)
        dense = scaled(a, scale)
        values = torch.linalg.eigvalsh(dense)
        key = {"largest": -values, "smallest": values, "magnitude": -values.abs()}[which]
        found = search.find(scale, 2, which, tolerance=1e-6, most=200)  # type: ignore[arg-type]
        assert found.status == "ok"
        torch.testing.assert_close(found.values, values[key.argsort()[:2]], rtol=1e-5, atol=0)
        apart = dense @ found.vectors - found.values * found.vectors
        assert (apart.norm(dim=0) <= found.residuals * 1.001 + 1e-12).all()


def test_a_line_of_scales_takes_hardly_more_products_than_one() -> None:
    a = matrix()
    signs = torch.randn(SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64).sign()
    search = ScaledEigenpairs(lambda v: a @ v, SIZE, dtype=torch.float64)
    search.find(torch.ones(SIZE, dtype=torch.float64), tolerance=1e-3)
    first = search.products
    for t in torch.linspace(0.05, 1.0, 20):
        scale = torch.exp(t * signs)
        found = search.find(scale, tolerance=1e-3, least=0)
        top = float(torch.linalg.eigvalsh(scaled(a, scale))[-1])
        assert abs(float(found.values[0]) - top) <= float(found.residuals[0])
    assert search.products <= first + 20


def test_a_guess_makes_no_product_and_stays_below_the_largest() -> None:
    a = matrix()
    search = ScaledEigenpairs(lambda v: a @ v, SIZE, dtype=torch.float64)
    ones = torch.ones(SIZE, dtype=torch.float64)
    search.find(ones, tolerance=1e-3)
    before = search.products
    scale = torch.exp(torch.linspace(-1, 1, SIZE, dtype=torch.float64))
    guess = search.find(scale, least=0, most=0)
    assert search.products == before
    assert 0 < float(guess.values[0]) <= float(torch.linalg.eigvalsh(scaled(a, scale))[-1])


def test_a_full_basis_gives_up_its_oldest_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spiritlevel.engine.estimators.scaled_eigenvalues.MOST_VECTORS", 12)
    a = matrix()
    search = ScaledEigenpairs(lambda v: a @ v, SIZE, dtype=torch.float64)
    for seed in range(4):
        scale = torch.rand(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5
        found = search.find(scale, tolerance=1e-2, most=100)
        top = float(torch.linalg.eigvalsh(scaled(a, scale))[-1])
        assert found.status == "ok"
        assert float(found.values[0]) == pytest.approx(top, rel=1e-2)
