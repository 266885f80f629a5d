"""The inner minimum of normalised sharpness against a generic convex solver, its bounds and its invariances."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from spiritlevel.engine.estimators.balancing import balance, balance_groups, balance_icml
from spiritlevel.values.errors import UsageError


def uniform(rows: int, columns: int, seed: int) -> Tensor:
    return torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def weights(rows: int, columns: int, seed: int) -> Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).square()


def objective(z: np.ndarray, h: np.ndarray, w2: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and gradient in (log u, log v)."""
    total = z[: len(h), None] + z[None, len(h) :]
    a, b = h * np.exp(total), w2 * np.exp(-total)
    return float((a + b).sum()), np.concatenate([(a - b).sum(axis=1), (a - b).sum(axis=0)])


def curvature(z: np.ndarray, h: np.ndarray, w2: np.ndarray) -> np.ndarray:
    total = z[: len(h), None] + z[None, len(h) :]
    both = h * np.exp(total) + w2 * np.exp(-total)
    return np.block([[np.diag(both.sum(axis=1)), both], [both.T, np.diag(both.sum(axis=0))]])


def generic_minimum(h: Tensor, w2: Tensor) -> float:
    arguments = (h.numpy(), w2.numpy())
    start = np.zeros(sum(h.shape))
    found = minimize(
        objective, start, arguments, "trust-exact", jac=True, hess=curvature, options={"gtol": 1e-11, "maxiter": 5000}
    )
    return float(found.fun)


def sandwich(h: Tensor, w2: Tensor) -> tuple[float, float]:
    return 2 * float((w2 * h).sqrt().sum()), 2 * math.sqrt(float(w2.sum()) * float(h.sum()))


def weakly_coupled(strength: float) -> tuple[Tensor, Tensor]:
    """Two blocks tied by entries of size ``strength``, whose best scales differ by a factor of a thousand."""
    h, w2 = uniform(8, 6, 1), weights(8, 6, 2)
    tie = torch.full((8, 6), strength, dtype=torch.float64)
    tie[:4, :3] = 1.0
    tie[4:, 3:] = 1.0
    h, w2 = h * tie, w2 * tie
    h[:4, :3] *= 1e3
    return h, w2


def problems() -> dict[str, tuple[Tensor, Tensor]]:
    sparse_h = uniform(9, 7, 3) * (uniform(9, 7, 4) < 0.6)
    sparse_w = weights(9, 7, 5) * (uniform(9, 7, 6) < 0.8)
    chain = torch.eye(12, dtype=torch.float64) + 0.05 * torch.diag(torch.ones(11, dtype=torch.float64), 1)
    cycle = torch.eye(5, dtype=torch.float64)
    return {
        "random": (uniform(5, 7, 0), weights(5, 7, 1)),
        "tall": (uniform(20, 3, 2).pow(8), weights(20, 3, 3)),
        "wild": (uniform(6, 6, 4).pow(30), weights(6, 6, 5)),
        "sparse": (sparse_h, sparse_w),
        "weak": weakly_coupled(1e-2),
        "weaker": weakly_coupled(1e-4),
        "chain": (chain, (chain + chain.T) * weights(12, 12, 7)),
        # h on the diagonal, weights on the diagonal's shift: attained only because they close one long cycle.
        "cycle": (cycle * uniform(5, 5, 8), cycle.roll(1, 0) * weights(5, 5, 9)),
    }


PROBLEMS = problems()


@pytest.mark.parametrize("name", PROBLEMS)
def test_minimum_equals_a_generic_convex_solver(name: str) -> None:
    h, w2 = PROBLEMS[name]
    found = balance(h, w2)
    assert found.status == "ok"
    assert found.residual <= 1e-12
    assert found.value == pytest.approx(generic_minimum(h, w2), rel=1e-10)
    lower, upper = sandwich(h, w2)
    assert lower * (1 - 1e-12) <= found.value <= upper * (1 + 1e-12)


@pytest.mark.parametrize("name", PROBLEMS)
def test_certificate_and_value_are_those_of_the_scales_returned(name: str) -> None:
    h, w2 = PROBLEMS[name]
    found = balance(h, w2)
    scales = torch.outer(found.u, found.v)
    flow = torch.where(found.kept, h * scales - w2 / scales, 0.0)
    worst = max(float(flow.sum(dim=0).abs().max()), float(flow.sum(dim=1).abs().max()))
    assert worst <= 2e-12 * found.value
    assert found.objective(h, w2) == pytest.approx(found.value, rel=1e-12)


@pytest.mark.parametrize("strength", [1e-6, 1e-9, 1e-13])
def test_weak_couplings_do_not_crawl(strength: float) -> None:
    found = balance(*weakly_coupled(strength))
    assert found.status == "ok"
    assert found.sweeps < 60


@pytest.mark.parametrize("reach", [3.0, 12.0, 140.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_row_and_column_scales_change_nothing(name: str, reach: float) -> None:
    h, w2 = PROBLEMS[name]
    r = 10 ** (reach * (2 * uniform(h.shape[0], 1, 20) - 1))
    c = 10 ** (reach * (2 * uniform(1, h.shape[1], 21) - 1))
    found = balance(h * r * c, w2 / (r * c))
    assert found.status == "ok"
    assert found.value == pytest.approx(balance(h, w2).value, rel=1e-10)
    if reach > 100:  # products of two such entries are beyond any float
        return
    icml = balance_icml(h * c, w2 / c)
    assert icml.value == pytest.approx(balance_icml(h, w2).value, rel=1e-10)


def test_single_column_and_single_row_meet_the_lower_bound() -> None:
    h, w2 = uniform(30, 1, 0), weights(30, 1, 1)
    assert balance(h, w2).value == pytest.approx(sandwich(h, w2)[0], rel=1e-13)
    assert balance(h.T, w2.T).value == pytest.approx(sandwich(h, w2)[0], rel=1e-13)


def test_flat_matrix_meets_both_bounds() -> None:
    h, w2 = torch.full((4, 6), 0.3, dtype=torch.float64), torch.full((4, 6), 2.0, dtype=torch.float64)
    found = balance(h, w2)
    assert found.value == pytest.approx(sandwich(h, w2)[0], rel=1e-13)
    assert found.value == pytest.approx(sandwich(h, w2)[1], rel=1e-13)


def test_void_rows_and_columns_contribute_nothing_repeatedly() -> None:
    h, w2 = uniform(4, 5, 0), weights(4, 5, 1)
    inner = balance(h, w2).value
    bigger_h, bigger_w = torch.zeros(6, 7, dtype=torch.float64), torch.zeros(6, 7, dtype=torch.float64)
    bigger_h[:4, :5], bigger_w[:4, :5] = h, w2
    bigger_w[4] = 1.0  # a dead neuron: weights, no curvature
    bigger_h[:, 5] = 1.0  # curvature without weight, except in the dead row: void once that row is gone
    found = balance(bigger_h * (torch.arange(6) != 4)[:, None], bigger_w)
    assert found.status == "ok"
    assert found.value == pytest.approx(inner, rel=1e-12)
    assert not found.kept[4:].any()
    assert not found.kept[:, 5:].any()
    assert found.u[4] == 1.0
    icml = balance_icml(bigger_h * (torch.arange(6) != 4)[:, None], bigger_w)
    assert icml.status == "ok"
    assert icml.value == pytest.approx(balance_icml(h, w2).value, rel=1e-12)
    nothing = balance(torch.zeros(3, 3), torch.ones(3, 3))
    assert (nothing.value, nothing.status, nothing.residual) == (0.0, "ok", 0.0)


def test_infimum_only_in_the_limit_is_said_and_right() -> None:
    # Triangular: h_01 lies on no cycle, scales running apart drive it to 0; the two diagonal entries remain.
    h = torch.tensor([[1.0, 5.0], [0.0, 4.0]], dtype=torch.float64)
    w2 = torch.tensor([[9.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    found = balance(h, w2)
    assert found.status == "infimum_not_attained"
    assert found.value == pytest.approx(2 * 3.0 + 2 * 2.0, rel=1e-12)
    assert not found.kept[0, 1]
    # The objective comes as near to it as one likes, from above.
    for far, near in ((1.0, 5.0), (1e4, 1e-3)):
        u, v = torch.tensor([3.0 / far, 0.5]), torch.tensor([far, 1.0])
        scales = torch.outer(u.double(), v.double())
        gap = float((h * scales + w2 / scales).sum()) - found.value
        assert 0 < gap <= near * 5


def test_infimum_of_random_patterns_is_the_limit_of_attained_minima() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        h = torch.as_tensor(rng.random((4, 4)) * (rng.random((4, 4)) < 0.35))
        w2 = torch.as_tensor(rng.random((4, 4)) * (rng.random((4, 4)) < 0.35))
        found = balance(h, w2)
        lower, upper = sandwich(h, w2)
        assert lower * (1 - 1e-12) <= found.value <= upper * (1 + 1e-12) + 1e-300
        # A small quantity in the empty places makes the minimum attained and tends to the infimum from above, slowly:
        # along a cycle of 8 arcs like its eighth root.
        nearly = balance(h.clamp_min(1e-50), w2.clamp_min(1e-50))
        assert nearly.status == "ok"
        assert found.value <= nearly.value * (1 + 1e-9)
        assert nearly.value - found.value < 1e-4


def test_lambda_law() -> None:
    h, w2 = PROBLEMS["random"]
    assert balance(h, 4.0 * w2).value == pytest.approx(2.0 * balance(h, w2).value, rel=1e-12)


def test_other_curvature_at_these_scales_is_never_below_its_own_minimum() -> None:
    h, w2 = PROBLEMS["random"]
    other = uniform(5, 7, 40)
    assert balance(h, w2).objective(other, w2) > balance(other, w2).value


def test_groups_are_balanced_one_by_one() -> None:
    h, w2 = torch.stack([uniform(3, 4, s) for s in range(3)]), torch.stack([weights(3, 4, s) for s in range(3)])
    found = balance_groups(h, w2)
    assert [each.value for each in found] == [balance(a, b).value for a, b in zip(h, w2, strict=True)]


def test_budget_is_respected() -> None:
    found = balance(*PROBLEMS["weak"], max_sweeps=3)
    assert found.status == "budget_spent"
    assert found.residual > 1e-12


@pytest.mark.parametrize("name", PROBLEMS)
def test_icml_form_equals_a_generic_convex_solver(name: str) -> None:
    h, w2 = PROBLEMS[name]
    flows = (h.T @ w2).numpy()

    def square(s: np.ndarray) -> tuple[float, np.ndarray]:
        moved = flows * np.exp(s[:, None] - s[None, :])
        return float(moved.sum()), moved.sum(axis=1) - moved.sum(axis=0)

    generic = minimize(square, np.zeros(h.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-10, "maxiter": 5000})
    found = balance_icml(h, w2)
    assert found.residual <= 1e-12
    assert found.value == pytest.approx(math.sqrt(float(generic.fun)), rel=1e-6 if name == "cycle" else 1e-9)
    by_row = ((h * found.v).sum(dim=1) * (w2 / found.v).sum(dim=1)).sum().sqrt()
    if found.status == "ok":
        assert found.value == pytest.approx(float(by_row), rel=1e-12)
    # Cauchy-Schwarz: the arXiv form with rows eliminated, 2 sum_i sqrt(A_i B_i), is at most 2 sqrt(m) times this.
    assert balance(h, w2).value <= 2 * math.sqrt(h.shape[0]) * found.value * (1 + 1e-12)


def test_refusals_name_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="negative"):
        balance(torch.tensor([[-1.0]]), torch.tensor([[1.0]]))
    with pytest.raises(UsageError, match="not finite"):
        balance(torch.tensor([[1.0]]), torch.tensor([[math.inf]]))
    with pytest.raises(UsageError, match="one shape"):
        balance(torch.ones(2, 2), torch.ones(2, 3))
    with pytest.raises(UsageError, match="balance_groups"):
        balance(torch.ones(2, 2, 2), torch.ones(2, 2, 2))
