"""Vector-Jacobian products by the engine are those of torch's own function, and load nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from spiritlevel.inputs.torch_internals import backward

SCRIPT = """
import sys, torch
import spiritlevel as sl
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
sl.measure(model, (torch.randn(6, 3), torch.tensor([0, 1] * 3)), ["hessian_trace", "hessian_top_eigenvalue"])
print(sorted({name.partition(".")[0] for name in sys.modules} & {"sympy", "scipy"}))
"""


@pytest.mark.parametrize("engine", [True, False])
def test_products_are_torchs_own(monkeypatch: pytest.MonkeyPatch, engine: bool) -> None:
    if not engine:  # a torch that calls it otherwise
        monkeypatch.setattr(backward, "_run", None)
    a, b, unused = (torch.randn(3, requires_grad=True) for _ in range(3))
    middle = a * b
    edge = get_gradient_edge(middle)
    outputs, vector = middle.tanh(), torch.randn(3)
    expected = torch.autograd.grad(outputs, [a, b], vector, retain_graph=True)
    found = backward.vjp(outputs, [a, b, unused], vector, retain_graph=True, allow_unused=True)
    assert all(map(torch.equal, found, expected))
    assert found[2] is None
    assert torch.equal(backward.vjp(edge, [a], vector, retain_graph=True)[0], b * vector)
    filled = backward.vjp([outputs, edge], [unused], [vector, vector], retain_graph=True, materialize_grads=True)
    assert torch.equal(filled[0], torch.zeros(3))
    with pytest.raises(RuntimeError, match="shape"):  # not taken for the sum of what is too large
        backward.vjp(outputs, [a], torch.randn(2, 3), retain_graph=True)
    (slope,) = backward.vjp(outputs, [a], vector, create_graph=True)
    (bend,) = backward.vjp(slope, [a], torch.ones(3))
    t = (a * b).tanh()
    assert torch.allclose(bend, vector * b * b * -2 * t * (1 - t * t))


def test_a_measurement_loads_no_solver() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
