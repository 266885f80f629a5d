"""Finite moves: perturbed losses, noise curvature and Keskar's box against brute force."""

from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from spiritlevel.engine.estimators.box_maximum import maximise_in_box
from spiritlevel.engine.estimators.probes import seeded_generator
from spiritlevel.engine.passes.perturbed import Perturbed, gaussian_noise, moved
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.perturbation import keskar_sharpness, noise_curvature
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import SpiritlevelError, UsageError
from tests.helpers import opened
from tests.measures.perturbable import FLOAT, classes, classes_of, trained

torch.set_num_threads(1)


def mlp_problem(seed: int = 0, activation: type[nn.Module] = nn.Tanh, **options: object) -> OpenProblem:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 4), activation(), nn.Linear(4, 3)).double()
    return opened(model, classes(seed, 10, 3, 3), **{"batch_size": 4, **options})  # type: ignore[arg-type]


def shapes(problem: OpenProblem) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in problem.chosen_parameters.items()}


# --- losses at other parameters --------------------------------------------------------------------------------------


def test_losses_at_several_sets_are_those_of_the_dense_function() -> None:
    problem = mlp_problem()
    dense, perturbed = Dense(problem), Perturbed(problem)
    sets = [moved(problem.chosen_parameters, gaussian_noise(shapes(problem), 3, k), 0.3) for k in range(3)]
    wanted = torch.stack([dense.loss_at(problem.flatten(one)) for one in sets])
    assert torch.allclose(perturbed.loss(sets), wanted, rtol=1e-13)
    assert torch.allclose(perturbed.rise(iter(sets)), wanted - dense.loss, rtol=1e-11)


def test_part_of_the_parameters_can_be_replaced() -> None:
    problem = mlp_problem()
    dense, perturbed = Dense(problem), Perturbed(problem)
    theta = dense.theta.clone()
    theta[dense.slices["2.weight"]] += 0.1
    (found,) = perturbed.loss([{"2.weight": problem.chosen_parameters["2.weight"] + 0.1}])
    assert float(found) == pytest.approx(float(dense.loss_at(theta)), rel=1e-13)


def test_gradients_at_a_set_are_those_of_the_dense_function() -> None:
    problem = mlp_problem()
    dense, perturbed = Dense(problem), Perturbed(problem)
    there = moved(problem.chosen_parameters, gaussian_noise(shapes(problem), 0), 0.5)
    loss, gradient = perturbed.loss_and_gradient(there)
    theta = problem.flatten(there).requires_grad_()
    value = dense.loss_at(theta)
    assert loss == pytest.approx(float(value.detach()), rel=1e-13)
    assert torch.allclose(problem.flatten(gradient), torch.autograd.grad(value, theta)[0], atol=1e-14)


def test_sweeps_are_counted_and_few_sets_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = mlp_problem()
    perturbed = Perturbed(problem)
    _ = problem.survey
    sets = [moved(problem.chosen_parameters, gaussian_noise(shapes(problem), k)) for k in range(5)]
    together = perturbed.loss(sets)
    assert problem.spent["forward"] == 6
    monkeypatch.setattr("spiritlevel.engine.passes.perturbed.HELD_NUMBERS", 2 * problem.size)
    read, held = [], []

    def lazily() -> object:
        for one in sets:
            held.append(len(read))
            yield one

    batches = problem.batches
    monkeypatch.setattr(problem, "batches", lambda what="": (read.append(what), batches(what))[1])
    assert torch.equal(perturbed.loss(lazily()), together)  # type: ignore[arg-type]
    assert held == [0, 0, 1, 1, 2]
    perturbed.losses_and_gradients(sets[:3])
    assert problem.spent["gradient"] == 3


def test_errors_count_the_wrong_samples() -> None:
    problem = mlp_problem(2)
    dense, perturbed = Dense(problem), Perturbed(problem)
    there = moved(problem.chosen_parameters, gaussian_noise(shapes(problem), 1), 1.0)
    x, y = classes_of(problem)
    wanted = (dense.outputs(problem.flatten(there), (x, y)).argmax(1) != y).double().mean()
    assert float(perturbed.errors([there])[0]) == float(wanted)
    regression = opened(problem.model, (x, torch.randn(10, 3, dtype=FLOAT)), "mse")
    with pytest.raises(SpiritlevelError, match="class scores"):
        Perturbed(regression).errors([{}])


def test_the_model_is_as_it_was_even_when_interrupted() -> None:
    problem = mlp_problem()
    model = problem.model.train()
    before = copy.deepcopy(model.state_dict())
    perturbed = Perturbed(problem)
    _ = problem.survey
    calls = itertools.count()
    outputs = problem.outputs

    def interrupted(*args: object) -> Tensor:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return outputs(*args)  # type: ignore[arg-type]

    problem.outputs = interrupted  # type: ignore[method-assign,assignment]
    there = moved(problem.chosen_parameters, gaussian_noise(shapes(problem), 0))
    with pytest.raises(KeyboardInterrupt):
        perturbed.loss_and_gradient(there)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_unknown_names_and_shapes_are_refused() -> None:
    perturbed = Perturbed(mlp_problem())
    with pytest.raises(UsageError, match="no parameter is named"):
        perturbed.loss([{"3.weight": torch.zeros(2)}])
    with pytest.raises(UsageError, match="cannot be replaced by"):
        perturbed.loss([{"2.bias": torch.zeros(2)}])


def test_data_that_changed_between_sweeps_is_refused() -> None:
    x, y = classes(0, 8, 3, 3)
    readings = itertools.count()

    class Shuffled:
        def __iter__(self) -> object:
            order = torch.randperm(8, generator=torch.Generator().manual_seed(next(readings)))
            yield x[order], y[order]

    problem = opened(mlp_problem().model, Shuffled())
    with pytest.raises(SpiritlevelError, match="disagree"):
        Perturbed(problem).loss([{}])


class Convolutional(nn.Module):
    """A convolution whose output is flattened by a view (which needs channels first) or by reshaping."""

    def __init__(self, by_view: bool) -> None:
        super().__init__()
        self.convolution, self.head, self.by_view = nn.Conv2d(2, 3, 3), nn.Linear(12, 3), by_view

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.convolution(x))
        return self.head(hidden.view(len(x), -1) if self.by_view else hidden.flatten(1))


@pytest.mark.parametrize("by_view", [False, True])
def test_laying_convolutions_out_otherwise_changes_no_loss(by_view: bool) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(9, 2, 4, 4), torch.randint(0, 3, (9,))
    problem = opened(Convolutional(by_view), (x, y), batch_size=4)
    perturbed = Perturbed(problem)
    step = gaussian_noise(shapes(problem), 0, 0)
    found = perturbed.sample_losses([moved(problem.chosen_parameters, step, size) for size in (0.0, 0.1)])
    assert perturbed._channels_last is not by_view
    assert torch.allclose(found[0], problem.survey.losses, rtol=1e-5)
    other = copy.deepcopy(problem.model)
    with torch.no_grad():
        for name, tensor in other.named_parameters():
            tensor += 0.1 * step[name].float()
    expected = nn.functional.cross_entropy(other(x), y, reduction="none").detach().double()
    assert torch.allclose(found[1], expected, rtol=1e-5, atol=1e-6)


# --- noise curvature -------------------------------------------------------------------------------------------------


def test_noise_curvature_of_a_smooth_network_is_near_its_trace_and_brute_force() -> None:
    problem = mlp_problem(1)
    dense = Dense(problem)
    found = noise_curvature(problem, Perturbed(problem), 0, draws=100)
    assert found.how == "estimated"
    assert found.ok
    assert abs(found.value - float(dense.hessian.trace())) < 4 * found.stderr
    brute = noise_curvature.reference(dense, many=200)  # type: ignore[misc]
    assert abs(found.value - brute) < 4 * found.stderr * math.sqrt(1 + 100 / 200)
    assert [row["radius"] for row in found.details["radii"]] == [1e-3, 3e-3, 1e-2]
    assert found.value == found.details["radii"][1]["value"]
    assert found.passes == 2 * (100 + 25 + 25 + 2)


def test_noise_curvature_of_a_quadratic_loss_is_the_same_at_every_radius() -> None:
    torch.manual_seed(0)
    x = torch.randn(12, 3, dtype=FLOAT)
    problem = opened(nn.Linear(3, 2).double(), (x, torch.randn(12, 2, dtype=FLOAT)), "mse")
    found = noise_curvature(problem, Perturbed(problem), 5, draws=8)
    hessian = Dense(problem).hessian
    # The same draws at every radius: a quadratic loss gives the mean of their own quadratic forms, no more noise.
    noise = [problem.flatten(gaussian_noise(shapes(problem), 5, k)) for k in range(8)]
    wanted = sum(float(v @ hessian @ v) for v in noise) / 8
    for row in found.details["radii"]:
        assert row["value"] == pytest.approx(wanted, rel=1e-7)


def test_noise_curvature_sees_kinks_the_hessian_does_not_have() -> None:
    # |w x| at w = 0 + tiny: flat almost everywhere, curved at finite radius.
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU()).double()
    with torch.no_grad():
        model[0].weight.fill_(1e-4)
    problem = opened(model, (torch.ones(4, 1, dtype=FLOAT), torch.zeros(4)), lambda f, batch: f[:, 0])
    found = noise_curvature(problem, Perturbed(problem), 0, draws=64, radii=(1e-6, 1e-2))
    assert found.details["radii"][0]["value"] == pytest.approx(0, abs=1e-3)
    # E[relu(w + s e) + relu(w - s e) - 2 w] / s^2 -> sqrt(2 / pi) / s
    assert found.value == pytest.approx(math.sqrt(2 / math.pi) / 1e-2, rel=0.25)


def test_noise_curvature_says_when_rounding_is_all_it_sees() -> None:
    problem = mlp_problem(0, dtype="float32")
    found = noise_curvature(problem, Perturbed(problem), 0, radii=(1e-6, 3e-6, 1e-2))
    assert not found.ok
    assert "float32" in found.reason
    assert "0.01" not in found.reason
    wide = noise_curvature(problem, Perturbed(problem), 0, radii=(1e-2, 3e-2, 1e-1))
    assert wide.ok
    double = mlp_problem(0)
    exact = noise_curvature(double, Perturbed(double), 0, radii=(1e-6, 3e-6, 1e-2))
    assert exact.ok
    assert wide.value == pytest.approx(
        noise_curvature(double, Perturbed(double), 0, radii=(1e-2, 3e-2, 1e-1)).value, rel=0.01
    )
    # The floor is the right size: what float32 gave is wrong by about that much, where it does not cancel altogether.
    away = [
        abs(row["value"] - true["value"]) / row["rounding"]
        for row, true in zip(found.details["radii"][:2], exact.details["radii"])
    ]
    assert 0.03 < max(away) < 30


def test_noise_curvature_does_not_depend_on_the_batch_size() -> None:
    values = [
        noise_curvature(p, Perturbed(p), 0).value for p in (mlp_problem(batch_size=3), mlp_problem(batch_size=10))
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-8)


@pytest.mark.parametrize("settings", [{"radii": ()}, {"radii": (0.0,)}, {"draws": 1}])
def test_noise_curvature_refuses_bad_settings(settings: dict[str, object]) -> None:
    problem = mlp_problem()
    with pytest.raises(UsageError, match="noise_curvature"):
        noise_curvature(problem, Perturbed(problem), 0, **settings)


# --- Keskar's box ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("eps", "seed"), [(1e-3, 0), (1e-3, 1), (1e-3, 2), (1e-2, 4), (0.1, 5)])
def test_keskar_reaches_the_best_vertex_of_convex_problems(eps: float, seed: int) -> None:
    torch.manual_seed(seed)
    inputs = 3 if seed == 2 else 2
    model = nn.Linear(inputs, 3, bias=seed == 2).double()  # 12 or 6 parameters, convex
    problem = opened(model, classes(seed, 15, inputs, 3))
    if seed % 2 == 0:  # at a minimum every gradient method started at w would stay there
        trained(problem)
    highest = keskar_sharpness.reference(Dense(problem), eps=eps)  # type: ignore[misc]
    found = keskar_sharpness(problem, Perturbed(problem), seed, eps=eps)
    assert found.how == "lower_bound"
    assert 0.95 * highest <= found.value <= highest * (1 + 1e-9)
    assert found.value > 0


def test_keskar_stays_under_its_small_box_bound() -> None:
    problem = trained(mlp_problem(3))
    hessian = Dense(problem).hessian
    found = keskar_sharpness(problem, Perturbed(problem), 0, eps=1e-4)
    top = float(torch.linalg.eigvalsh(hessian)[-1])
    second = 100 * top * found.details["box_norm_squared"] / 2 / (1 + problem.survey.loss)
    assert 0 < found.value <= (found.details["first_order"] + second) * 1.01


def test_keskar_in_a_subspace_moves_only_there() -> None:
    problem = mlp_problem(1)
    dense, perturbed = Dense(problem), Perturbed(problem)
    found = keskar_sharpness(problem, perturbed, 4, eps=1e-2, subspace=3, restarts=2)
    basis = torch.randn(problem.size, 3, generator=seeded_generator(4, 0, 1), dtype=FLOAT)
    basis = basis / basis.norm(dim=0)
    bounds = 1e-2 * ((torch.linalg.pinv(basis) @ dense.theta).abs() + 1)
    corners = [
        float(dense.loss_at(dense.theta + basis @ (bounds * torch.tensor(signs, dtype=FLOAT))))
        for signs in itertools.product((-1, 1), repeat=3)
    ]
    wanted = 100 * (max(corners) - dense.loss) / (1 + dense.loss)
    assert found.details["dimensions"] == 3
    assert found.value == pytest.approx(wanted, rel=1e-6)


def test_keskar_does_not_claim_a_finished_search_it_broke_off() -> None:
    # A sine: inside the box the gradient vanishes at an interior maximum, which one iteration does not reach.
    problem = opened(
        nn.Linear(4, 1, bias=False).double(),
        (torch.eye(4, dtype=FLOAT), torch.zeros(4)),
        lambda f, batch: 2 + torch.sin(40 * f[:, 0]),
    )
    short = keskar_sharpness(problem, Perturbed(problem), 0, eps=0.2, iterations=1, restarts=1)
    long = keskar_sharpness(problem, Perturbed(problem), 0, eps=0.2, iterations=100, restarts=6)
    assert short.status == "budget_spent"
    assert "iterations" in short.reason
    assert long.ok
    assert short.value <= long.value
    assert problem.survey.loss + long.details["rise"] <= 3 + 1e-9
    assert long.passes == long.details["forward_passes"] + long.details["gradient_passes"]


def test_a_loss_without_numbers_nearby_is_no_sharpness_of_zero() -> None:
    # log(f - 1) at f = 1 + tiny: every move of the box leads where there is no loss.
    model = nn.Linear(1, 1, bias=False).double()
    with torch.no_grad():
        model.weight.fill_(1 + 1e-12)
    x = torch.tensor([[1.0], [1.0]], dtype=FLOAT)

    def undefined(f: Tensor, batch: object) -> Tensor:
        return torch.where((f[:, 0] - 1).abs() < 1e-9, f[:, 0], torch.nan * f[:, 0])

    problem = opened(model, (x, torch.zeros(2)), undefined)
    found = keskar_sharpness(problem, Perturbed(problem), 0)
    assert found.status == "not_finite"


def test_keskar_refuses_bad_settings() -> None:
    problem = mlp_problem()
    with pytest.raises(UsageError, match="eps > 0"):
        keskar_sharpness(problem, Perturbed(problem), 0, eps=0.0)
    with pytest.raises(UsageError, match="subspace"):
        keskar_sharpness(problem, Perturbed(problem), 0, subspace=1000)


def test_box_search_finds_the_best_corner_of_quadratics() -> None:
    worst = 1.0
    for seed in range(10):
        generator = torch.Generator().manual_seed(seed)
        factor = torch.randn(10, 10, generator=generator, dtype=FLOAT)
        matrix, bounds = factor @ factor.T, torch.rand(10, generator=generator, dtype=FLOAT) + 0.1
        found = maximise_in_box(
            lambda z, m=matrix: (float(z @ m @ z), 2 * m @ z),
            lambda points, m=matrix: torch.einsum("ki,ij,kj->k", points, m, points),
            bounds,
            restarts=3,
            iterations=10,
        )
        signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=10)), dtype=FLOAT) * bounds
        highest = float(torch.einsum("ki,ij,kj->k", signs, matrix, signs).max())
        assert found.value <= highest * (1 + 1e-12)
        assert found.at_vertex
        worst = min(worst, found.value / highest)
    assert worst >= 0.95
