"""Losses as people write them with torch, each against a Hessian of torch's own loss, written out in float64."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl

TOKENS = 6


def dense_hessian(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> Tensor:
    """The second derivative of a number that torch alone computes, in all parameters."""
    names, tensors = zip(*((name, p.detach()) for name, p in model.named_parameters()))

    def of(vector: Tensor) -> Tensor:
        parts = vector.split([t.numel() for t in tensors])
        own = {name: part.view(t.shape) for name, part, t in zip(names, parts, tensors)}
        return torch.func.functional_call(_Loss(model, loss), {f"model.{name}": t for name, t in own.items()})

    vector = torch.cat([t.reshape(-1) for t in tensors])
    return torch.autograd.functional.hessian(of, vector)  # type: ignore[no-any-return, no-untyped-call]


class _Loss(nn.Module):
    def __init__(self, model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self) -> Tensor:
        return self.loss(self.model)


class Language(nn.Module):
    """Scores for every token, from those up to it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.hidden, self.out = nn.Embedding(TOKENS, 3), nn.Linear(3, 3), nn.Linear(3, TOKENS)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.out(torch.tanh(self.hidden(self.embedding(input_ids).cumsum(1))))


class Segmenter(nn.Module):
    """Scores of three classes for every pixel, down and up again."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, self.skip = nn.Conv2d(1, 2, 2, 2), nn.ConvTranspose2d(2, 3, 2, 2), nn.Conv2d(1, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.up(torch.relu(self.down(x))) + self.skip(x)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape: int, high: int = TOKENS, seed: int = 1) -> Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed))


IDS = tokens(8, 5)
PADDED = torch.ones_like(IDS)
PADDED[:3, 3:] = 0
IGNORED = IDS.clone()
IGNORED[2:5, 1:3] = -100
MASKED = IDS.where(tokens(8, 5, high=3, seed=2) == 0, -100)
PIXELS = tokens(6, 4, 4, high=3)
PIXELS[0, :2] = -100
PIXELS[3, 1, 1] = -100
VECTORS = drawn(12, 4)
SEVERAL = (drawn(12, 3, seed=3) > 0).double()


def shifted(model: nn.Module, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(IDS)[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def mlp(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, outputs))


def gaussian(model: nn.Module) -> Tensor:
    mean, log_variance = model(VECTORS).chunk(2, 1)
    return F.gaussian_nll_loss(mean, VECTORS[:, :1].sin(), log_variance.exp())


CASES: dict[str, tuple[Callable[[], nn.Module], Any, Any, Callable[[nn.Module], Tensor]]] = {
    "next token": (Language, {"input_ids": IDS, "labels": IDS}, "next_token", lambda m: shifted(m, IDS)),
    "next token, some labels ignored": (
        Language, {"input_ids": IDS, "labels": IGNORED}, "next_token", lambda m: shifted(m, IGNORED),
    ),
    "next token, padded": (
        Language,
        {"input_ids": IDS, "attention_mask": PADDED, "labels": IDS},
        "next_token",
        lambda m: shifted(m, IDS.where(PADDED == 1, -100)),
    ),
    "masked token": (
        Language,
        {"input_ids": IDS, "labels": MASKED},
        "masked_token",
        lambda m: F.cross_entropy(m(IDS).flatten(0, 1), MASKED.flatten()),
    ),
    "pixels, some ignored": (
        Segmenter,
        (drawn(6, 1, 4, 4), PIXELS),
        "cross_entropy",
        lambda m: F.cross_entropy(m(drawn(6, 1, 4, 4)), PIXELS),
    ),
    "several labels": (
        lambda: mlp(3),
        (VECTORS, SEVERAL),
        "binary_cross_entropy",
        lambda m: F.binary_cross_entropy_with_logits(m(VECTORS), SEVERAL),
    ),
    "gaussian": (lambda: mlp(2), (VECTORS, VECTORS[:, 0].sin()), "gaussian_nll", gaussian),
    "regression": (
        lambda: mlp(3), (VECTORS, SEVERAL), "mean_squared_error", lambda m: F.mse_loss(m(VECTORS), SEVERAL),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_named_loss_has_the_curvature_of_torchs(name: str) -> None:
    make, data, loss, torchs = CASES[name]
    torch.manual_seed(0)
    model = make().double()
    hessian = dense_hessian(model, torchs)
    problem = sl.Problem(model, data, loss)
    report = sl.measure(problem, ["hessian_trace", "hessian_top_eigenvalue"])
    with torch.no_grad():
        assert report.loss == pytest.approx(float(torchs(model)), rel=1e-10)
    trace, top = report["hessian_trace"], report["hessian_top_eigenvalue"]
    exact = float(hessian.trace())
    assert abs(trace.value - exact) <= 4 * trace.stderr + 1e-9 * abs(exact)
    assert trace.stderr <= 0.1 * abs(exact) or trace.status == "budget_spent"
    assert top.value == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=1e-2)
    block = drawn(problem.size, 2, seed=7)
    torch.testing.assert_close(problem.hessian @ block, hessian @ block, rtol=1e-7, atol=1e-9)


def test_every_test_that_the_documentation_names_exists() -> None:
    root = Path(__file__).parents[2]
    table = (root / "docs" / "verified.md").read_text(encoding="utf-8").split("## Which test holds what", 1)[1]
    named = set(re.findall(r"`(test_\w+)`", table.split("\n## ")[0]))
    assert len(named) >= 20
    there = {
        name
        for file in (root / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), flags=re.M)
    }
    assert sorted(named - there) == []
