"""Probes of every sample's own Hessian: traces against a dense Hessian, errors that cover, and foolers found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.passes.sample_probes import SampleProbes
from spiritlevel.engine.passes.strata import StratifiedSampling
from spiritlevel.measures.reference import Dense
from tests.helpers import opened

COUNT = 12
TOKENS, WIDTH, LENGTH = 11, 10, 4


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 9), nn.LayerNorm(9), nn.SiLU(), nn.Linear(9, 3))


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 10, 2, padding=1), nn.BatchNorm2d(10), nn.GELU(),
        nn.Conv2d(10, 12, 2, stride=2), nn.GroupNorm(2, 12), nn.Sigmoid(), nn.Flatten(), nn.Linear(12, 3),
    )  # fmt: skip


class Language(nn.Module):
    """Tokens with positions that all samples share, attention over them, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.joint, self.out, self.norm = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(LENGTH))
        q, k, v = self.joint(self.norm(x)).chunk(3, -1)
        x = x + self.out(F.softmax(q @ k.mT, -1) @ v)
        return self.head(x.mean(1))


class Deep(Language):
    """Six blocks, through which much passes that cancels."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
            for _ in range(6)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(LENGTH))
        for block in self.blocks:
            q, k, v = self.joint(self.norm(x)).chunk(3, -1)
            x = x + self.out(F.softmax(q @ k.mT, -1) @ v)
            x = x + block(x)
        return self.head(x.mean(1))


class Windows(nn.Module):
    """A layer that sees several rows of each sample, as windows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(4, 12), nn.LayerNorm(12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(self.inner(x.reshape(-1, 4))).tanh().square()
        return self.head(rows.reshape(len(x), 3, 12).sum(1))


class UsedElsewhere(nn.Module):
    """A weight that the forward also takes without its module."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(torch.tanh(self.a(x))) + 0.1 * F.linear(x.square(), self.a.weight))


class Shuffled(nn.Module):
    """A layer that is given the samples in another order."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(12, 12), nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.tanh(self.a(x))
        return self.head(torch.tanh(first + self.b(first.flip(0)).flip(0)))


def squaring(module: nn.Module, args: object, output: Tensor) -> Tensor:
    return output + 0.3 * output.square()


def hooked() -> nn.Module:
    model = perceptron()
    model[0].register_forward_hook(squaring)
    return model


class OneKindLater(nn.Module):
    """Batches that begin with a certain sample go another way, where a weight is used once more."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(12, 12), nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.a(x))
        if bool((x[:, 0] > 100).any()):
            inner = torch.where(x[:, :1] > 100, F.linear(inner, self.a.weight).square(), inner)
        return self.head(inner)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "perceptron": perceptron, "convolutions": convolutions, "language": Language, "windows": Windows,
}  # fmt: skip


def made(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    return build().double().eval()


def data(model: nn.Module, count: int = COUNT) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    labels = torch.randint(0, 3, (count,), generator=generator)
    if isinstance(model, Language):
        return torch.randint(0, TOKENS, (count, LENGTH), generator=generator), labels
    return torch.randn(count, 12, generator=generator).double(), labels


def probes(model: nn.Module, batch_size: int = 5, seed: int = 0, count: int = COUNT) -> SampleProbes:
    return SampleProbes(opened(model, data(model, count), batch_size=batch_size), seed)


def traces(dense: Dense) -> dict[str, float]:
    return {name: float(dense.hessian[own, own].trace()) for name, own in dense.slices.items()}


@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_traces_of_every_parameter_are_the_dense_hessians(build: Callable[[], nn.Module]) -> None:
    model = made(build)
    found, dense = probes(model), Dense(sl.Problem(model, data(model)))
    assert set(found.names) == {name for name, _ in model.named_parameters()}
    found.more(100)
    form, expected = found.form("entries"), traces(dense)
    for name, own in form.sums.items():
        assert abs(float(own.mean) - expected[name]) <= 4 * float(own.stderr), name
        assert float(own.stderr) > 0
    assert float(form.network.mean) == pytest.approx(sum(float(own.mean) for own in form.sums.values()))
    assert abs(float(form.network.mean) - sum(expected.values())) <= 4 * float(form.network.stderr)
    samples = torch.stack([dense.sample_hessian(n).trace() for n in range(COUNT)])
    assert ((found.samples.mean - samples).abs() <= 4.5 * found.samples.stderr).all()


@pytest.mark.slow
def test_errors_cover_over_seeds_and_are_not_wasteful() -> None:
    model = made(Language)
    expected = sum(traces(Dense(sl.Problem(model, data(model)))).values())
    scores = []
    for seed in range(40):
        found = probes(model, seed=seed)
        found.more(8)
        network = found.form("entries").network
        scores.append((float(network.mean) - expected) / float(network.stderr))
    spread = torch.tensor(scores)
    assert (spread.abs() < 1.96).double().mean() >= 0.85
    assert 0.7 < spread.square().mean().sqrt() < 1.4


@pytest.mark.slow
def test_sums_with_factors_know_that_parameters_share_their_draws() -> None:
    model, factors = made(Language), {"joint.weight": 2.0, "out.weight": -1.0, "tokens.weight": 0.5}
    values, errors = [], []
    for seed in range(60):
        found = probes(model, seed=seed)
        found.more(4)
        form = found.form("entries")
        values.append(sum(factor * float(form.sums[name].mean) for name, factor in factors.items()))
        errors.append(form.joint.variance(factors))
    assert torch.tensor(values).var() == pytest.approx(float(torch.tensor(errors).mean()), rel=0.5)


@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_neither_batches_nor_strata_change_a_sample_s_probes(build: Callable[[], nn.Module]) -> None:
    model = made(build)
    whole, other = probes(model, batch_size=COUNT), probes(model, batch_size=5)
    whole.more(6)
    other.more(2)
    other.more(4)
    torch.testing.assert_close(whole.samples.mean, other.samples.mean, rtol=1e-9, atol=1e-9)
    many = probes(model, count=80)
    apart = StratifiedSampling(many.problem, many, torch.arange(80.0))
    alike = probes(model, count=80)
    alike.more(2)
    assert len(apart.strata) > 1
    apart.more(2)
    torch.testing.assert_close(apart.samples.mean, alike.samples.mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("build", "left"),
    [(UsedElsewhere, {"a.weight"}), (Shuffled, {"b.weight", "b.bias"}), (hooked, {"0.weight", "0.bias"})],
    ids=["used elsewhere", "shuffled", "hooked"],
)
def test_layers_that_do_something_else_are_found_out(build: Callable[[], nn.Module], left: set[str]) -> None:
    """One wrong tangent spoils what the others are held against, so more than it may be left out, never less."""
    model = made(build)
    found = probes(model)
    assert not left & set(found.names)
    if found.names:
        found.more(80)
        expected = traces(Dense(sl.Problem(model, data(model))))
        for name, own in found.form("entries").sums.items():
            assert abs(float(own.mean) - expected[name]) <= 4 * float(own.stderr), name


def test_a_later_batch_of_another_kind_costs_the_parameters_it_uses_otherwise() -> None:
    model = made(OneKindLater)
    x, y = data(model)
    x[9, 0] = 101.0
    found = SampleProbes(opened(model, (x, y), batch_size=5), 0)
    assert "a.weight" in found.names
    found.more(100)
    assert "a.weight" not in found.names
    expected = traces(Dense(sl.Problem(model, (x, y))))
    for name, own in found.form("entries").sums.items():
        assert abs(float(own.mean) - expected[name]) <= 4 * float(own.stderr), name


@pytest.mark.parametrize("tolerance", [0.05, 0.01])
def test_a_network_s_trace_is_right_by_whichever_way_was_the_better_one(tolerance: float) -> None:
    model = made(Deep)
    x, y = data(model, 100)
    dense = Dense(sl.Problem(model, (x, y)))
    report = sl.measure(sl.Problem(model, (x, y)), ["hessian_trace", "kappa_tau_sum"], tolerance=tolerance)
    trace = report["hessian_trace"]
    assert abs(trace.value - float(dense.hessian.trace())) <= 4 * trace.stderr
    blocks = Blocks(opened(model, (x, y)), tolerance=1e-3)
    while blocks.improve(blocks.network_trace()):
        pass
    assert blocks.traces.probes.form is not None
    expected = traces(dense)
    for layer, own in report.per_layer["hessian_trace"].items():
        fulls = [f"{layer}.{local}" for local in ("weight", "bias") if f"{layer}.{local}" in expected]
        assert abs(own.value - sum(expected[full] for full in fulls)) <= 4.5 * own.stderr, layer


def test_exact_layers_stay_exact_where_others_are_probed() -> None:
    model = made(perceptron)
    problem = opened(model, data(model, 80))
    blocks = Blocks(problem, tolerance=1e-4)
    while blocks.improve(blocks.network_trace()):
        pass
    head = blocks.layer_trace("5")
    assert (head.how, head.stderr) == ("exact", 0.0)
