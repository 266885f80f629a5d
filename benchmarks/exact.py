"""Exact answers in float64 by plain autograd, sharing nothing with what is measured."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn

from benchmarks.material import Data


def doubled(model: nn.Module, data: Data) -> tuple[nn.Module, Data]:
    """Return a copy in float64."""
    return copy.deepcopy(model).double(), (data[0].double(), data[1])


def diagonals(model: nn.Module, data: Data, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """Return (diagonal of the Hessian (P,), each sample's trace (N,)) of a piecewise-linear network.

    Its diagonal is the Gauss–Newton matrix's, Σ_c p_c J_c² - (Σ_c p_c J_c)² from each sample's Jacobian.
    """
    model, (x, y) = doubled(model, data)
    chunk = chunk or (64 if x.is_cuda else 4)
    parameters = dict(model.named_parameters())
    buffers = dict(model.named_buffers())

    def outputs(chosen: dict[str, Tensor], sample: Tensor) -> Tensor:
        return torch.func.functional_call(model, (chosen, buffers), (sample[None],))[0]

    jacobian = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, 0))
    detached = {name: tensor.detach() for name, tensor in parameters.items()}
    diagonal = torch.zeros(sum(t.numel() for t in parameters.values()), dtype=torch.float64, device=x.device)
    traces = []
    for start in range(0, len(y), chunk):
        part = x[start : start + chunk]
        with torch.no_grad():
            p = F.softmax(model(part), dim=1)
            rows = jacobian(detached, part)
            j = torch.cat([rows[name].flatten(2) for name in parameters], dim=2)  # (b, C, P)
            own = torch.einsum("bc,bcp->bp", p, j.square()) - torch.einsum("bc,bcp->bp", p, j).square()
        diagonal += own.sum(0)
        traces.append(own.sum(1))
    return (diagonal / len(y)).cpu(), torch.cat(traces).cpu()


class PlainHessian:
    """Products with the Hessian of the mean loss over some parameters: a gradient, differentiated again."""

    def __init__(self, model: nn.Module, data: Data, names: list[str] | None = None) -> None:
        model, (x, y) = doubled(model, data)
        every = dict(model.named_parameters())
        self.tensors = [every[name] for name in (names or list(every))]
        self.gradient = torch.autograd.grad(F.cross_entropy(model(x), y), self.tensors, create_graph=True)
        self.size = sum(tensor.numel() for tensor in self.tensors)

    def product(self, vector: Tensor) -> Tensor:
        """Return H v for a vector (P,)."""
        like = self.tensors[0]
        parts = vector.to(like).split([tensor.numel() for tensor in self.tensors])
        shaped = [part.reshape(tensor.shape) for part, tensor in zip(parts, self.tensors)]
        found = torch.autograd.grad(self.gradient, self.tensors, shaped, retain_graph=True)
        return torch.cat([part.reshape(-1) for part in found])

    def top(self, k: int = 1, which: str = "LA") -> np.ndarray:
        """Return the k largest eigenvalues, descending, to 1e-8."""

        def matvec(vector: np.ndarray) -> np.ndarray:
            return self.product(torch.from_numpy(np.asarray(vector, dtype=np.float64)).reshape(-1)).cpu().numpy()

        operator = LinearOperator((self.size, self.size), matvec=matvec, dtype=np.float64)
        values = eigsh(operator, k=k, which=which, tol=1e-8, return_eigenvectors=False)
        return np.sort(values)[::-1]

    def residual(self, vectors: Tensor) -> float:
        """Return the largest true residual ‖Hv - λv‖ of unit vectors (P, k), λ their Rayleigh quotients."""
        worst = 0.0
        for column in vectors.T:
            v = column.double()
            v = v / v.norm()
            image = self.product(v).to(v)
            worst = max(worst, float((image - (v @ image) * v).norm()))
        return worst

    def dense(self) -> Tensor:
        """Return the whole matrix; for small networks."""
        rows = torch.stack([self.product(row).cpu() for row in torch.eye(self.size, dtype=torch.float64)])
        return (rows + rows.T) / 2


def distance(nodes: Tensor, weights: Tensor, eigenvalues: Tensor) -> float:
    """Return the Wasserstein-1 distance of weighted nodes from a spectrum, relative to the spectrum's range.

    It is the area between the two cumulative shares, which weights of either sign have.
    """
    nodes, weights, eigenvalues = nodes.double(), weights.double() / weights.double().sum(), eigenvalues.double()
    places, order = torch.cat([nodes, eigenvalues]).sort()
    steps = torch.cat([weights, torch.full_like(eigenvalues, -1 / len(eigenvalues))])[order]
    area = (steps.cumsum(0)[:-1].abs() * places.diff()).sum()
    return float(area / (eigenvalues.max() - eigenvalues.min()))


def gradient_pass(model: nn.Module, data: Data) -> Callable[[], None]:
    """Return the unit of cost: the gradient of the mean loss over the data, batch by batch."""
    x, y = data
    batch_size = 8192 if x.is_cuda else 256  # where each is quick
    parameters = [tensor for tensor in model.parameters() if tensor.requires_grad]

    def run() -> None:
        for start in range(0, len(y), batch_size):
            part = slice(start, start + batch_size)
            torch.autograd.grad(F.cross_entropy(model(x[part]), y[part], reduction="sum"), parameters)

    return run
