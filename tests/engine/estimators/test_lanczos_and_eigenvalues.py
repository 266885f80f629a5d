"""Lanczos and eigenpairs on matrices whose spectrum is chosen; the dense decomposition decides."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spiritlevel.engine.estimators.eigenvalues import top_eigenpairs
from spiritlevel.engine.estimators.lanczos import Lanczos, lanczos
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.quadrature import extreme_ritz, frobenius_squared
from spiritlevel.values.errors import SpiritlevelError, UsageError

SIZE = 120
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def spectra() -> dict[str, Tensor]:
    line = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    triple = line**3
    triple[-3:] = 4.0
    clustered = line.abs()
    clustered[-5:] = 2.0 + 1e-4 * torch.arange(5)
    deficient = torch.zeros(SIZE, dtype=torch.float64)
    deficient[:6] = torch.tensor([5.0, 3.0, 3.0, 1.0, 0.5, -2.0])
    negative = -1.0 - line.square()
    outliers = 1e-3 * line.square()
    outliers[:4] = torch.tensor([8.0, 4.0, 2.0, -9.0])
    return {
        "triple": triple,
        "clustered": clustered,
        "deficient": deficient,
        "negative": negative,
        "outliers": outliers,
        "identity": torch.ones(SIZE, dtype=torch.float64),
        "zero": torch.zeros(SIZE, dtype=torch.float64),
    }


SPECTRA = spectra()


def matrix(values: Tensor, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64))
    dense = (q * values) @ q.T
    return ((dense + dense.T) / 2).to(dtype)


def run(dense: Tensor, steps: int, probes: int = 3, seed: int = 0) -> Lanczos:
    return lanczos(lambda x: dense @ x, random_signs(len(dense), probes, seed=seed, dtype=dense.dtype), steps)


def distance_to_spectrum(values: Tensor, dense: Tensor) -> Tensor:
    exact = torch.linalg.eigvalsh(dense.double())
    return (values[..., None] - exact).abs().amin(dim=-1)


cases = pytest.mark.parametrize("name", SPECTRA)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
scales = pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])


@cases
@dtypes
@scales
def test_tridiagonal_is_the_projection_and_certificates_hold(name: str, dtype: torch.dtype, scale: float) -> None:
    dense = matrix(scale * SPECTRA[name], dtype)
    norm = float(torch.linalg.eigvalsh(dense.double()).abs().max())
    result = run(dense, 40)
    eps = torch.finfo(dtype).eps
    for probe in range(result.probes):
        basis = result.basis[probe].double()
        assert (basis @ basis.T - torch.eye(40)).abs().max() < 30 * eps
        projected = basis @ dense.double() @ basis.T
        assert (projected - result.tridiagonal(probe)).abs().max() <= 30 * eps * norm
    assert (result.weights.sum(dim=1) - 1).abs().max() < 1e-13
    assert (result.weights >= 0).all()
    # The dense reference rounds too.
    assert (distance_to_spectrum(result.ritz_values, dense) <= result.residual_bounds + 1e-14 * norm).all()


@cases
def test_full_order_reproduces_spectrum_and_moments(name: str) -> None:
    values = SPECTRA[name]
    dense = matrix(values)
    result = run(dense, 10 * SIZE, probes=2)  # steps beyond the order are not taken
    assert result.steps == SIZE
    exact = torch.linalg.eigvalsh(dense)
    assert (result.ritz_values - exact).abs().max() < 1e-12 * max(1.0, float(exact.abs().max()))
    start = random_signs(SIZE, 2, dtype=torch.float64)
    for order in range(8):
        moment = torch.stack([z @ torch.linalg.matrix_power(dense, order) @ z for z in start.T])
        quadrature = result.start_norms**2 * (result.weights * result.ritz_values**order).sum(dim=1)
        torch.testing.assert_close(quadrature, moment, rtol=1e-11, atol=1e-10)


def test_few_steps_match_moments_to_twice_their_number() -> None:
    dense = matrix(SPECTRA["triple"])
    start = random_signs(SIZE, 1, dtype=torch.float64)
    result = run(dense, 4, probes=1)
    z = start[:, 0]
    for order in range(8):  # m = 4 steps: exact through degree 2 m - 1 = 7
        exact = z @ torch.linalg.matrix_power(dense, order) @ z
        assert SIZE * float((result.weights * result.ritz_values**order).sum()) == pytest.approx(
            float(exact), rel=1e-11
        )
    beyond = float(z @ torch.linalg.matrix_power(dense, 8) @ z)
    assert SIZE * float((result.weights * result.ritz_values**8).sum()) != pytest.approx(beyond, rel=1e-9)


@dtypes
def test_no_ghost_copies_after_300_steps(dtype: torch.dtype) -> None:
    values = torch.linspace(0, 1, 400, dtype=torch.float64)
    values[-2:] = torch.tensor([50.0, 100.0])  # converge in a few steps: copies appear without re-orthogonalisation
    result = run(matrix(values, dtype), 300, probes=2)
    for ritz in result.ritz_values:
        assert int((ritz > 10).sum()) == 2
    basis = result.basis[0].double()
    assert (basis @ basis.T - torch.eye(300)).abs().max() < 50 * torch.finfo(dtype).eps


@dtypes
@scales
def test_exhausted_space_continues_without_weight(dtype: torch.dtype, scale: float) -> None:
    dense = matrix(scale * SPECTRA["deficient"], dtype)
    result = run(dense, 30)
    assert result.broken.any(dim=0).all()
    for probe in range(result.probes):
        first = int(result.broken[:, probe].nonzero()[0])
        carried = result.weights[probe] > 1e-12
        assert int(carried.sum()) <= first + 1
        # All of ||A z||^2 is in the first block: the fresh directions carry nothing.
        z = random_signs(SIZE, 3, dtype=torch.float64)[:, probe]
        exact = float((dense.double() @ z).square().sum())
        found = SIZE * float((result.weights[probe] * result.ritz_values[probe] ** 2).sum())
        assert found == pytest.approx(exact, rel=1e-5 if dtype == torch.float32 else 1e-12)


def test_start_orthogonal_to_the_top_finds_it_after_exhaustion() -> None:
    values = torch.zeros(SIZE, dtype=torch.float64)
    values[:3] = torch.tensor([7.0, 2.0, 1.0])
    dense = matrix(values)
    _, vectors = torch.linalg.eigh(dense)
    start = vectors[:, -2:].sum(dim=1) - vectors[:, -1] + vectors[:, 0]  # no component along the top
    result = lanczos(lambda x: dense @ x, start[:, None], 12)
    top = int(result.ritz_values[0].argmax())
    assert float(result.ritz_values[0, top]) == pytest.approx(7.0, rel=1e-12)
    assert float(result.weights[0, top]) < 1e-20
    pairs = top_eigenpairs(lambda x: dense @ x, SIZE, 1, start=start[:, None], tolerance=1e-10, dtype=torch.float64)
    assert float(pairs.values[0]) == pytest.approx(7.0, rel=1e-12)


@pytest.mark.parametrize("name", ["triple", "clustered", "outliers", "negative"])
@pytest.mark.parametrize("steps", [3, 8, 20])
def test_kaniel_paige_inequality(name: str, steps: int) -> None:
    # lambda_1 >= theta_1 >= lambda_1 - (lambda_1 - lambda_n) tan^2(angle) / c_{k-1}(1 + 2 rho)^2,
    # rho = (lambda_1 - lambda_2) / (lambda_2 - lambda_n), the angle between start and the eigenspace of lambda_1.
    dense = matrix(SPECTRA[name])
    exact, vectors = torch.linalg.eigh(dense)
    result = run(dense, steps)
    space = vectors[:, exact > exact[-1] - 1e-9]
    second = float(exact[exact <= exact[-1] - 1e-9].max())
    for probe in range(result.probes):
        cosine = float(torch.linalg.vector_norm(space.T @ result.basis[probe, 0]))
        tangent = math.sqrt(1 - cosine**2) / cosine
        rho = (float(exact[-1]) - second) / (second - float(exact[0]))
        chebyshev = math.cosh((steps - 1) * math.acosh(1 + 2 * rho))
        theta = float(result.ritz_values[probe, -1])
        spread = float(exact[-1] - exact[0])
        assert theta <= float(exact[-1]) + 1e-12
        assert theta >= float(exact[-1]) - spread * (tangent / chebyshev) ** 2 - 1e-12


def test_probes_do_not_depend_on_their_company_or_on_where_the_basis_lies() -> None:
    dense = matrix(torch.linspace(-1, 2, SIZE, dtype=torch.float64))
    together = run(dense, 15, probes=4)
    start = random_signs(SIZE, 1, first=2, dtype=torch.float64)
    alone = lanczos(lambda x: dense @ x, start, 15, basis_device="cpu")
    torch.testing.assert_close(alone.alphas[:, 0], together.alphas[:, 2], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(alone.betas[:, 0], together.betas[:, 2], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("home", [None, "cpu"])
def test_every_device_with_the_basis_there_or_on_the_cpu(device: str, home: str | None) -> None:
    values = SPECTRA["outliers"]
    dense = matrix(values, torch.float32).to(device)
    start = random_signs(SIZE, 4, device=device)
    result = lanczos(lambda x: dense @ x, start, 20, basis_device=home)
    assert result.basis.device.type == (home or device)
    assert extreme_ritz(result, "largest")[0] == pytest.approx(8.0, rel=1e-5)
    assert frobenius_squared(result).value == pytest.approx(float(values.square().sum()), rel=1e-4)
    pairs = top_eigenpairs(lambda x: dense @ x, SIZE, 2, "magnitude", device=device, basis_device=home, start=start)
    assert pairs.status == "ok"
    assert pairs.vectors.device.type == device
    torch.testing.assert_close(pairs.values, torch.tensor([-9.0, 8.0], dtype=torch.float64), rtol=1e-5, atol=0)


def test_one_call_of_all_columns_per_step_and_a_callback_that_stops() -> None:
    dense = matrix(SPECTRA["triple"])
    calls: list[tuple[int, ...]] = []

    def counted(x: Tensor) -> Tensor:
        calls.append(tuple(x.shape))
        return dense @ x

    result = lanczos(
        counted, random_signs(SIZE, 5, dtype=torch.float64), 50, callback=lambda partial: partial.steps == 7
    )
    assert calls == [(SIZE, 5)] * 7
    assert result.steps == 7
    assert result.basis.shape == (5, 7, SIZE)


@dtypes
def test_ritz_vectors_have_the_residual_they_claim(dtype: torch.dtype) -> None:
    dense = matrix(SPECTRA["outliers"], dtype)
    result = run(dense, 25, probes=1)
    vectors = result.ritz_vectors(0, list(range(25))).double()
    true = torch.linalg.vector_norm(dense.double() @ vectors - vectors * result.ritz_values[0], dim=0)
    assert (true <= result.residual_bounds[0]).all()
    assert (result.residual_bounds[0] <= true + 2 * float(result.rounding)).all()


@cases
@dtypes
@scales
@pytest.mark.parametrize("which", ["largest", "smallest", "magnitude"])
def test_eigenpairs_are_the_right_ones_within_certificates(
    name: str, dtype: torch.dtype, scale: float, which: str
) -> None:
    dense = matrix(scale * SPECTRA[name], dtype)
    exact = torch.linalg.eigvalsh(dense.double())
    norm = float(exact.abs().max())
    pairs = top_eigenpairs(lambda x: dense @ x, SIZE, 4, which, tolerance=1e-4, dtype=dtype)  # type: ignore[arg-type]
    assert pairs.status == "ok"
    assert (pairs.residuals <= 1e-4 * norm).all()
    wanted = exact[{"largest": -exact, "smallest": exact, "magnitude": -exact.abs()}[which].argsort()[:4]]
    found = pairs.values
    if which == "magnitude":  # +x and -x may come in either order
        wanted, found = wanted.abs(), found.abs()
    assert (found - wanted).abs().max() <= 1e-4 * norm
    assert (distance_to_spectrum(pairs.values, dense) <= pairs.residuals + 1e-14 * norm).all()
    vectors = pairs.vectors.double()
    assert (vectors.T @ vectors - torch.eye(4)).abs().max() < (1e-5 if dtype == torch.float32 else 1e-12)
    true = torch.linalg.vector_norm(dense.double() @ vectors - vectors * pairs.values, dim=0)
    assert (true - pairs.residuals).abs().max() <= 50 * torch.finfo(dtype).eps * norm


@dtypes
def test_short_end_of_a_lopsided_spectrum_needs_its_own_scale(dtype: torch.dtype) -> None:
    values = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4 * 0.05
    values[:100] *= -1.0
    values[0], values[1] = -0.06, 10.0
    diagonal = values.to(dtype)[:, None]
    pairs = top_eigenpairs(lambda x: diagonal * x, 2000, 1, "smallest", relative_to="value", dtype=dtype)
    assert pairs.status == "ok"
    assert float(pairs.values[0]) == pytest.approx(-0.06, rel=1e-4)
    assert float(pairs.residuals[0]) <= 1e-3 * 0.06
    # Exact zeros have no scale of their own: rounding of the norm is the floor.
    projector = torch.zeros(SIZE, 1, dtype=dtype)
    projector[:3] = 1.0
    assert top_eigenpairs(lambda x: projector * x, SIZE, 2, "smallest", relative_to="value", dtype=dtype).status == "ok"


@dtypes
def test_triple_eigenvalue_is_returned_three_times_and_no_more(dtype: torch.dtype) -> None:
    dense = matrix(SPECTRA["triple"], dtype)
    pairs = top_eigenpairs(lambda x: dense @ x, SIZE, 5, tolerance=1e-4, dtype=dtype)
    assert (pairs.values[:3] - 4.0).abs().max() < 1e-4
    assert (pairs.values[3:] < 1.0).all()


def test_restarts_within_a_small_basis_reach_a_tight_tolerance() -> None:
    dense = matrix(SPECTRA["clustered"])
    exact = torch.linalg.eigvalsh(dense).flip(0)
    widths: list[int] = []

    def counted(x: Tensor) -> Tensor:
        widths.append(x.shape[1])
        return dense @ x

    pairs = top_eigenpairs(counted, SIZE, 5, tolerance=1e-9, block=6, max_basis=17, max_sweeps=500, dtype=torch.float64)
    assert pairs.status == "ok"
    assert (pairs.values - exact[:5]).abs().max() < 1e-12
    assert pairs.sweeps == len(widths)
    assert pairs.products == sum(widths)


def test_spent_budget_is_said_and_its_certificates_still_hold() -> None:
    dense = matrix(torch.linspace(0, 1, SIZE, dtype=torch.float64))
    pairs = top_eigenpairs(lambda x: dense @ x, SIZE, 2, tolerance=1e-10, max_sweeps=5, dtype=torch.float64)
    assert pairs.status == "budget_spent"
    assert pairs.sweeps == 5
    assert (pairs.residuals > 1e-10).any()
    assert (distance_to_spectrum(pairs.values, dense) <= pairs.residuals + 1e-14).all()


def test_tolerance_below_rounding_stops_instead_of_spinning() -> None:
    dense = matrix(SPECTRA["outliers"], torch.float32)
    pairs = top_eigenpairs(lambda x: dense @ x, SIZE, 1, tolerance=1e-12, max_sweeps=400, dtype=torch.float32)
    assert pairs.status == "budget_spent"
    assert pairs.sweeps < 400
    assert float(pairs.values[0]) == pytest.approx(8.0, rel=1e-5)


def test_every_eigenvalue_of_a_tiny_matrix() -> None:
    dense = matrix(torch.tensor([3.0, 1.0, -2.0], dtype=torch.float64))
    pairs = top_eigenpairs(lambda x: dense @ x, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(pairs.values, torch.tensor([3.0, 1.0, -2.0], dtype=torch.float64), rtol=0, atol=1e-13)
    single = top_eigenpairs(lambda x: 5 * x, 1, 1, dtype=torch.float64)
    assert float(single.values[0]) == 5.0
    assert single.intervals.tolist() == [[5.0, 5.0]]


def test_same_seed_same_numbers_other_seed_other_path() -> None:
    dense = matrix(SPECTRA["triple"])
    first, again, other = (
        top_eigenpairs(lambda x: dense @ x, SIZE, 2, seed=seed, dtype=torch.float64) for seed in (1, 1, 2)
    )
    assert torch.equal(first.vectors, again.vectors)
    assert not torch.equal(first.vectors, other.vectors)


def test_refusals_name_what_is_wrong() -> None:
    dense = matrix(SPECTRA["triple"])
    product = lambda x: dense @ x  # noqa: E731
    with pytest.raises(UsageError, match="not zero"):
        lanczos(product, torch.zeros(SIZE, 1), 3)
    with pytest.raises(UsageError, match="steps"):
        run(dense, 0)
    with pytest.raises(SpiritlevelError, match="not finite"):
        lanczos(lambda x: x * math.nan, torch.ones(SIZE, 1), 3)
    with pytest.raises(UsageError, match="shape"):
        lanczos(lambda x: x[:-1], torch.ones(SIZE, 1), 3)
    with pytest.raises(UsageError, match="which"):
        top_eigenpairs(product, SIZE, 1, "biggest")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="k must"):
        top_eigenpairs(product, SIZE, SIZE + 1)
    with pytest.raises(UsageError, match="relative_to"):
        top_eigenpairs(product, SIZE, 1, relative_to="nothing")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="max_basis"):
        top_eigenpairs(product, SIZE, 4, max_basis=8)
    with pytest.raises(UsageError, match="start"):
        top_eigenpairs(product, SIZE, 1, start=torch.ones(SIZE - 1, 1))
