"""Fisher–Rao norms against brute force, closed forms and rescaling, with derivatives nobody vouches for found out."""

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.passes.curvature import curvature_sweep, fisher_columns
from spiritlevel.engine.passes.radial import radial_statistics
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.fisher_rao import fisher_rao_diagonal, fisher_rao_norm
from spiritlevel.measures.reference.dense import Dense
from tests.helpers import opened
from tests.measures.classifiers import data, network, problems


@pytest.mark.parametrize("which", ["relu", "class weights"])
def test_fisher_rao_norms_equal_their_reference(which):
    problem = problems()[which]
    dense, radial = Dense(problem), radial_statistics(problem)
    for labels in ("observed", "model"):
        expected = fisher_rao_norm.reference(dense, labels=labels)
        assert float(fisher_rao_norm(radial, labels=labels).value) == pytest.approx(expected, rel=1e-12)
    fisher = curvature_sweep(problem, frozenset({"diagonal"}), columns_of=fisher_columns, verify=False)
    found = fisher_rao_diagonal(problem, fisher)
    assert float(found.value) == pytest.approx(fisher_rao_diagonal.reference(dense), rel=1e-12)
    layers = found.layers["fisher_rao_diagonal"]
    assert set(layers) == {"0", "2"}
    assert sum(float(part) for part in layers.values()) == pytest.approx(float(found.value), rel=1e-14)


def test_the_fisher_diagonal_comes_with_the_curvature_sweep_where_both_are_asked_for():
    problem = problems()["class weights"]
    apart = sl.measure(problem, ["fisher_rao_diagonal"])["fisher_rao_diagonal"]
    problem.spent.clear()
    sl.measure(problem, ["hessian_trace"])
    alone = problem.spent["forward"]
    problem = problems()["class weights"]
    together = sl.measure(problem, ["hessian_trace", "fisher_rao_diagonal"])
    assert together["fisher_rao_diagonal"].value == pytest.approx(apart.value, rel=1e-14)
    assert together["fisher_rao_diagonal"].passes == 0
    assert problem.spent["forward"] == alone


def huber(outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.huber_loss(outputs, batch[1], reduction="none").mean(1)


@pytest.mark.parametrize("loss", ["mse", huber, "normalized_cross_entropy", "positions"])
def test_derivatives_along_the_parameters_for_other_losses_in_float32(loss):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.GELU(), nn.LayerNorm(7), nn.Linear(7, 4))
    x, y = torch.randn(11, 5), torch.randn(11, 4)
    if loss == "positions":
        x, y, loss = torch.randn(11, 3, 5), torch.randint(0, 4, (11, 3)), "cross_entropy"
        y[2, 1:], y[5] = -100, -100
    elif loss == "normalized_cross_entropy":
        y = torch.randint(0, 4, (11,))
    problem = opened(model, (x, y), loss, batch_size=4)
    radial, dense = radial_statistics(problem), Dense(problem)
    slopes = dense.sample_gradients @ dense.theta
    assert torch.allclose(radial.loss_slope, slopes, rtol=0, atol=1e-5 * float(slopes.abs().max()))
    model_form = fisher_rao_norm(radial, labels="model").value
    assert float(model_form) == pytest.approx(fisher_rao_norm.reference(dense, labels="model"), rel=1e-4)


class Doubled(torch.autograd.Function):
    """2x with a backward rule alone, or with a forward rule that is wrong."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return 2 * gradient


class WronglyDoubled(Doubled):
    @staticmethod
    def jvp(ctx, along: Tensor) -> Tensor:
        return 3 * along


@pytest.mark.parametrize("function", [Doubled, WronglyDoubled])
def test_a_missing_or_wrong_forward_derivative_is_found_out_and_not_used(function):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(3, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(function.apply(torch.tanh(self.inner(x))))

    torch.manual_seed(0)
    problem = opened(Scaled().double(), (torch.randn(9, 3).double(), torch.randint(0, 3, (9,))), batch_size=4)
    radial, dense = radial_statistics(problem), Dense(problem)
    assert torch.allclose(radial.loss_slope, dense.sample_gradients @ dense.theta, rtol=1e-9)
    assert problem.spent["gradient"] == 2


def test_fisher_rao_norm_of_a_bias_free_relu_net_has_a_closed_form():
    x, y = data()
    problem = opened(network("bias-free"), (x, y), batch_size=10)
    radial, outputs = radial_statistics(problem), problem.survey.outputs
    p = outputs.softmax(1)
    slope = (p * outputs).sum(1) - outputs.gather(1, y[:, None])[:, 0]  # <∂ℓ/∂f, f> of cross-entropy
    variance = (p * outputs.square()).sum(1) - (p * outputs).sum(1).square()
    matrices = 3
    assert float(fisher_rao_norm(radial).value) == pytest.approx(matrices**2 * float(slope.square().mean()), rel=1e-12)
    model = fisher_rao_norm(radial, labels="model").value
    assert float(model) == pytest.approx(matrices**2 * float(variance.mean()), rel=1e-12)


def test_full_fisher_rao_norm_ignores_a_weight_written_as_a_sum_and_the_diagonal_one_does_not():
    class Two(nn.Module):
        def __init__(self, share: float) -> None:
            super().__init__()
            whole = torch.randn(4, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
            self.one, self.two = nn.Parameter(share * whole), nn.Parameter((1 - share) * whole)

        def forward(self, x: Tensor) -> Tensor:
            return x @ (self.one + self.two).T

    even, uneven = (opened(Two(share), data()) for share in (0.5, 1.0))
    norms = [float(fisher_rao_norm(radial_statistics(p)).value) for p in (even, uneven)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-13)
    diagonals = [fisher_rao_norms(p)[2] for p in (even, uneven)]
    # W/2, W/2 to W, 0: it doubles, although the paper has it halve.
    assert diagonals[1] == pytest.approx(2 * diagonals[0], rel=1e-13)


def fisher_rao_norms(problem: OpenProblem) -> list[float]:
    fisher = curvature_sweep(problem, frozenset({"diagonal"}), columns_of=fisher_columns, verify=False)
    radial = radial_statistics(problem)
    found = [fisher_rao_norm(radial), fisher_rao_norm(radial, labels="model"), fisher_rao_diagonal(problem, fisher)]
    return [float(result.value) for result in found]


@pytest.mark.parametrize("factors", [[4.0] * 6, [0.1, 1.0, 3.0, 10.0, 0.5, 2.0]], ids=["layer", "neuron"])
def test_fisher_rao_norms_survive_rescaling_and_not_the_scaling_of_outputs(factors):
    x, y = data()
    before = fisher_rao_norms(opened(network("relu"), (x, y)))
    model = network("relu")
    by = torch.tensor(factors, dtype=torch.float64)
    with torch.no_grad():
        model[0].weight *= by[:, None]
        model[0].bias *= by
        model[2].weight /= by
    assert fisher_rao_norms(opened(model, (x, y))) == pytest.approx(before, rel=1e-11)
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter *= 3
    assert all(abs(new / old - 1) > 0.1 for new, old in zip(fisher_rao_norms(opened(model, (x, y))), before))
    # The standardised loss does not see the scale of the outputs.
    original, scaled = (opened(m, (x, y), "normalized_cross_entropy") for m in (network("relu"), model))
    assert fisher_rao_norms(scaled) == pytest.approx(fisher_rao_norms(original), rel=1e-9, abs=1e-12)
