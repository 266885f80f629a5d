"""Parameters that no module accounts for: each sample's gradient from the operations that take them in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.passes.recording import USE
from spiritlevel.measures.reference import Dense
from tests.helpers import opened

WANTS = frozenset({"diagonal", "rows", "columns"})


class Tokens(nn.Module):
    """A class token, a position embedding, scales of a branch and a bias by differences of positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.token, self.places = nn.Parameter(torch.randn(1, 1, 4)), nn.Parameter(torch.randn(5, 4))
        self.scale, self.shift = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 1, 1))
        self.table = nn.Parameter(torch.randn(9))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1) + self.places
        apart = torch.arange(5)[:, None] - torch.arange(5) + 4
        mixed = (x @ x.transpose(1, 2) + self.table[apart]).softmax(-1) @ x
        x = x + mixed * self.scale - (self.shift.transpose(0, 2) * 0.5)[0]
        return self.head(x[:, 0])


class Functional(nn.Module):
    """Normalisation and projection called as functions, by parameters of the model's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))
        self.gain, self.offset = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.linear(x, self.weight, self.bias)
        return self.head(F.layer_norm(x, (4,), self.gain, self.offset).relu().mean(1))


class Attending(nn.Module):
    """torch's own attention, which counts samples second inside."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class TiedTokens(nn.Module):
    """A weight that an embedding and the head share."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places, self.hidden = nn.Embedding(5, 4), nn.Embedding(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.hidden(self.tokens(x) + self.places(torch.arange(4))))
        return F.linear(hidden.mean(1), self.tokens.weight)


def numbers(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, 4, 3, generator=generator).double(), torch.arange(count) % 2


def words(count: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 5, (count, 4), generator=generator), torch.arange(count) % 5


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], set[str]]] = {
    "tokens": (Tokens, numbers, {"token", "places", "scale", "shift", "table"}),
    "functional": (Functional, numbers, {"weight", "bias", "gain", "offset"}),
    "attention": (
        Attending,
        numbers,
        {"attend.in_proj_weight", "attend.in_proj_bias", "attend.out_proj.weight", "attend.out_proj.bias"},
    ),
    "tied": (TiedTokens, words, {"tokens.weight", "places.weight"}),
}


@pytest.mark.parametrize("batch_size", [6, 4])
@pytest.mark.parametrize("name", CASES)
def test_the_gauss_newton_part_is_exact_without_the_general_way(name: str, batch_size: int) -> None:
    make, data, used = CASES[name]
    torch.manual_seed(0)
    model = make().double()
    problem = opened(model, data(), batch_size=batch_size)
    sums = Blocks(problem, WANTS).sums
    assert sums is not None
    assert not sums.fallback
    assert {known.removeprefix(USE) for known in sums.by_rule if known.startswith(USE)} == used
    dense = Dense(problem)
    for full in problem.parameters:
        found = sums.parameters[full].diagonal
        assert found is not None
        torch.testing.assert_close(found[0].flatten(), dense.ggn.diagonal()[dense.slices[full]], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_trace_with_the_remainder_is_that_of_the_dense_hessian(name: str) -> None:
    make, data, _ = CASES[name]
    torch.manual_seed(0)
    problem = sl.Problem(make().double(), data(), batch_size=4)
    found = sl.measure(problem, ["hessian_trace", "kappa_tau_sum"], seed=3)
    truth = float(Dense(problem).hessian.trace())
    trace = found["hessian_trace"]
    assert abs(trace.value - truth) <= 4.5 * trace.stderr + 1e-9 * abs(truth)


def test_a_parameter_whose_entries_mix_before_it_meets_samples_goes_the_general_way() -> None:
    class Direction(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
            self.direction = nn.Parameter(torch.tensor([0.3, -0.7]))

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embed(x).mean(1).tanh()) * self.direction.softmax(0)

    torch.manual_seed(0)
    problem = opened(Direction().double(), numbers())
    blocks = Blocks(problem)
    assert blocks.sums is not None
    assert blocks.sums.fallback == ("direction",)
    assert blocks.remainder.others.names == ["direction"]
    trace = blocks.network_trace()
    truth = float(Dense(problem).hessian.trace())
    assert abs(trace.value - truth) <= 4.5 * trace.stderr + 1e-9 * abs(truth)


class Biased(nn.Module):
    """Attention whose scores take a bias by heads and places, in a batch of its own: (1, heads, places, places)."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner, self.head = nn.Embedding(5, 2), nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1])
        bias = self.table((places[:, None] - places).clamp(-2, 2) + 2).permute(2, 0, 1)[None]
        bias = bias + x.new_zeros(1, 1, x.shape[1], x.shape[1])
        inner = self.inner(x).view(len(x), x.shape[1], 2, 4).transpose(1, 2)
        attended = (inner @ inner.mT + bias).softmax(-1) @ inner
        return self.head(attended.transpose(1, 2).flatten(2).mean(1))


def test_batches_of_as_few_samples_as_there_are_heads_are_read_like_the_others() -> None:
    """Of 200 samples the first stratum has two, which draws see as a batch."""
    torch.manual_seed(0)
    model, x, y = Biased().double(), torch.randn(200, 4, 4).double(), torch.arange(200) % 3
    problem = sl.Problem(model, (x, y), batch_size=50)
    report, dense = sl.measure(problem, ["hessian_trace"]), Dense(problem)
    trace = report["hessian_trace"]
    assert abs(trace.value - float(dense.hessian.trace())) <= 4 * trace.stderr
    for layer, own in report.per_layer["hessian_trace"].items():
        parts = [dense.slices[full] for full in dense.slices if full.startswith(layer)]
        expected = sum(float(dense.hessian[part, part].trace()) for part in parts)
        assert abs(own.value - expected) <= max(4 * own.stderr, 1e-9), layer
