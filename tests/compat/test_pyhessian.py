"""One script written against PyHessian's documented calls, run beside PyHessian itself; the dense Hessian decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyhessian
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spiritlevel.compat.pyhessian import hessian as our_hessian
from spiritlevel.engine.problem import Problem
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import UsageError

# PyHessian leaves the gradient's graph in .grad and squares a matrix that autograd warns about.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _removed_eig(monkeypatch: pytest.MonkeyPatch) -> None:
    """Supply the function that torch has removed and PyHessian's density calls."""

    def eig(matrix: Tensor, eigenvectors: bool = False) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        return torch.stack([values, torch.zeros_like(values)], dim=1), vectors

    monkeypatch.setattr(torch, "eig", eig, raising=False)


def network(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), activation(), nn.Linear(6, 3))
    x, y = data()
    optimizer = torch.optim.Adam(model.parameters(), 2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.zero_grad()
    return model


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(26, 4, generator=generator)
    return x, (x @ torch.randn(4, 3, generator=generator)).argmax(1)


def script(hessian: Callable[..., Any], single: bool, activation: type[nn.Module] = nn.ReLU) -> dict[str, Any]:
    """What the README of PyHessian shows, with the class as the only thing that differs."""
    model, criterion = network(activation), nn.CrossEntropyLoss()
    inputs, targets = data()
    if single:
        hessian_comp = hessian(model, criterion, data=(inputs, targets), cuda=False)
    else:
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=8)  # the last batch is short
        hessian_comp = hessian(model, criterion, dataloader=loader, cuda=False)
    top_eigenvalues, top_eigenvector = hessian_comp.eigenvalues(maxIter=200, tol=1e-5, top_n=2)
    trace = hessian_comp.trace(maxIter=100)
    density_eigen, density_weight = hessian_comp.density(iter=20, n_v=2)
    return {
        "top": top_eigenvalues,
        "vectors": top_eigenvector,
        "trace": trace,
        "nodes": density_eigen,
        "weights": density_weight,
    }


def exact(activation: type[nn.Module] = nn.ReLU) -> Tensor:
    return Dense(Problem(network(activation).double(), data(), dtype="float64")).hessian


@pytest.mark.parametrize("single", [True, False], ids=["one batch", "data loader"])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_the_same_script_runs_with_either_and_the_dense_reference_is_on_our_side(
    single: bool, activation: type[nn.Module]
) -> None:
    torch.manual_seed(7)
    ours, theirs = script(our_hessian, single, activation), script(pyhessian.hessian, single, activation)
    dense = exact(activation)
    values, vectors = torch.linalg.eigh(dense)
    order = values.abs().argsort(descending=True)[:2]

    # The same shapes.
    assert len(ours["top"]) == len(theirs["top"]) == 2
    assert [[tuple(part.shape) for part in vector] for vector in ours["vectors"]] == [
        [tuple(part.shape) for part in vector] for vector in theirs["vectors"]
    ]
    assert all(isinstance(value, float) for value in [*ours["top"], *ours["trace"]])
    for name in ("nodes", "weights"):
        assert [len(row) for row in ours[name]] == [len(row) for row in theirs[name]] == [20, 20]

    # Our numbers are the dense ones; where the two differ, we are the nearer.
    wanted = values[order]
    assert np.abs(np.array(ours["top"]) - wanted.numpy()).max() < 1e-4 * float(wanted[0])
    for mine, other, value in zip(ours["top"], theirs["top"], wanted.tolist()):
        assert abs(mine - value) <= abs(other - value) + 1e-5 * abs(value)
    for vector, place in zip(ours["vectors"], order.tolist()):
        flat = torch.cat([part.reshape(-1) for part in vector]).double()
        assert float(flat.norm()) == pytest.approx(1.0, abs=1e-5)
        assert abs(float(flat @ vectors[:, place])) > 0.999
    trace = float(dense.trace())
    error = float(np.std(ours["trace"], ddof=1) / np.sqrt(len(ours["trace"]))) if len(ours["trace"]) > 1 else 0.0
    assert abs(np.mean(ours["trace"]) - trace) <= 5 * error + 1e-4 * trace
    if len(ours["trace"]) == 1:  # exact
        assert abs(ours["trace"][0] - trace) <= abs(np.mean(theirs["trace"]) - trace) + 1e-5 * trace
    else:  # two means of random draws: ours spread less
        assert np.std(ours["trace"]) < 0.7 * np.std(theirs["trace"])
    assert np.array(ours["weights"]).sum(1) == pytest.approx(np.ones(2), abs=1e-12)
    assert np.array(ours["nodes"]).max() == pytest.approx(float(values[-1]), rel=1e-4)


def test_density_at_full_order_is_the_spectrum_where_theirs_is_not() -> None:
    inputs, targets = data()
    order = len(torch.cat([p.reshape(-1) for p in network(nn.Tanh).parameters()]))
    nodes, _ = our_hessian(network(nn.Tanh), nn.CrossEntropyLoss(), data=(inputs, targets), cuda=False).density(
        iter=order, n_v=1
    )
    values = torch.linalg.eigvalsh(exact(nn.Tanh))
    assert np.sort(nodes[0]) == pytest.approx(values.numpy(), abs=2e-6 * float(values[-1]))
    torch.manual_seed(3)
    theirs, _ = pyhessian.hessian(network(nn.Tanh), nn.CrossEntropyLoss(), data=(inputs, targets), cuda=False).density(
        iter=order, n_v=1
    )
    gap = np.abs(np.sort(theirs[0]) - values.numpy()).max() / float(values[-1])
    assert gap > 2e-6  # one pass of Gram–Schmidt, and coefficients taken before it


def test_exact_trace_is_a_single_number_and_a_sampled_one_keeps_its_draws() -> None:
    inputs, targets = data()
    flat = our_hessian(network(nn.ReLU), nn.CrossEntropyLoss(), data=(inputs, targets), cuda=False).trace()
    assert len(flat) == 1
    assert flat[0] == pytest.approx(float(exact(nn.ReLU).trace()), rel=1e-5)
    curved = our_hessian(network(nn.Tanh), nn.CrossEntropyLoss(), data=(inputs, targets), cuda=False)
    draws = curved.trace(maxIter=24, tol=1e-6)
    assert len(draws) == 24
    loose = curved.trace(maxIter=100, tol=0.5)
    assert len(loose) == 8  # the minimum; the error decides, not how little the mean moved
    assert loose == draws[:8]


def test_negative_curvature_is_named_by_magnitude_or_by_sign() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()

    def saddle(outputs: Tensor, targets: Tensor) -> Tensor:
        return (targets[:, :1] * outputs.square()).mean()

    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    comp = our_hessian(model, saddle, data=(inputs, torch.tensor([[-3.0], [1.0]], dtype=torch.float64)), cuda=False)
    assert comp.eigenvalues()[0] == pytest.approx([-3.0], abs=1e-6)
    assert comp.eigenvalues(which="largest")[0] == pytest.approx([1.0], abs=1e-6)
    assert comp.found is not None
    assert comp.found.status == "ok"


@pytest.mark.parametrize(
    ("criterion", "targets"),
    [
        (nn.MSELoss(), torch.randn(26, 3)),
        (nn.SmoothL1Loss(), 3 * torch.randn(26, 3)),
        (nn.BCEWithLogitsLoss(), torch.rand(26, 3)),
        (lambda outputs, targets: ((outputs - targets) ** 4).mean(), torch.randn(26, 3)),
    ],
    ids=["mse", "smooth l1", "bce", "a function"],
)
def test_other_criteria_give_the_hessian_of_their_mean(criterion: Any, targets: Tensor) -> None:
    model, (inputs, _) = network(nn.Tanh), data()
    comp = our_hessian(model, criterion, data=(inputs, targets), cuda=False)
    found, _ = comp.eigenvalues(tol=1e-5)
    wide = network(nn.Tanh).double()
    names = [name for name, _ in wide.named_parameters()]

    def loss(*tensors: Tensor) -> Tensor:
        return criterion(torch.func.functional_call(wide, dict(zip(names, tensors)), inputs.double()), targets.double())

    rows = torch.autograd.functional.hessian(loss, tuple(parameter.detach() for parameter in wide.parameters()))
    sizes = [parameter.numel() for parameter in wide.parameters()]
    matrix = torch.cat(
        [torch.cat([part.reshape(size, -1) for part in row], dim=1) for row, size in zip(rows, sizes)], dim=0
    )
    values = torch.linalg.eigvalsh(matrix)
    assert found[0] == pytest.approx(float(values[values.abs().argmax()]), rel=1e-4)


def test_model_is_left_alone_and_misuse_is_refused() -> None:
    model, (inputs, targets) = network(), data()
    model.train()
    comp = our_hessian(model, nn.CrossEntropyLoss(), data=(inputs, targets), cuda=False)
    comp.eigenvalues()
    comp.trace()
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    with pytest.raises(UsageError, match="either data="):
        our_hessian(model, nn.CrossEntropyLoss(), cuda=False)
    with pytest.raises(UsageError, match="sum"):
        our_hessian(model, nn.CrossEntropyLoss(reduction="sum"), data=(inputs, targets), cuda=False)
    total = our_hessian(model, lambda outputs, labels: outputs.square().sum(), data=(inputs, targets), cuda=False)
    with pytest.raises(UsageError, match="averages over samples"):
        total.eigenvalues()
    with pytest.warns(RuntimeWarning, match="did not converge"):
        comp.eigenvalues(maxIter=2, tol=1e-12)
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="no CUDA device"):
            our_hessian(model, nn.CrossEntropyLoss(), data=(inputs, targets))
