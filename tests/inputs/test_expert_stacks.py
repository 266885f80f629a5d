"""Experts stacked in one tensor give what as many linear layers give, whichever way round they are stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.inputs.expert_stacks import stacking_order
from spiritlevel.inputs.weight_matrices import as_matrix, from_matrix
from spiritlevel.measures.reference.dense import Dense

EXPERTS, WIDTH, INNER = 3, 4, 5
MEASURES = ["hessian_trace", "rho_sum", "rho_max", "normalized_sharpness"]


class Stack(nn.Module):
    """Experts with a gate or without, (experts, outputs, inputs) as Mixtral has them, or inputs first as GPT-OSS."""

    def __init__(self, turned: bool, gated: bool) -> None:
        super().__init__()
        self.turned, self.gated = turned, gated
        there, back = ((2 if gated else 1) * INNER, WIDTH), (WIDTH, INNER)
        self.up_proj = nn.Parameter(torch.randn(EXPERTS, *(there[::-1] if turned else there)) / 2)
        self.down_proj = nn.Parameter(torch.randn(EXPERTS, *(back[::-1] if turned else back)) / 2)

    def matrix(self, parameter: Tensor, expert: int) -> Tensor:
        return parameter[expert].T if self.turned else parameter[expert]

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        return sum(  # type: ignore[return-value]
            shares[:, e, None] * self.through(x, self.matrix(self.up_proj, e), self.matrix(self.down_proj, e))
            for e in range(EXPERTS)
        )

    def through(self, x: Tensor, up: Tensor, down: Tensor) -> Tensor:
        inner = F.linear(x, up)
        if self.gated:
            gate, inner = inner.chunk(2, 1)
            inner = torch.relu(gate) * inner
        return F.linear(torch.relu(inner), down)


class Apart(Stack):
    """The same experts as linear layers."""

    def __init__(self, like: Stack) -> None:
        nn.Module.__init__(self)
        self.gated = like.gated
        self.up, self.down = nn.ModuleList(), nn.ModuleList()
        for layers, parameter in ((self.up, like.up_proj), (self.down, like.down_proj)):
            for expert in range(EXPERTS):
                matrix = like.matrix(parameter.detach(), expert)
                layer = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
                layer.weight = nn.Parameter(matrix.clone())
                layers.append(layer)

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        return sum(  # type: ignore[return-value]
            shares[:, e, None] * self.through(x, self.up[e].weight, self.down[e].weight)  # type: ignore[arg-type]
            for e in range(EXPERTS)
        )


class Mixture(nn.Module):
    def __init__(self, experts: nn.Module, gate: nn.Linear, head: nn.Linear) -> None:
        super().__init__()
        self.experts, self.gate, self.head = experts, gate, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x + self.experts(x, F.softmax(self.gate(x), 1)))


def pair(turned: bool, gated: bool) -> tuple[sl.Problem, sl.Problem]:
    torch.manual_seed(0)
    stack, gate, head = Stack(turned, gated), nn.Linear(WIDTH, EXPERTS), nn.Linear(WIDTH, 3)
    data = torch.randn(20, WIDTH).double(), torch.arange(20) % 3
    parts = [Mixture(experts, gate, head).double() for experts in (stack, Apart(stack))]
    first, second = (sl.Problem(part, data, parameters=["experts.*"]) for part in parts)
    return first, second


# Inputs first and no gate look like outputs first: a stack is then read as torch stores weights.
@pytest.mark.parametrize(("turned", "gated"), [(False, True), (False, False), (True, True)])
def test_rows_and_columns_are_those_of_as_many_linear_layers(turned: bool, gated: bool) -> None:
    stacked, apart = pair(turned, gated)
    found, expected = (sl.measure(problem, MEASURES, tolerance=0.5) for problem in (stacked, apart))
    for name in MEASURES:
        own, other = found[name], expected[name]
        assert own.status in ("ok", "budget_spent"), own.reason
        if "exact" in (own.how, other.how):
            assert own.value == pytest.approx(other.value, rel=1e-4 if name == "normalized_sharpness" else 1e-8), name
        elif own.how == other.how == "estimated":
            assert abs(own.value - other.value) <= 4 * (own.stderr**2 + other.stderr**2) ** 0.5, name
    dense = Dense(stacked)
    trace = float(dense.hessian.trace())
    assert abs(found["hessian_trace"].value - trace) <= 4 * found["hessian_trace"].stderr + 1e-9 * abs(trace)
    words = "inputs first" if turned else "outputs first"
    assert f"The weights of experts are read as those of experts stacked in one tensor, {words}." in found.header.notes
    for full in stacked.parameters:
        expert = stacked.chosen_parameters[full]
        matrix = as_matrix(stacked.model.experts, expert, expert)
        for number in range(EXPERTS):
            assert torch.equal(matrix[number, :, :, 0], stacked.model.experts.matrix(expert, number))  # type: ignore[union-attr, operator]
        assert torch.equal(from_matrix(stacked.model.experts, matrix, expert), expert)


def owner(*shapes: tuple[int, ...]) -> nn.Module:
    module = nn.Module()
    for number, shape in enumerate(shapes):
        module.register_parameter(f"p{number}", nn.Parameter(torch.zeros(shape)))
    module.__class__ = type("Own", (nn.Module,), {})
    return module


@pytest.mark.parametrize(
    ("shapes", "order"),
    [
        (((8, 4, 3), (8, 8, 3)), ""),  # kernels of convolutions written by hand
        (((1, 16, 8),), ""),  # positions
        (((1, 16, 8), (1, 8, 16)), ""),  # one expert is none
        (((4, 6, 8), (5, 8, 6)), ""),
        (((4, 12, 8), (4, 8, 6)), "outputs first"),
        (((4, 8, 12), (4, 6, 8)), "inputs first"),
        (((4, 6, 8), (4, 6, 8), (4, 8, 6)), "outputs first"),  # gate and up apart
    ],
)
def test_what_only_looks_like_experts_is_left_alone(shapes: Any, order: str) -> None:
    assert stacking_order(owner(*shapes)) == order
    assert stacking_order(nn.LSTM(3, 4)) == ""
