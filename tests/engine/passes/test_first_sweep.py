"""The first sweep over data in memory: survey, curvature and gradient at once, as each would find them alone."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.passes import stages
from spiritlevel.engine.passes.curvature import curvature_sweep
from spiritlevel.engine.passes.gradient import mean_gradient
from spiritlevel.engine.passes.graph import look_at
from spiritlevel.engine.passes.piecewise import linear_by_nature
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.passes.stages import Stages, find_stages
from spiritlevel.measures.reference import Dense
from tests.helpers import opened, recorded
from tests.networks import Centred, small_net

Data = tuple[Tensor, Tensor]


@pytest.fixture
def data() -> Data:
    torch.manual_seed(1)
    return torch.randn(23, 1, 8, 8, dtype=torch.float64), torch.randint(3, (23,))


def test_a_sweep_that_comes_first_takes_the_same_survey(data: Data) -> None:
    apart, together = opened(small_net(), data, batch_size=8), opened(small_net(), data, batch_size=8)
    expected = apart.survey
    curvature_sweep(together)
    assert together.known_survey is not None
    for field in dataclasses.fields(expected):
        one, other = getattr(expected, field.name), getattr(together.survey, field.name)
        if isinstance(one, Tensor):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)
        else:
            assert one == pytest.approx(other) if isinstance(one, float) else one == other
    assert together.spent["forward"] == 1


def test_data_that_is_read_anew_is_looked_at_twice(data: Data) -> None:
    class Shuffled:
        def __iter__(self):  # type: ignore[no-untyped-def]
            order = torch.randperm(len(data[1]))
            yield data[0][order], data[1][order]

    with pytest.raises(sl.SpiritlevelError, match="two sweeps over the same data disagree"):
        sl.per_sample(opened(small_net(), Shuffled()), "hessian_trace")
    assert not opened(small_net(), TensorDataset(*data)).may_be_surveyed_on_the_way


def test_samples_that_influence_each_other_have_no_columns(data: Data) -> None:
    problem = opened(Centred(small_net()), data, batch_size=8)
    assert curvature_sweep(problem) is None
    assert problem.survey.coupled


@pytest.mark.parametrize("batch_size", [3, 8, 64])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_on_the_way_is_that_of_a_pass_of_its_own(data: Data, batch_size: int, weighted: bool) -> None:
    def loss(outputs: Tensor, batch: Data) -> tuple[Tensor, Tensor]:
        losses = nn.functional.cross_entropy(outputs, batch[1], reduction="none")
        return losses, (1.0 + batch[1].double() if weighted else torch.ones_like(losses))

    problem = opened(small_net(nn.Tanh), data, loss, batch_size=batch_size)
    sums = Blocks(problem, frozenset({"fisher"})).sums
    assert sums is not None
    assert sums.beside is not None
    assert sums.beside.mean is not None
    expected, found = mean_gradient(problem), sums.beside.mean
    if not weighted:  # the loss that the dense gradient is of
        assert found.norm == pytest.approx(float(Dense(problem).gradient.norm()), rel=1e-10)
    assert found.norm == pytest.approx(expected.norm, rel=1e-10)
    assert found.noise == pytest.approx(expected.noise, rel=1e-8)


def test_the_header_does_not_depend_on_which_measures_run(data: Data) -> None:
    headers = [
        sl.measure(opened(small_net(), data, batch_size=8), names).header
        for names in (["weight_norm"], ["hessian_trace"], ["hessian_trace", "fisher_rao_diagonal"])
    ]
    for key in ("loss", "accuracy", "fingerprint", "gradient_norm", "gradient_noise", "at_minimum"):
        said = [getattr(header, key) for header in headers]
        assert len({f"{value:.10g}" if isinstance(value, float) else value for value in said}) == 1, key


def test_a_shared_sweep_is_counted_with_the_first_measure_that_needs_it(data: Data) -> None:
    report = sl.measure(opened(small_net(), data), ["weight_norm", "hessian_trace", "relative_flatness"])
    spent = {name: report[name].passes for name in report}
    assert spent["weight_norm"] == 0
    assert spent["relative_flatness"] == 0
    assert spent["hessian_trace"] == 2  # one column less than there are classes; the forward pass is the survey's


@pytest.mark.parametrize("limit", [0, 300, 1500, 10**6])
def test_columns_pulled_back_in_stages_are_the_same(data: Data, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(stages, "TOGETHER_NUMBERS", limit)
    problem = opened(small_net(), data, batch_size=8)
    with problem.session():
        outputs, recorder, graph, columns = recorded(problem)
        names = list(recorder.edges)
        chosen = find_stages(recorder, graph, names, len(columns))
        expected = {
            0: Stages(),
            300: Stages(("6", "8"), "6"),
            1500: Stages(("3", "6", "8"), "3"),
            10**6: Stages(tuple(names)),
        }[limit]
        assert chosen == expected
        norms = []
        for how in (Stages(), chosen):
            deltas, rules = (
                recorder.pull_back_all(outputs, columns, names, how),
                recorder.gradients_from_deltas(names, how),
            )
            assert deltas.keys() == set(names)
            norms.append([part.squared_norms() for name in names for part in rules[name](deltas[name]).values()])
    torch.testing.assert_close(*norms, rtol=1e-12, atol=1e-15)


def test_a_cut_after_a_pooling_gives_the_gradients_before_it(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sl.curvature(opened(small_net(), data, batch_size=8))
    monkeypatch.setattr(stages, "TOGETHER_NUMBERS", 4000)  # all but what comes before the pooling
    model = nn.Sequential(nn.Conv2d(1, 1, 1, bias=False).double(), *small_net())
    nn.init.ones_(model[0].weight)
    cuts = []
    original = find_stages

    def watched(*arguments):  # type: ignore[no-untyped-def]
        cuts.append(original(*arguments))
        return cuts[-1]

    monkeypatch.setattr("spiritlevel.engine.passes.rules.find_stages", watched)
    found = sl.curvature(opened(model, data, batch_size=8))
    assert cuts[0].cut == "1"
    for name, part in expected.diagonal.items():
        place, kind = name.split(".")
        torch.testing.assert_close(found.diagonal[f"{int(place) + 1}.{kind}"], part, rtol=1e-10, atol=1e-15)


def test_a_shortcut_around_a_layer_leaves_nothing_to_cut_at() -> None:
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.first(x)
            return self.last((x + self.inner(x).relu()).relu())

    problem = opened(Residual(), (torch.randn(8, 4), torch.randint(2, (8,))))
    with problem.session():
        batch = next(iter(problem.batches()))
        with Recorder(problem) as recorder:
            outputs = problem.outputs(batch.content)
        graph = look_at(outputs)
        # "inner" lies on one of two ways to "first", so only "last" and "first" are on all ways.
        reached = stages._reached_without(recorder.stops["inner"][0].node, graph)
        assert recorder.stops["first"][0].node in reached
        assert recorder.stops["first"][0].node not in stages._reached_without(recorder.stops["last"][0].node, graph)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * self.b(x)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.a(x).relu())


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.a(x).relu()


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.BatchNorm1d(5), nn.Linear(5, 3)), True),
        (nn.Sequential(nn.Linear(4, 5), nn.LeakyReLU(), nn.Linear(5, 3)), True),
        (Scaled(), True),
        (nn.Sequential(nn.Linear(4, 5), nn.Hardswish(), nn.Linear(5, 3)), False),
        (nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)), False),
        (Gated(), False),
        (Tied(), False),
    ],
)
def test_only_networks_without_any_curved_operation_are_linear_by_nature(model: nn.Module, expected: bool) -> None:
    problem = opened(model, (torch.randn(6, 4), torch.randint(3, (6,))))
    with problem.session():
        graph = look_at(problem.outputs(next(iter(problem.batches())).content))
    assert linear_by_nature(graph) is expected


def test_batch_norm_is_linear_only_while_it_goes_by_the_past() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    graph = look_at(model(torch.randn(6, 4)))
    assert not linear_by_nature(graph)


def test_an_operation_that_is_curved_in_places_is_looked_for_in_every_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.Hardswish(), nn.Linear(4, 2))
    nn.init.ones_(model[0].weight)
    nn.init.zeros_(model[0].bias)
    x = torch.linspace(4, 9, 12)[:, None]  # above 3 a hardswish is linear
    y = torch.randint(2, (12,))
    assert Blocks(opened(model, (x, y), batch_size=4)).exact
    x[-1] = 1.0
    assert Blocks(opened(model, (x, y), batch_size=4)).exact_layers == {"0": False, "2": True}


class Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return None


def test_a_layer_that_nothing_is_passed_back_to_is_left_out(data: Data) -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(64, 5).double(), nn.Linear(5, 3).double()

        def forward(self, x: Tensor) -> Tensor:
            return self.b(Blocked.apply(self.a(x.flatten(1))) + x.flatten(1)[:, :5])

    problem = opened(Cut(), data, batch_size=8)
    with problem.session():
        batch = next(iter(problem.batches()))
        with Recorder(problem) as recorder:
            outputs = problem.outputs(batch.content)
        recorder.stop_after_poolings(look_at(outputs))
        found = recorder.pull_back_all(
            outputs, torch.randn(2, *outputs.shape, dtype=torch.float64), ["a", "b"], Stages()
        )
    assert set(found) == {"b"}


def test_a_sweep_that_fails_is_not_counted(data: Data) -> None:
    class Through(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + (x.round() - x).detach()

    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), Through(), nn.Linear(5, 3)).double()
    report = sl.measure(opened(model, data), ["hessian_trace", "weight_norm"])
    assert report["hessian_trace"].status == "not_applicable"
    assert report["weight_norm"].passes == 0
