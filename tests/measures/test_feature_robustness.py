"""Feature robustness against exhaustive searches, its bound, and what relative flatness predicts."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.engine.passes.head import HeadLoss
from spiritlevel.engine.passes.perturbed import Perturbed
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.feature_robustness import feature_robustness
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import Estimate
from tests.helpers import opened
from tests.measures.perturbable import FLOAT, classes, classes_of, trained


class DenseBlocks:
    """Relative flatness from the dense Hessian: Σ ⟨w_s, w_s'⟩ Tr H_ss'."""

    def __init__(self, problem: OpenProblem) -> None:
        self.problem, self.dense = problem, Dense(problem)

    def transposed(self, layer: str) -> Estimate:
        name = self.problem.weights[layer]
        weight = self.dense.tensor(name)
        rows, columns = weight.shape
        block = self.dense.block(name).reshape(rows, columns, rows, columns)
        return Estimate(float(torch.einsum("sk,tk,siti->", weight, weight, block)))


def robustness(problem: OpenProblem, seed: int = 0, **settings: object) -> Estimate:
    return feature_robustness(problem, Perturbed(problem), DenseBlocks(problem), seed, **settings)


def features_problem(seed: int, features: int = 2, fit: bool = True) -> OpenProblem:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, features), nn.Tanh(), nn.Linear(features, 3)).double()
    problem = opened(model, classes(seed, 14, 3, 3), batch_size=5)
    return trained(problem, 30) if fit else problem


def test_moving_features_is_replacing_the_weight() -> None:
    problem = features_problem(0, features=4, fit=False)
    move = torch.randn(4, 4, dtype=FLOAT)
    weight = problem.chosen_parameters["2.weight"].detach()
    (replaced,) = Perturbed(problem).loss([{"2.weight": weight + 0.3 * weight @ move}])
    hidden, head = problem.model[:2], problem.model[2]  # type: ignore[index]
    x, y = classes_of(problem)
    features = hidden(x)
    moved_features = head(features + 0.3 * features @ move.T)
    assert float(replaced) == pytest.approx(float(nn.functional.cross_entropy(moved_features, y).detach()), rel=1e-12)


@pytest.mark.parametrize(("seed", "fit"), [(0, True), (1, True), (0, False), (1, False)])
def test_feature_robustness_reaches_the_exhaustive_search_and_stays_under_its_bound(seed: int, fit: bool) -> None:
    problem = features_problem(seed, fit=fit)
    highest = feature_robustness.reference(Dense(problem))  # type: ignore[misc]
    found = robustness(problem, seed)
    assert found.how == "lower_bound"
    assert found.ok
    assert found.details["layer"] == "2"
    assert 0.9 * highest <= found.value <= highest * 1.001
    assert found.value <= found.details["bound"]
    # Off a critical point the second-order part alone is no bound.
    assert fit or found.value > found.details["bound_second_order"]


def test_feature_robustness_of_wide_features_matches_many_dense_starts() -> None:
    problem = features_problem(5, features=6)
    found = robustness(problem, delta=0.1)
    highest = feature_robustness.reference(Dense(problem), delta=0.1)  # type: ignore[misc]
    assert 0.9 * highest <= found.value <= highest * 1.02
    top = float(torch.linalg.eigvalsh(Dense(problem).block("2.weight"))[-1])
    assert found.details["lambda_max"] == pytest.approx(top, rel=2e-2)
    weight = problem.chosen_parameters["2.weight"].detach()
    gradient = Dense(problem).gradient[Dense(problem).slices["2.weight"]].reshape(weight.shape)
    nuclear = float(torch.linalg.svdvals(weight.T @ gradient).sum())
    assert found.details["bound_first_order"] == pytest.approx(0.1 * nuclear, rel=1e-9, abs=1e-14)


def test_orthogonal_average_is_what_relative_flatness_predicts() -> None:
    problem = features_problem(1, features=5, fit=False)
    haar = robustness(problem, delta=1e-3, draws=100).details["haar"]
    assert abs(haar["mean"] - haar["prediction"]) < 4 * haar["stderr"]
    assert haar["stderr"] < 0.1 * haar["prediction"]


def test_feature_robustness_uses_the_layer_called_last_and_refuses_others() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 3)
            self.body = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x)))

    torch.manual_seed(0)
    problem = opened(Backwards().double(), classes(0, 8, 3, 3))
    assert robustness(problem).details["layer"] == "head"
    assert robustness(problem, layer="body").details["features"] == 3
    with pytest.raises(UsageError, match="did you mean head"):
        robustness(problem, layer="heads")
    convolution = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten()).double()
    x, y = torch.randn(6, 1, 3, dtype=FLOAT), torch.randint(0, 2, (6,))
    unsuited = opened(convolution, (x, y))
    assert robustness(unsuited).status == "not_applicable"
    with pytest.raises(UsageError, match="linear layer"):
        robustness(unsuited, layer="0")
    with pytest.raises(UsageError, match="delta > 0"):
        robustness(problem, delta=0.0)


def test_the_last_layer_alone_gives_the_losses_gradients_and_products_of_the_whole_network() -> None:
    problem = features_problem(3, features=4, fit=False)
    name = "2.weight"
    head = HeadLoss.of(problem, name)
    assert head is not None
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(3, 4, generator=generator, dtype=FLOAT) for _ in range(3)]
    sets = [{name: weight} for weight in weights]
    whole = Perturbed(problem)
    assert torch.allclose(head.rise(sets), whole.rise(sets), rtol=1e-12, atol=1e-14)
    for own, other in zip(head.losses_and_gradients(sets), whole.losses_and_gradients(sets)):
        for a, b in zip(own, other):
            a, b = (a[name], b[name]) if isinstance(a, dict) else (a, b)
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
    block = torch.randn(12, 2, generator=generator, dtype=FLOAT)
    assert torch.allclose(head.matvec(block), Dense(problem).block(name) @ block, rtol=1e-10, atol=1e-13)
    assert HeadLoss.of(problem, "0.weight") is None


def test_features_of_a_last_weight_that_is_used_elsewhere_too_move_alone() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(3, 2), nn.Linear(2, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(self.body(x)) + 0.5 * torch.tanh(x @ self.head.weight))

    torch.manual_seed(0)
    problem = opened(Twice().double(), classes(0, 8, 3, 3))
    found = robustness(problem)
    assert found.value == pytest.approx(feature_robustness.reference(Dense(problem)), rel=0.1)  # type: ignore[misc]


def test_feature_robustness_is_invariant_to_layer_scaling_only() -> None:
    problem = features_problem(2, features=3)
    model = copy.deepcopy(problem.model)
    model[1] = nn.Identity()  # linear features, so that scaling one layer against the next keeps the function
    linear = opened(model, classes_of(problem))
    value = robustness(linear).value
    with torch.no_grad():
        model[0].weight *= 7.0
        model[0].bias *= 7.0
        model[2].weight /= 7.0
    assert robustness(opened(model, classes_of(problem))).value == pytest.approx(value, rel=1e-3)
    factors = torch.tensor([10.0, 0.1, 1.0], dtype=FLOAT)
    with torch.no_grad():
        model[0].weight *= factors[:, None]
        model[0].bias *= factors
        model[2].weight /= factors
    assert robustness(opened(model, classes_of(problem))).value > 1.5 * value
