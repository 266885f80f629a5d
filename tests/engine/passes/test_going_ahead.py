"""Work that begins before its checks are done, as on a GPU: the same results, and nothing wrong gets past them."""

import copy
import warnings

import pytest
import torch
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.passes import curvature, rules
from spiritlevel.engine.passes.accumulating import CurvatureSums
from spiritlevel.engine.passes.curvature import curvature_sweep
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.survey import Surveyor
from tests.helpers import opened
from tests.networks import Centred, small_net

Data = tuple[Tensor, Tensor]


@pytest.fixture
def data() -> Data:
    torch.manual_seed(1)
    return torch.randn(23, 1, 8, 8, dtype=torch.float64), torch.randint(3, (23,))


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let sweeps go ahead on a CPU too; the list tells how each began."""
    begun: list[bool] = []
    original = curvature._CurvaturePass.run

    def watched(self: curvature._CurvaturePass) -> CurvatureSums | None:
        begun.append(self.ahead)
        return original(self)

    monkeypatch.setattr(curvature._CurvaturePass, "run", watched)
    monkeypatch.setattr(curvature, "_goes_ahead", lambda device: True)
    return begun


def same(found: CurvatureSums, expected: CurvatureSums) -> None:
    torch.testing.assert_close(found.sample_traces, expected.sample_traces, rtol=1e-11, atol=1e-14)
    assert found.exact_layers == expected.exact_layers
    assert found.fallback == expected.fallback
    for name, sums in expected.parameters.items():
        torch.testing.assert_close(found.parameters[name].diagonal, sums.diagonal, rtol=1e-11, atol=1e-14)


def patient(problem: OpenProblem) -> CurvatureSums:
    arguments = (frozenset({"diagonal"}), curvature.gauss_newton_columns, None, True, 0)
    found = curvature._CurvaturePass(problem, *arguments, ahead=False).run()
    assert found is not None
    return found


@pytest.mark.parametrize("batch_size", [3, 8, 64])
def test_what_is_found_is_the_same(data: Data, ahead: list[bool], batch_size: int) -> None:
    expected = patient(opened(small_net(), data, batch_size=batch_size))
    ahead.clear()
    problem = opened(small_net(), data, batch_size=batch_size)
    found = curvature_sweep(problem, frozenset({"diagonal"}))
    assert found is not None
    assert ahead == [True]  # and did not begin again
    assert problem.spent["forward"] == 1
    same(found, expected)


class SamplesSecond(nn.Module):
    """A linear layer that is called with the samples second, as many as there are of what comes first."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8).double(), nn.Linear(64, 3).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x[:, 0].transpose(0, 1)).transpose(0, 1).flatten(1).relu())


@pytest.mark.parametrize("model", [small_net(nn.Tanh), SamplesSecond()], ids=["curved", "samples second"])
def test_a_wrong_guess_begins_again(data: Data, ahead: list[bool], model: nn.Module) -> None:
    data = (data[0][:16], data[1][:16])
    expected = patient(opened(model, data, batch_size=8))
    ahead.clear()
    problem = opened(model, data, batch_size=8)
    found = curvature_sweep(problem, frozenset({"diagonal"}))
    assert found is not None
    assert ahead == [True, False]
    same(found, expected)


def test_a_rule_that_is_wrong_is_found_out_afterwards(
    data: Data, ahead: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = patient(opened(small_net(), data, batch_size=8))
    ahead.clear()
    monkeypatch.setattr(rules, "_matches", lambda *arguments: torch.tensor(False))
    found = curvature_sweep(opened(small_net(), data, batch_size=8), frozenset({"diagonal"}))
    assert found is not None
    assert ahead == [True, False]
    assert len(found.fallback) == 8
    torch.testing.assert_close(found.sample_traces, expected.sample_traces, rtol=1e-11, atol=1e-14)


def test_later_operations_of_another_kind_begin_again(data: Data, ahead: list[bool]) -> None:
    class ByLength(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small_net()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.net(x)
            return outputs if len(x) > 7 else outputs.neg().neg()

    found = curvature_sweep(opened(ByLength(), data, batch_size=16), frozenset({"diagonal"}))
    assert found is not None
    assert ahead == [True, False]


def test_samples_that_influence_each_other_have_no_columns(data: Data, ahead: list[bool]) -> None:
    problem = opened(Centred(small_net()), data, batch_size=8)
    assert curvature_sweep(problem) is None
    assert problem.survey.coupled


def test_what_cannot_be_measured_is_refused_in_the_same_words(data: Data, ahead: list[bool]) -> None:
    inputs = data[0].clone()
    inputs[2] = torch.inf
    with pytest.raises(sl.SpiritlevelError, match=r"not finite \(first at sample 2\)"):
        sl.per_sample(opened(small_net(), (inputs, data[1]), batch_size=8), "hessian_trace")
    labels = data[1].clone()
    labels[20] = 7
    with pytest.raises(sl.UsageError, match="found the label 7 at sample 4"):
        sl.per_sample(opened(small_net(), (data[0], labels), batch_size=8), "hessian_trace")


def test_nothing_is_left_behind(data: Data, ahead: list[bool]) -> None:
    model = SamplesSecond()
    before = copy.deepcopy(model.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sl.measure(opened(model, data, batch_size=8), ["hessian_trace"])
    assert model.training
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_the_first_batch_is_compared_with_its_own_losses(data: Data) -> None:
    """Those of later batches join the others while a GPU compares, so what they join may not be read then."""
    problem = opened(small_net(), data, batch_size=8)
    surveyor = Surveyor(problem)
    with problem.session():
        batches = list(problem.batches())
        outputs = [problem.outputs(batch.content).detach() for batch in batches]
        for batch, output in zip(batches, outputs):
            surveyor.add(batch, output)
        surveyor._losses._room.fill_(torch.nan)
        surveyor.look(batches[0], outputs[0])
    assert not surveyor.coupled
