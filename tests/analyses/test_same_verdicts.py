"""What follows gives the verdicts that measuring every copy gives, on the demo's pair of networks and three others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.analyses.changed_workbench import Rescaler
from spiritlevel.lab import datasets, nets, training

Pair = tuple[dict[str, sl.Problem], int]
SAMPLES = 120


def trained(name: str, seed: int, size: int, steps: int, **options: object) -> nn.Module:
    data = datasets.load("digits")
    model = nets.build(name, seed=seed, **options) if options else nets.build(name, seed=seed)
    training.train(model, data, steps=steps, batch_size=size, lr=0.1, seed=seed)
    return model


def problems(models: dict[str, nn.Module]) -> dict[str, sl.Problem]:
    return {k: sl.Problem(model, datasets.load("digits"), samples=SAMPLES) for k, model in models.items()}


def of_the_demo() -> dict[str, sl.Problem]:
    return problems(
        {"small batch": trained("digits_mlp", 0, 16, 10_000), "large batch": trained("digits_mlp", 0, 256, 10_000)}
    )


def two_seeds() -> dict[str, sl.Problem]:
    return problems({"first": trained("digits_mlp", 1, 32, 1500), "second": trained("digits_mlp", 2, 32, 400)})


def convolutional() -> dict[str, sl.Problem]:
    return problems({"first": trained("digits_cnn", 0, 32, 300), "second": trained("digits_cnn", 1, 128, 300)})


def normalised() -> dict[str, sl.Problem]:
    models = {}
    x, y = datasets.load("digits").tensors
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, 20),
            nn.BatchNorm1d(20),
            nn.ReLU(),
            nn.Linear(20, 16),
            nn.ReLU(),
            nn.Linear(16, 10),
        )
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1 if seed else 0.02)
        for step in range(400):
            some = slice(step * 32 % 1400, step * 32 % 1400 + 32)
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(x[some]), y[some]).backward()
            optimiser.step()
        models[f"seed {seed}"] = model.eval()
    return problems(models)


PAIRS = {"demo": of_the_demo, "two seeds": two_seeds, "convolutional": convolutional, "normalised": normalised}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_what_follows_gives_the_verdicts_of_measuring_every_copy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make: Callable[[], dict[str, sl.Problem]] = PAIRS[name]
    pair = make()
    quick, audited = sl.compare(pair), sl.audit(next(iter(pair.values())))
    monkeypatch.setattr(Rescaler, "follows", property(lambda self: False))
    slow, measured = sl.compare(pair, dtype="float64"), sl.audit(next(iter(pair.values())), dtype="float64")
    for row in slow.rows.values():
        found = quick.rows[row.name]
        assert (found.flattest, found.holding.kind) == (row.flattest, row.holding.kind), row.name
        assert found.holding.changed_by == row.holding.changed_by
        if row.holding.reversal is not None:
            assert found.holding.reversal is not None
            assert found.holding.reversal.kind == row.holding.reversal.kind
            # Both are upper limits, found by the same search: neither may be much worse.
            assert found.holding.reversal.factor == pytest.approx(row.holding.reversal.factor, rel=0.03), row.name
    for measure, symmetries in measured.verdicts.items():
        for symmetry, verdict in symmetries.items():
            mine = audited.verdicts[measure][symmetry]
            assert mine.verdict == verdict.verdict, (measure, symmetry)
            if verdict.factor is not None:
                assert mine.factor == pytest.approx(verdict.factor, rel=0.03), (measure, symmetry)
