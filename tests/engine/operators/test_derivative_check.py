"""The check before any product: operations without a second derivative, or with a wrong one, are found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import spiritlevel as sl
from spiritlevel.engine.operators import GGNOperator, HessianOperator
from spiritlevel.engine.operators.derivative_check import SAMPLES, path_of
from spiritlevel.engine.operators.generic_point import AWAY, GenericPoint
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import SpiritlevelError
from tests.attack.stages import Plain
from tests.engine.operators.material import CASES, distance, vectors
from tests.helpers import opened


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x / 2 + x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * (x + 1)


class GraphCutting(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.x = x.detach()
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * (1 - torch.tanh(ctx.x) ** 2)


class NoSecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.tanh(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            raise NotImplementedError("derivative for fused_tanh_backward is not implemented")
        return gradient * (1 - torch.tanh(x) ** 2)


def middle(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), Plain(function), nn.Linear(5, 3))


def last(function: Callable[[Tensor], Tensor]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), Plain(function))


PAIRS: Sequence[tuple[str, Any, Callable[[Tensor], Tensor], Callable[..., nn.Module]]] = [
    ("once, middle", OnceDifferentiable.apply, lambda x: x * x / 2 + x, middle),
    ("once, last", OnceDifferentiable.apply, lambda x: x * x / 2 + x, last),
    ("cut, middle", GraphCutting.apply, torch.tanh, middle),
    ("cut, last", GraphCutting.apply, torch.tanh, last),
    ("refusing", NoSecondDerivative.apply, torch.tanh, middle),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("name", "broken", "plain", "build"), PAIRS, ids=[pair[0] for pair in PAIRS])
def test_broken_second_derivatives_are_found_and_differences_take_over(
    name: str, broken: Any, plain: Any, build: Any, dtype: torch.dtype
) -> None:
    torch.manual_seed(3)
    sound = build(plain).double()
    model = build(broken).double()
    model.load_state_dict(sound.state_dict())
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 3, (20,))
    problem = opened(model.to(dtype), (x, y), batch_size=12)
    dense, block = Dense(opened(sound, (x, y))), vectors(problem)
    hessian = HessianOperator(problem)
    found = hessian @ block
    assert hessian.path.hessian == "finite differences"
    assert "finite differences of gradients, radius" in hessian.path.label
    assert hessian.path.converged
    assert any("finite differences of gradients" in note for note in problem.notes)
    assert distance(found, dense.hessian @ block.double()) < (1e-3 if dtype == torch.float32 else 1e-8)
    assert distance(GGNOperator(problem) @ block, dense.ggn @ block.double()) < (
        1e-3 if dtype == torch.float32 else 1e-8
    )
    if dtype == torch.float32 or name not in ("once, last", "cut, middle"):
        return  # the measures are made of these products; two cases show that they say so
    report = sl.measure(problem, ["hessian_trace", "hessian_top_eigenvalue", "fisher_rao_norm"], tolerance=0.2)
    top = report["hessian_top_eigenvalue"]
    exact = torch.linalg.eigvalsh(dense.hessian)
    assert abs(top.value - float(exact[-1])) <= top.details["residual"] + 1e-6
    assert "finite differences" in top.details["path"]
    trace = report["hessian_trace"]
    assert trace.how == "estimated"
    assert abs(trace.value - float(exact.sum())) < 5 * trace.stderr + 1e-3 * abs(float(exact.sum()))
    sound_report = sl.measure(opened(sound, (x, y)), "fisher_rao_norm")
    assert float(report["fisher_rao_norm"]) == pytest.approx(float(sound_report["fisher_rao_norm"]), rel=1e-3)


def rough(frequency: float) -> type[torch.autograd.Function]:
    """Return x + 0.3 sin(ωx)/ω, whose gradient turns round over steps of 1/ω, without a second derivative."""

    class Rough(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x + 0.3 / frequency * torch.sin(frequency * x)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return gradient * (1 + 0.3 * torch.cos(frequency * x))

    return Rough


@pytest.mark.parametrize(("dtype", "frequency"), [(torch.float32, 3e3), (torch.float64, 3e3), (torch.float64, 6e3)])
def test_steps_are_chosen_where_the_first_ones_disagree_and_their_error_is_told(
    dtype: torch.dtype, frequency: float
) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    model = middle(rough(frequency).apply)
    plain = middle(lambda x: x + 0.3 / frequency * torch.sin(frequency * x))
    plain.load_state_dict(model.state_dict())
    truth = float(torch.linalg.eigvalsh(Dense(opened(plain, (x, y))).hessian)[-1])
    found = sl.eigenvalues(sl.Problem(model, (x, y), dtype=dtype), max_sweeps=40)
    assert "not converged" not in found.path
    assert abs(float(found.values[0]) - truth) <= float(found.residuals[0]) <= 0.05 * truth
    top = sl.measure(sl.Problem(model, (x, y), dtype=dtype), "hessian_top_eigenvalue")["hessian_top_eigenvalue"]
    assert top.interval is not None
    assert top.interval[0] <= truth <= top.interval[1]


def test_differences_whose_two_steps_disagree_say_not_converged() -> None:
    class Noisy(torch.autograd.Function):
        """A function whose gradient in float32 is another one a hair further on."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.tanh()

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            slope = 1 - x.tanh().square()
            return gradient * (slope + 0.02 * (1e6 * x).sin() if x.dtype == torch.float32 else slope)

    torch.manual_seed(0)
    x, y = torch.randn(40, 4), torch.randint(0, 3, (40,))
    problem = opened(middle(Noisy.apply), (x, y))
    found = sl.eigenvalues(problem, max_sweeps=40)
    assert found.status == "budget_spent"
    assert "not converged" in found.reason
    assert "not converged" in found.path
    row = sl.measure(problem, "hessian_top_eigenvalue")["hessian_top_eigenvalue"]
    assert row.status == "budget_spent"
    assert "not converged" in row.reason


def test_a_gradient_that_is_not_the_derivative_is_refused() -> None:
    class StraightThrough(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + (torch.round(4 * x) / 4 - x).detach()

    model = nn.Sequential(nn.Linear(4, 5), StraightThrough(), nn.Linear(5, 3)).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 3, (20,))
    problem = opened(model, (x, y))
    for _ in range(2):  # and again, not only the first time
        with pytest.raises(SpiritlevelError, match=r"is not the derivative of the (loss|outputs)"):
            HessianOperator(problem) @ vectors(problem)
    for again in (problem, opened(model, (x, y))):  # also where nothing was looked at before
        report = sl.measure(again, ["hessian_trace", "hessian_top_eigenvalue"])
        assert {row.status for row in report.values()} == {"not_applicable"}
    with pytest.raises(SpiritlevelError, match=r"is not the derivative of the (loss|outputs)"):
        sl.per_sample(opened(model, (x, y)), "hessian_trace")
    constant = opened(nn.Sequential(nn.Linear(4, 3), Plain(lambda z: z.detach())).double(), (x, y))
    with pytest.raises(SpiritlevelError, match="does not depend on the chosen parameters"):
        HessianOperator(constant) @ vectors(constant)


class Rms32(nn.Module):
    """A normalisation that works in float32 whatever it is given, as language models' do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.head = nn.Linear(4, 12), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, 1, 4)).permute(2, 0, 3, 1, 4)
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True)[:, 0].mean(1))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (FusedAttention, (3, 4)),
        (Lstm, (3, 4)),
        (lambda: nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)), (4,)),
        (lambda: nn.Sequential(nn.Linear(4, 5), Rms32(), nn.SiLU(), nn.Linear(5, 3)), (4,)),
        (lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)), (4,)),
    ],
    ids=["fused attention", "lstm", "layer norm", "float32 inside", "relu"],
)
def test_common_operations_pass_the_check(build: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    model = build().to(dtype)
    x, y = torch.randn(12, *shape, dtype=dtype), torch.randint(0, 3, (12,))
    problem = opened(model, (x, y), batch_size=5)
    block = vectors(problem)
    product = HessianOperator(problem) @ block
    assert path_of(problem).label == "double backward"
    assert not problem.notes
    assert distance(product, Dense(problem).hessian @ block.double()) < (2e-5 if dtype == torch.float32 else 2e-6)


def test_the_check_is_cheap_and_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["tanh"].opened(count=40, batch_size=40)
    calls: list[int] = []
    forward = type(problem).outputs

    def counted(self: OpenProblem, content: Any, parameters: Any = None) -> Tensor:
        calls.append(len(content[0]))
        return forward(self, content, parameters)

    problem.survey  # noqa: B018
    monkeypatch.setattr(OpenProblem, "outputs", counted)
    path_of(problem)
    assert len(calls) == 3  # the product, and a sharp difference
    assert max(calls) <= SAMPLES  # of a few samples
    path_of(problem)
    assert len(calls) == 3


@pytest.mark.parametrize(("positions", "samples"), [(1, SAMPLES), (4000, 2)])
def test_of_a_large_model_on_large_samples_few_are_looked_at(
    positions: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spiritlevel.engine.operators.derivative_check.LARGE", 10)
    torch.manual_seed(0)
    seen: list[int] = []
    calls = OpenProblem.outputs

    def counted(self: OpenProblem, content: Any, parameters: Any = None) -> Tensor:
        if parameters is not None:
            seen.append(len(content[0]))
        return calls(self, content, parameters)

    monkeypatch.setattr(OpenProblem, "outputs", counted)
    for function, trusted in ((torch.tanh, True), (GraphCutting.apply, False)):
        seen.clear()
        middle = nn.Linear(4, 50), Plain(function), nn.Linear(50, 50), nn.Linear(50, 3)
        model = nn.Sequential(*middle, Plain(lambda z: z.mean(1)))
        problem = opened(model.double(), (torch.randn(40, positions, 4).double(), torch.randint(0, 3, (40,))))
        assert path_of(problem).differences is not trusted
        assert set(seen) == {samples}


@pytest.mark.parametrize("sizes", [(7,), (60_000, 9), (65_537, 65_538, 3)])
def test_the_generic_point_is_made_anew_each_time_and_is_the_same(sizes: tuple[int, ...]) -> None:
    model = nn.Module()
    model.parts = nn.ParameterList([torch.randn(size).double() for size in sizes])
    model.forward = lambda x: torch.stack([x @ part[:3] for part in model.parts], 1)  # type: ignore[assignment]
    problem = opened(model, (torch.randn(5, 3).double(), torch.randn(5, len(sizes)).double()), "mean_squared_error")
    at = GenericPoint(problem, torch.float64)
    here, there = at.moved(0.0), at.moved(0.5)
    direction = {name: at.direction(name) for name in here}
    for name, tensor in problem.chosen_parameters.items():
        torch.testing.assert_close(there[name] - here[name], 0.5 * direction[name], rtol=1e-9, atol=1e-12)
        away = (here[name] - tensor.detach()) / (AWAY * at.scales[name])
        assert 0.1 < float(away.std()) < 10
        assert abs(float(torch.corrcoef(torch.stack([away, direction[name]]))[0, 1])) < 0.99
    parts = [torch.randn_like(part) for part in here.values()]
    expected = torch.stack([(part * direction[name]).sum() for name, part in zip(here, parts)])
    torch.testing.assert_close(at.slopes(parts), expected, rtol=1e-9, atol=1e-9)
    assert all(torch.equal(there[name], again) for name, again in at.moved(0.5).items())


def test_near_interpolation_the_check_still_sees() -> None:
    torch.manual_seed(0)
    for function, trusted in ((torch.tanh, True), (GraphCutting.apply, False)):
        model = middle(function).double()
        with torch.no_grad():
            model[2].weight.mul_(5000)  # every sample far on its side: the loss and its derivatives are nearly 0
        x = torch.randn(20, 4, dtype=torch.float64)
        problem = opened(model, (x, model(x).argmax(1)))
        assert problem.survey.loss < 1e-3
        assert path_of(problem).differences is not trusted
