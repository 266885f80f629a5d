"""Spectral sums by probes: right on average, exact where they claim to be, and honest about their error."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from spiritlevel.engine.estimators.eigenvalues import top_eigenpairs
from spiritlevel.engine.estimators.lanczos import Lanczos, lanczos
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.quadrature import (
    counted_quadrature,
    extreme_ritz,
    frobenius_squared,
    lanczos_trace,
    quadrature_of,
)
from spiritlevel.results.quadrature import log_volume
from spiritlevel.values.errors import SpiritlevelError, UsageError

SIZE = 100


def matrix(values: Tensor, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    q, _ = torch.linalg.qr(torch.randn(len(values), len(values), generator=generator, dtype=torch.float64))
    dense = (q * values) @ q.T
    return (dense + dense.T) / 2


def run(dense: Tensor, steps: int, probes: int, seed: int = 0) -> Lanczos:
    return lanczos(lambda x: dense @ x, random_signs(len(dense), probes, seed=seed, dtype=dense.dtype), steps)


def line() -> Tensor:
    return torch.linspace(-1, 2, SIZE, dtype=torch.float64)


def outliers() -> Tensor:
    values = 0.1 * torch.linspace(0, 1, SIZE, dtype=torch.float64) ** 3
    values[-5:] = torch.tensor([10.0, 7.0, 5.0, 5.0, 3.0])  # one of them double
    return values


def power_law() -> Tensor:
    return 1.0 / torch.arange(1, SIZE + 1, dtype=torch.float64)


def test_functions_of_the_matrix_at_full_order_equal_the_dense_ones() -> None:
    dense = matrix(line())
    result = run(dense, SIZE, probes=3)
    exponential = torch.linalg.matrix_exp(dense)
    exact = torch.stack([z @ exponential @ z for z in random_signs(SIZE, 3, dtype=torch.float64).T])
    found = quadrature_of(result).sum_of(torch.exp)
    torch.testing.assert_close(torch.tensor(found.samples, dtype=torch.float64), exact, rtol=1e-12, atol=0)
    assert found.value == pytest.approx(float(exact.mean()), rel=1e-12)


def test_trace_and_frobenius_samples_are_the_products_own() -> None:
    dense = matrix(line())
    result = run(dense, 3, probes=4)
    z = random_signs(SIZE, 4, dtype=torch.float64)
    forms = torch.tensor(lanczos_trace(result, deflate=0).samples, dtype=torch.float64)
    squares = torch.tensor(frobenius_squared(result, deflate=0).samples, dtype=torch.float64)
    torch.testing.assert_close(forms, (z * (dense @ z)).sum(dim=0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(squares, (dense @ z).square().sum(dim=0), rtol=1e-12, atol=1e-12)
    nodes = quadrature_of(result)
    assert nodes.sum_of(lambda t: t).value == pytest.approx(lanczos_trace(result, deflate=0).value, rel=1e-12)
    assert nodes.sum_of(torch.square).value == pytest.approx(frobenius_squared(result, deflate=0).value, rel=1e-12)


def test_control_leaves_only_the_difference_to_chance() -> None:
    dense = matrix(outliers())
    rest = 1e-3 * matrix(line(), seed=1)
    result = run(dense + rest, 3, probes=6)
    z = random_signs(SIZE, 6, dtype=torch.float64)
    forms = (z * (dense @ z)).sum(dim=0)
    controlled = lanczos_trace(result, control=(float(dense.trace()), forms))
    exact = float((dense + rest).trace())
    assert controlled.stderr < 1e-2 * lanczos_trace(result, deflate=0).stderr
    low, high = controlled.interval(0.999)
    assert low <= exact <= high
    with pytest.raises(UsageError, match="one quadratic form per probe"):
        lanczos_trace(result, control=(1.0, forms[:3]))


def test_deflation_counts_what_it_has_found() -> None:
    values = torch.zeros(SIZE, dtype=torch.float64)
    values[:6] = torch.tensor([4.0, 4.0, 4.0, -2.0, 1.0, 1.0])
    result = run(matrix(values), 10, probes=8)
    found = frobenius_squared(result)
    assert found.value == pytest.approx(54.0, rel=1e-12)  # all six found by either half: nothing is left to chance
    assert found.stderr < 1e-12
    assert lanczos_trace(result).value == pytest.approx(12.0, rel=1e-12)
    assert frobenius_squared(result, deflate=0).stderr > 1.0


def test_pairs_from_elsewhere_deflate_as_well() -> None:
    dense = matrix(outliers())
    pairs = top_eigenpairs(lambda x: dense @ x, SIZE, 5, "magnitude", tolerance=1e-8, seed=7, dtype=torch.float64)
    result = run(dense, 2, probes=4)
    exact = float(outliers().square().sum())
    found = frobenius_squared(result, pairs=(pairs.values, pairs.vectors))
    assert found.stderr < 1e-3 * exact
    assert abs(found.value - exact) < 5 * found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", [line, outliers, power_law])
@pytest.mark.parametrize("probes", [4, 8])
def test_95_percent_intervals_cover(spectrum: object, probes: int) -> None:
    values: Tensor = spectrum()  # type: ignore[operator]
    dense = matrix(values)
    truths = {"trace": float(values.sum()), "frobenius": float(values.square().sum())}
    hits = {"trace": 0, "frobenius": 0}
    for seed in range(200):
        result = run(dense, 12, probes, seed)
        for name, estimate in (("trace", lanczos_trace(result)), ("frobenius", frobenius_squared(result))):
            low, high = estimate.interval()
            hits[name] += low <= truths[name] <= high
    for name, count in hits.items():
        assert 182 <= count <= 196, f"{name}: {count} of 200 intervals cover"


def test_intervals_cover_over_a_few_seeds() -> None:
    # The short form of the coverage test: 40 intervals at 99.9% must all hold but one or two.
    values = outliers()
    dense = matrix(values)
    missed = 0
    for seed in range(20):
        result = run(dense, 12, 6, seed)
        for estimate, truth in (
            (lanczos_trace(result), float(values.sum())),
            (frobenius_squared(result), float(values.square().sum())),
        ):
            low, high = estimate.interval(0.999)
            missed += not low <= truth <= high
    assert missed <= 2


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_density_integrates_to_one_at_any_scale_and_states_its_kernel(scale: float) -> None:
    result = run(matrix(scale * outliers()), 30, probes=4)
    band = quadrature_of(result).density(width=0.02)
    assert float(torch.trapezoid(band.mean, band.grid)) == pytest.approx(1.0, abs=1e-3)
    assert band.kernel_share == 0.02
    reach = float(result.ritz_values.max() - result.ritz_values.min())
    assert band.kernel_width == pytest.approx(0.02 * reach, rel=1e-12)
    assert (band.stderr >= 0).all()
    # The bulk near 0 holds 95 of 100 eigenvalues.
    near_zero = band.grid < scale * 1.0
    assert float(torch.trapezoid(band.mean[near_zero], band.grid[near_zero])) == pytest.approx(0.95, abs=0.04)


def test_density_matches_the_smoothed_dense_spectrum() -> None:
    values = line()
    band = quadrature_of(run(matrix(values), SIZE, probes=30)).density(width=0.05)
    sigma = band.kernel_width
    exact = torch.exp(-0.5 * ((band.grid[:, None] - values) / sigma) ** 2).mean(dim=1) / (
        sigma * math.sqrt(2 * math.pi)
    )
    assert ((band.mean - exact).abs() <= 5 * band.stderr + 1e-3).all()


def test_multiple_of_the_identity_has_a_density_too() -> None:
    for scale in (0.0, 3.0):
        band = quadrature_of(run(scale * torch.eye(20, dtype=torch.float64), 5, probes=2)).density()
        assert float(torch.trapezoid(band.mean, band.grid)) == pytest.approx(1.0, abs=1e-3)


def test_cumulative_negative_mass_and_effective_dimension() -> None:
    values = line()
    nodes = quadrature_of(run(matrix(values), SIZE, probes=40))
    negative = nodes.negative_mass()
    assert abs(negative.value - float((values < 0).double().mean())) < 5 * negative.stderr
    at_zero = nodes.cumulative(torch.tensor([-1.5, -0.01, 2.5]))  # an eigenvalue of 0 is not negative
    torch.testing.assert_close(at_zero.mean[[0, 2]], torch.tensor([0.0, 1.0]).double(), rtol=0, atol=1e-12)
    assert float(at_zero.mean[1]) == pytest.approx(negative.value, abs=1e-12)
    exact = float((values.clamp_min(0) / (values.clamp_min(0) + 0.3)).sum())
    dimension = nodes.effective_dimension(0.3)
    assert abs(dimension.value - exact) < 5 * dimension.stderr
    with pytest.raises(UsageError, match="positive z"):
        nodes.effective_dimension(0.0)


def test_exact_zeros_are_not_negative() -> None:
    values = torch.zeros(SIZE, dtype=torch.float64)
    values[:3] = torch.tensor([2.0, 1.0, 1.0])
    assert quadrature_of(run(matrix(values), 20, probes=4)).negative_mass().value < 1e-12


def test_single_probe_admits_that_its_error_is_unknown() -> None:
    result = run(matrix(line()), 5, probes=1)
    assert lanczos_trace(result).stderr == math.inf
    assert torch.isinf(quadrature_of(result).density().stderr).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_ritz_values_hold_their_certificates(dtype: torch.dtype) -> None:
    values = outliers()
    values[0] = -4.0
    dense = matrix(values).to(dtype)
    exact = torch.linalg.eigvalsh(dense.double())
    result = run(dense, 25, probes=3)
    for which, truth in (("largest", exact[-1]), ("smallest", exact[0])):
        value, radius = extreme_ritz(result, which)  # type: ignore[arg-type]
        assert abs(value - float(truth)) <= radius
        assert radius < 1e-4


def test_log_volume_and_its_interval() -> None:
    values, residuals = torch.tensor([4.0, 2.0, 0.5]), torch.tensor([0.1, 0.0, 0.2])
    value, (low, high) = log_volume(values, residuals)
    assert value == pytest.approx(math.log(4.0), rel=1e-7)
    assert low == pytest.approx(math.log(3.9 * 2.0 * 0.3), rel=1e-6)
    assert high == pytest.approx(math.log(4.1 * 2.0 * 0.7), rel=1e-6)
    assert log_volume(torch.tensor([1e-9]), torch.tensor([1e-3]))[1][0] == -math.inf
    with pytest.raises(SpiritlevelError, match="ask for at most 1"):
        log_volume(torch.tensor([4.0, -2.0]), torch.zeros(2))


def test_counted_outliers_keep_the_mean_and_lessen_the_error() -> None:
    dense = matrix(torch.cat([torch.linspace(0, 1, SIZE - 3, dtype=torch.float64), torch.tensor([8.0, 5.0, 3.0])]))
    exact = torch.linalg.eigvalsh(dense)
    grid = torch.linspace(float(exact[0]) - 0.1, float(exact[-1]) + 0.1, 200, dtype=torch.float64)
    truth = (exact[:, None] <= grid).double().mean(0)
    plain_errors, counted_errors = [], []
    for seed in range(20):
        run = lanczos(lambda x: dense @ x, random_signs(SIZE, 8, seed=seed, dtype=torch.float64), 25)
        plain, counted = quadrature_of(run), counted_quadrature(run)
        torch.testing.assert_close(counted.weights.sum(1), torch.ones(8, dtype=torch.float64), rtol=0, atol=1e-12)
        plain_errors.append(plain.cumulative(grid).mean - truth)
        counted_errors.append(counted.cumulative(grid).mean - truth)
    away, near = (torch.stack(errors) for errors in (plain_errors, counted_errors))
    # The outliers stand above 2; from there on nothing is left to chance.
    assert float(near[:, grid > 2].abs().max()) < 1e-6 < float(away[:, grid > 2].abs().max())
    assert float(near.square().mean()) < float(away.square().mean())
    # Nor is anything shifted: the mean over many draws of the probes lies within its own error of the truth.
    centre, error = near.mean(0), near.std(0) / 20**0.5
    assert float((centre.abs() > 4 * error + 1e-3).double().mean()) < 0.05


def test_a_single_probe_counts_nothing() -> None:
    dense = matrix(torch.cat([torch.linspace(0, 1, SIZE - 3, dtype=torch.float64), torch.tensor([8.0, 5.0, 3.0])]))
    run = lanczos(lambda x: dense @ x, random_signs(SIZE, 1, dtype=torch.float64), 10)
    plain, counted = quadrature_of(run), counted_quadrature(run)
    assert counted.weights[:, :10].equal(plain.weights)
    assert not bool(counted.weights[:, 10:].any())
