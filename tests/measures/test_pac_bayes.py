"""The PAC-Bayes terms and the sampled normalised sharpness against closed forms and generic minimisers."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.engine.estimators.balancing import balance
from spiritlevel.engine.passes.perturbed import Perturbed
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.noise_scales import balanced_scales, fitted_scales
from spiritlevel.measures.pac_bayes import _Candidate, _lowest, normalized_sharpness_direct, pac_bayes_terms
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import Estimate
from tests.helpers import opened

torch.set_num_threads(1)
FLOAT = torch.float64


class DenseDiagonal:
    """The Hessian's diagonal by parameter, from the dense Hessian."""

    def __init__(self, problem: OpenProblem) -> None:
        self.dense = Dense(problem)

    def diagonal(self, name: str) -> object:
        class Value:
            value = self.dense.hessian.diagonal()[self.dense.slices[name]].reshape(self.dense.shapes[name])

        return Value


def regression(seed: int = 0) -> OpenProblem:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(40, 4, generator=generator, dtype=FLOAT) * torch.tensor([1.0, 0.3, 2.0, 1.0], dtype=FLOAT)
    torch.manual_seed(seed)
    model = nn.Linear(4, 3, bias=False).double()
    return opened(model, (x, torch.randn(40, 3, generator=generator, dtype=FLOAT)), "mse")


def classifier(
    seed: int = 0, count: int = 60, bias: bool = True, dead: bool = False, spread: float = 0.4
) -> OpenProblem:
    generator = torch.Generator().manual_seed(seed)
    centres = 2.5 * torch.eye(3, dtype=FLOAT)
    y = torch.arange(count) % 3
    x = centres[y] + spread * torch.randn(count, 3, generator=generator, dtype=FLOAT)
    torch.manual_seed(seed)
    middle = nn.ReLU() if dead else nn.LeakyReLU(0.1)  # a ReLU may never answer on this data
    model = nn.Sequential(nn.Linear(3, 4, bias=bias), middle, nn.Linear(4, 3, bias=bias)).double()
    if dead:
        x[:, 2] = 0  # an input that is never seen
        with torch.no_grad():
            model[0].bias[1] = -50.0  # a unit that never answers
    optimiser = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(150):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    optimiser.zero_grad()
    return opened(model, (x, y))


def rescaled(problem: OpenProblem, factors: Tensor) -> OpenProblem:
    """Scale the hidden units of a ReLU classifier against their outgoing weights: the function stays the same."""
    model = copy.deepcopy(problem.model)
    with torch.no_grad():
        model[0].weight *= factors[:, None]
        if model[0].bias is not None:
            model[0].bias *= factors
        model[2].weight /= factors
    (content,) = list(problem.source.read())
    return opened(model, tuple(content))


def bound(problem: OpenProblem, seed: int = 0, **settings: object) -> Estimate:
    return pac_bayes_terms(problem, Perturbed(problem), DenseDiagonal(problem), seed, **settings)


# --- scales ----------------------------------------------------------------------------------------------------------


def test_balanced_scales_minimise_the_objective_of_equation_17() -> None:
    problem = classifier()
    weight = problem.chosen_parameters["0.weight"].detach()
    h = DenseDiagonal(problem).diagonal("0.weight").value  # type: ignore[attr-defined]
    lam = 30.0
    scales = balanced_scales("0.weight", problem.model[0], weight, h, lam)  # type: ignore[index]
    squares = scales.deviations().square()
    value = float((h * squares + weight.square() / (2 * lam * squares)).sum())
    assert value == pytest.approx(math.sqrt(0.5 / lam) * balance(h, weight.square()).value, rel=1e-9)
    # At the optimum the two parts are equal.
    assert scales.penalty() / lam == pytest.approx(value / 2, rel=1e-9)


def test_lines_without_curvature_or_weight_get_finite_noise() -> None:
    weight = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0], [1.0, 1.0, 5.0]], dtype=FLOAT)
    h = torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 0.0]], dtype=FLOAT)
    scales = balanced_scales("weight", nn.Linear(3, 3), weight, h, 0.5)
    deviations = scales.deviations()
    assert bool(torch.isfinite(deviations).all())
    # No weight to describe: so little noise that it costs next to nothing.
    assert float((h[1] * deviations[1].square()).sum()) < 0.01 * balance(h, weight.square()).value
    # No curvature: noise in proportion to the weights, as elsewhere in the matrix.
    kept = deviations[0, :2] / weight[0, :2]
    assert bool((deviations[2] / weight[2] < 4 * kept.max()).all())
    assert bool((deviations[2] / weight[2] > kept.min() / 4).all())


def test_noise_on_inputs_never_seen_is_free_and_dead_units_stay_asleep() -> None:
    problem = classifier(0, count=3000, dead=True)
    found = bound(problem)
    dense = DenseDiagonal(problem)
    assert float(dense.diagonal("0.weight").value[1].abs().sum()) == 0  # type: ignore[attr-defined]
    # A large unseen weight changes nothing.
    with torch.no_grad():
        problem.model[0].weight[:, 2] *= 3.0  # type: ignore[index]
    again = bound(problem)
    assert again.details["kl_nats"] == pytest.approx(found.details["kl_nats"], rel=0.01)
    assert found.details["error_with_noise"] < 0.3


@pytest.mark.parametrize("module", [nn.Linear(3, 4), nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose1d(2, 3, 2)])
def test_fitted_scales_follow_rescaled_lines(module: nn.Module) -> None:
    weight = module.weight.detach().double()  # type: ignore[union-attr,operator]
    before = fitted_scales("weight", module, weight)
    assert before.deviations().shape == weight.shape
    after = fitted_scales("weight", module, weight * 3.0)
    assert torch.allclose(after.deviations(), 3 * before.deviations())
    if isinstance(module, nn.Linear):
        lines = torch.tensor([2.0, 5.0, 0.1, 1.0], dtype=FLOAT)[:, None] * torch.tensor([1.0, 7.0, 0.3], dtype=FLOAT)
        moved = fitted_scales("weight", module, weight * lines)
        assert torch.allclose(moved.deviations(), lines * before.deviations())


# --- the bound -------------------------------------------------------------------------------------------------------


def test_terms_of_the_bound_add_up_and_match_their_definitions() -> None:
    problem = classifier()
    found = bound(problem, draws=64)
    details = found.details
    terms = ("error_with_noise", "kl_term", "confidence_term", "psi_term")
    assert found.value == pytest.approx(sum(details[term] for term in terms), rel=1e-12)
    # The divergence by its definition, with the variances of a separate balance.
    lam, divergence = details["lambda"], 0.0
    for name in ("0.weight", "2.weight"):
        weight = problem.chosen_parameters[name].detach()
        h = DenseDiagonal(problem).diagonal(name).value  # type: ignore[attr-defined]
        solved = balance(h, weight.square())
        divergence += math.sqrt(2 * lam) / 2 * float((weight.square() / torch.outer(solved.u, solved.v)).sum())
    assert details["kl_nats"] == pytest.approx(divergence, rel=1e-9)
    assert details["kl_bits"] == pytest.approx(details["kl_nats"] / math.log(2))
    assert details["psi_term"] == pytest.approx(lam / 120)
    assert details["confidence_term"] == pytest.approx(math.log(8 / 0.05) / lam)
    assert details["variance_parameters"] == (4 + 3 - 1) + (3 + 4 - 1)
    assert details["noisy_parameters"] == 24
    assert details["parameters_without_noise"] == 7
    paid = 32 * math.log(2) * (12 + 7)
    assert details["bound_all_paid"] > found.value
    assert details["bound_all_paid"] <= details["error_with_noise"] + 0.1 + found.value + paid / lam
    tried = sum(row["error"] is not None for row in details["grid"])
    assert found.passes == 64 * tried + 2 * 64 + 2


def test_bound_matches_generic_minimisation_and_many_draws() -> None:
    problem = classifier(1, bias=False)
    found = bound(problem, draws=48, grid=4)
    wanted = pac_bayes_terms.reference(Dense(problem), grid=4, many=200)  # type: ignore[misc]
    assert abs(found.value - wanted) < 5 * found.stderr + 0.02


def test_leaving_out_candidates_leaves_the_best_one_in() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        added, errors = torch.rand(2, 8, generator=generator).tolist()
        candidates = [_Candidate(float(k), [], 0.0, slack, 0.0) for k, slack in enumerate(added)]
        asked = []

        def error_of(one: _Candidate, errors: list[float] = errors, asked: list[float] = asked) -> float:
            asked.append(one.lam)
            return 0.5 * errors[int(one.lam)]

        best, lowest = _lowest(candidates, lambda one: one.slack, error_of)
        sums = [slack + 0.5 * error for slack, error in zip(added, errors)]
        assert lowest == min(sums)
        assert best.lam == sums.index(min(sums))
        assert set(asked) == {k for k, slack in enumerate(added) if slack < min(sums)} | {float(best.lam)}


def test_loss_rise_is_near_its_second_order_prediction_for_small_noise() -> None:
    # Classes that overlap keep the curvature, and many samples make λ large and so the noise small.
    found = bound(classifier(2, count=3000, spread=2.0), draws=32)
    details = found.details
    assert details["loss_rise"] > 0
    assert details["loss_rise_stderr"] < details["loss_rise"]
    assert 0.5 < details["loss_rise"] / details["loss_rise_predicted"] < 2


def test_a_bound_of_one_or_more_is_called_vacuous() -> None:
    few = bound(classifier(0, count=12))
    assert few.value >= 1
    assert few.details["vacuous"]
    assert "vacuous" in few.reason
    many = bound(classifier(0, count=3000))
    assert many.value < 1
    assert not many.details["vacuous"]
    assert many.reason == ""


def test_bound_survives_rescaling_of_neurons() -> None:
    problem = classifier(3)
    other = rescaled(problem, torch.tensor([10.0, 0.1, 3.0, 0.5], dtype=FLOAT))
    assert bound(other).value == pytest.approx(bound(problem).value, rel=1e-6)


def test_bound_needs_classes_and_sensible_settings() -> None:
    assert bound(regression()).status == "not_applicable"
    with pytest.raises(UsageError, match="delta"):
        bound(classifier(), delta=1.5)


# --- equation (62) ---------------------------------------------------------------------------------------------------


def direct(problem: OpenProblem, seed: int = 0, **settings: object) -> Estimate:
    return normalized_sharpness_direct(problem, Perturbed(problem), seed, **settings)


@pytest.mark.parametrize("seed", [0, 1])
def test_sampled_sharpness_of_a_quadratic_loss_is_the_closed_form(seed: int) -> None:
    problem = regression(seed)
    found = direct(problem, seed, draws=400)
    h = DenseDiagonal(problem).diagonal("weight").value  # type: ignore[attr-defined]
    weight = problem.chosen_parameters["weight"].detach()
    closed = math.sqrt(0.5 / 40) * balance(h, weight.square()).value / math.sqrt(2)
    assert found.ok
    assert found.how == "upper_bound"
    assert found.details["lambda"] == 40
    assert found.value > closed - 4 * found.stderr
    assert found.value < 1.01 * closed + 4 * found.stderr
    assert found.stderr < 0.05 * closed


def test_sampled_sharpness_matches_a_generic_minimiser() -> None:
    problem = classifier(4, bias=False)
    found = direct(problem, lam=1000.0, steps=400, draws=200)
    wanted = normalized_sharpness_direct.reference(Dense(problem), lam=1000.0, pairs=48, judged=300)  # type: ignore[misc]
    assert found.ok
    assert abs(found.value - wanted) < 0.05 * wanted + 4 * found.stderr
    assert found.value == pytest.approx(found.details["loss_rise"] + found.details["noise_cost"])


def test_sampled_sharpness_survives_rescaling_of_neurons() -> None:
    problem = classifier(5)
    other = rescaled(problem, torch.tensor([10.0, 0.1, 3.0, 0.5], dtype=FLOAT))
    settings = {"lam": 1000.0, "steps": 64, "draws": 8}
    assert direct(other, **settings).value == pytest.approx(direct(problem, **settings).value, rel=1e-6)


def test_noise_without_end_is_called_degenerate() -> None:
    # A loss that saturates: at small λ unlimited noise is cheapest.
    problem = regression()
    (content,) = list(problem.source.read())
    flat = opened(problem.model, tuple(content), lambda f, batch: 1e-6 * torch.tanh(f.square().sum(1)))
    found = direct(flat, lam=0.5)
    assert not found.ok
    assert "degenerate" in found.reason
    assert found.details["capped_lines"] > 0


def test_too_few_steps_are_not_called_a_minimum() -> None:
    found = direct(regression(), steps=64, rate=0.001)
    assert found.status == "budget_spent"
    assert "raise steps" in found.reason
    assert found.value > direct(regression()).value
    with pytest.raises(UsageError, match="steps >="):
        direct(regression(), steps=10)
