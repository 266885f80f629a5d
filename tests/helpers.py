"""Tiny problems from networks: a few samples, float64 unless a test says otherwise, and what a pass sees of them.

A case is built from a seed of its own, so two calls give the same network and data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.engine.passes.curvature import gauss_newton_columns
from spiritlevel.engine.passes.graph import Graph, look_at
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.open_problem import OpenProblem

SAMPLES = 7


@dataclass(frozen=True)
class Case:
    """A network and the shape of its inputs; labels are drawn among ``classes``."""

    build: Callable[[], nn.Module]
    shape: tuple[int, ...] = (4,)
    classes: int = 3
    tokens: int = 0  # inputs are integers below this, where it is not 0
    smooth: frozenset[str] = field(default_factory=frozenset)  # layers that are not exact

    def model(self, seed: int = 0) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1000 + seed)
            model = self.build().double()
            _move_away_from_initial_values(model)
        return model.eval()

    def data(self, count: int = SAMPLES, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(2000 + seed)
        if self.tokens:
            inputs = torch.randint(0, self.tokens, (count, *self.shape), generator=generator)
        else:
            inputs = torch.randn((count, *self.shape), generator=generator, dtype=torch.float64)
        return inputs, torch.randint(0, self.classes, (count,), generator=generator)

    def problem(self, loss: Any = "cross_entropy", *, count: int = SAMPLES, seed: int = 0, **options: Any) -> Problem:
        return Problem(self.model(seed), self.data(count, seed), loss, **{"batch_size": 4, **options})

    def opened(self, loss: Any = "cross_entropy", **options: Any) -> OpenProblem:
        """The same while it is measured: what passes and operators take."""
        return OpenProblem(self.problem(loss, **options))

    def trained(self, steps: int = 60, rate: float = 0.03, count: int = 24, seed: int = 0) -> tuple[nn.Module, Any]:
        """A network after some steps of Adam on data that a random teacher labelled, so that it can be learned."""
        model, (inputs, _) = self.model(seed), self.data(count, seed)
        with torch.no_grad():
            scores = self.model(seed + 77)(inputs)
            labels = (scores - scores.mean(0)).argmax(-1)
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), rate)
        for _ in range(steps):
            optimizer.zero_grad()
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
        optimizer.zero_grad()
        return model.eval(), (inputs, labels)


def opened(*arguments: Any, **options: Any) -> OpenProblem:
    """Make a problem and begin to measure it."""
    return OpenProblem(Problem(*arguments, **options))


def _move_away_from_initial_values(model: nn.Module) -> None:
    """Ones and zeros hide mistakes: normalisations get weights and statistics of their own."""
    for module in model.modules():
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)):
            if getattr(module, "weight", None) is not None:
                nn.init.uniform_(module.weight, 0.5, 1.5)
            if getattr(module, "bias", None) is not None:
                nn.init.normal_(module.bias, std=0.3)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2.0)


def recorded(problem: OpenProblem) -> tuple[Tensor, Recorder, Graph, Tensor]:
    """Return the first batch's outputs, calls, graph and columns; the problem's session must be open."""
    batch = next(iter(problem.batches()))
    with Recorder(problem) as recorder:
        outputs = problem.outputs(batch.content)
    graph = look_at(outputs)
    recorder.stop_after_poolings(graph)
    return outputs, recorder, graph, gauss_newton_columns(problem, batch, outputs.detach()).columns
