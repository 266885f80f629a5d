"""Paired intervals and correlations: against closed forms, and by how often they cover the truth."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pytest
import torch
from scipy import stats

from spiritlevel.measures.over_samples import Distribution
from spiritlevel.values.errors import UsageError
from spiritlevel.values.statistics import (
    STATISTICS,
    Interval,
    Quantile,
    grouped_intervals,
    mean,
    paired_intervals,
    point,
    quantile,
    rank_correlation,
    skewness,
)


def test_statistics_agree_with_those_the_measures_report() -> None:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(41, generator=generator, dtype=torch.float64)
    weights = torch.rand(41, generator=generator, dtype=torch.float64)
    spread = Distribution(values, weights)
    rows, shares = values.numpy()[None], weights.numpy()[None]
    assert mean(rows, shares)[0] == pytest.approx(spread.mean().value, rel=1e-12)
    for name, level in (("median", 0.5), ("p10", 0.1)):
        assert STATISTICS[name](rows, shares)[0] == pytest.approx(spread.quantile(level).value, rel=1e-12)
    skew = spread.skewness()
    assert skew is not None
    assert skewness(rows, shares)[0] == pytest.approx(skew.value, rel=1e-10)


def test_quantile_of_equal_weights_is_numpys() -> None:
    values = np.random.default_rng(0).standard_normal((3, 20))
    found = quantile(0.3)(values, np.ones_like(values))
    np.testing.assert_allclose(found, np.quantile(values, 0.3, axis=1, method="hazen"))


def test_pairing_removes_what_both_networks_share() -> None:
    rng = np.random.default_rng(1)
    hard = rng.exponential(size=400)
    found = paired_intervals(hard, 1.1 * hard)
    assert found.log_ratio is not None
    assert found.log_ratio.low == pytest.approx(math.log(1.1))
    assert found.log_ratio.high == pytest.approx(math.log(1.1))
    shuffled = paired_intervals(hard, 1.1 * rng.permutation(hard))
    assert shuffled.log_ratio is not None
    assert shuffled.log_ratio.high - shuffled.log_ratio.low > 0.1


def test_interval_of_a_mean_difference_is_the_normal_one() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal(3000) + 3, rng.standard_normal(3000) + 4
    found = paired_intervals(a, b).difference
    reach = 1.96 * (b - a).std() / math.sqrt(3000)
    assert found.value == pytest.approx((b - a).mean())
    assert found.high - found.value == pytest.approx(reach, rel=0.1)
    assert found.value - found.low == pytest.approx(reach, rel=0.1)


def test_ratio_is_left_out_where_a_sign_is_not_certain() -> None:
    rng = np.random.default_rng(3)
    around_zero, positive = rng.standard_normal(50), rng.random(50) + 1
    found = paired_intervals(around_zero, positive)
    assert found.log_ratio is None
    assert found.difference.excludes(0.0)
    assert point(-1.0, 2.0).log_ratio is None
    both_negative = point(-1.0, -2.0).log_ratio
    assert both_negative is not None
    assert both_negative.value == pytest.approx(math.log(2))


def test_samples_without_weight_or_value_do_not_count() -> None:
    a, b = np.array([1.0, 2.0, 3.0, 99.0, math.nan]), np.array([2.0, 4.0, 6.0, -5.0, 1.0])
    found = paired_intervals(a, b, weights=[1, 1, 1, 0, 1])
    assert found.difference.value == pytest.approx(2.0)
    with pytest.raises(UsageError, match="at least 2"):
        paired_intervals([1.0], [2.0])
    with pytest.raises(UsageError, match="one length"):
        paired_intervals([1.0, 2.0], [2.0])


def test_groups_of_samples_give_the_error_of_the_whole() -> None:
    rng = np.random.default_rng(6)
    hard = rng.exponential(size=4000)
    a, b = hard + rng.random(4000), 2 * hard + rng.random(4000)
    groups_a, groups_b = (v.reshape(20, -1).mean(1) for v in (a, b))
    by_group = grouped_intervals(a.mean(), b.mean(), groups_a, groups_b)
    by_sample = paired_intervals(a, b)
    assert by_group is not None
    assert by_group.log_ratio is not None
    assert by_sample.log_ratio is not None
    assert by_group.log_ratio.value == pytest.approx(by_sample.log_ratio.value)
    widths = [found.log_ratio.high - found.log_ratio.low for found in (by_group, by_sample)]  # type: ignore[union-attr]
    assert widths[0] == pytest.approx(widths[1], rel=0.4)
    assert grouped_intervals(1.0, 2.0, [1.0, 1.1], [2.0, 2.1]) is None
    mixed = grouped_intervals(1.0, 2.0, [-1.0, 1.0, 1.0], [2.0, 2.0, 2.0])
    assert mixed is not None
    assert mixed.log_ratio is None


def test_widening_adds_errors_in_quadrature_and_certificates_in_full() -> None:
    wider = Interval(1.0, 0.7, 1.4).widened(stderr=0.4 / 1.959963984540054, residual=0.1)
    assert wider.low == pytest.approx(1.0 - 0.5 - 0.1)
    assert wider.high == pytest.approx(1.0 + 0.4 * math.sqrt(2) + 0.1)
    assert not Interval(0.0, 0.0, 0.0).excludes(0.0)
    assert Interval(0.2, 0.1, 0.3).excludes(0.0)


@pytest.mark.parametrize("method", ["pearson", "spearman", "kendall"])
def test_correlation_is_scipys_inside_its_interval(method: Literal["pearson", "spearman", "kendall"]) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal(60)
    y = x + rng.standard_normal(60)
    found = rank_correlation(x, y, method)
    expected = {"pearson": stats.pearsonr, "spearman": stats.spearmanr, "kendall": stats.kendalltau}[method](x, y)[0]
    assert found.value == pytest.approx(expected)
    assert found.low is not None
    assert found.high is not None
    assert -1 < found.low < expected < found.high < 1


def test_correlations_that_do_not_exist_say_why() -> None:
    assert rank_correlation([1, 2], [1, 2]).reason == "only 2 pairs"
    assert rank_correlation([1, 1, 1], [1, 2, 3]).value is None
    assert rank_correlation([1, 2, 3, math.nan], [1, 2, 4, 4]).count == 3
    perfect = rank_correlation(range(9), range(9))
    assert (perfect.value, perfect.low) == (pytest.approx(1.0), None)
    with pytest.raises(UsageError, match="must be one of"):
        rank_correlation([1, 2, 3], [1, 2, 3], "tau")  # type: ignore[arg-type]


@pytest.mark.slow
def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(5)
    trials, ratio, spearman = 400, 0, 0
    rho = 0.6
    truth = 6 / math.pi * math.asin(rho / 2)  # Spearman's coefficient of a normal pair
    for seed in range(trials):
        shared = rng.exponential(size=200)
        a, b = shared + 0.3 * rng.exponential(size=200), 2 * shared + 0.3 * rng.exponential(size=200)
        interval = paired_intervals(a, b, seed=seed).log_ratio
        assert interval is not None
        ratio += interval.low <= math.log(2.3 / 1.3) <= interval.high
        x = rng.standard_normal(40)
        y = rho * x + math.sqrt(1 - rho**2) * rng.standard_normal(40)
        found = rank_correlation(x, y)
        assert found.low is not None
        assert found.high is not None
        spearman += found.low <= truth <= found.high
    assert 0.91 <= ratio / trials <= 0.98
    assert 0.91 <= spearman / trials <= 0.98


@pytest.mark.parametrize("level", [0.0, 0.1, 0.5, 0.93, 1.0])
def test_quantiles_of_draws_are_those_of_the_samples_drawn(level: float) -> None:
    rng = np.random.default_rng(4)
    own = Quantile(level)
    # Of equal values with unequal weights the order is anyone's, and with it where between its neighbours each stands.
    for values, weights in (
        (rng.standard_normal(23), rng.uniform(0.1, 3, 23)),
        (rng.integers(0, 4, 23).astype(float), np.ones(23)),
    ):
        index = rng.integers(23, size=(300, 23))
        times = np.stack([np.bincount(row, minlength=23) for row in index])
        assert own.of_draws(values, weights, times) == pytest.approx(own(values[index], weights[index]), abs=1e-12)
