"""The almost-everywhere Hessian of the mean loss in float64, by differentiating twice, and measures written from it.

Nothing of the instrument is imported here: agreement means something.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor, nn

from tests.attack.data import Total


def honest_copy(model: nn.Module) -> nn.Module:
    """Return the network in float64 as the function its forward computes: nothing acts on gradients alone."""
    model = copy.deepcopy(model).double().cpu()
    for module in model.modules():
        if hasattr(module, "honest"):
            module.honest = True
        if isinstance(module, nn.utils.parametrizations._WeightNorm):
            module.forward = functools.partial(_weight_norm, module.dim)  # torch's own is wrong when derived twice
        module._backward_hooks.clear()
        module._backward_pre_hooks.clear()
    return model


def _weight_norm(dim: int, length: Tensor, direction: Tensor) -> Tensor:
    others = [d for d in range(direction.ndim) if d != dim % direction.ndim]
    return direction * (length / direction.square().sum(others, keepdim=True).sqrt())


def in_plain_surroundings(method: Callable[..., Any]) -> Callable[..., Any]:
    """Compute with gradients and without autocast, whatever surrounds the measurement."""

    @functools.wraps(method)
    def plain(*arguments: Any) -> Any:
        with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
            return method(*arguments)

    return plain


class Truth:
    """A small problem written out in full."""

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, total: Total, sizes: Sequence[int], chosen: list[str], train: bool
    ) -> None:
        self.model = honest_copy(model).train(train)
        self.x, self.y, self.total, self.sizes, self.names = x, y, total, list(sizes), chosen
        self.x = x.double() if x.is_floating_point() else x
        self.y = y.double() if y.is_floating_point() else y
        own = dict(self.model.named_parameters())
        self.shapes = {name: own[name].shape for name in chosen}
        self.theta = torch.cat([own[name].detach().reshape(-1) for name in chosen])

    @cached_property
    def slices(self) -> dict[str, slice]:
        ends = np.cumsum([0, *(shape.numel() for shape in self.shapes.values())]).tolist()
        return {name: slice(a, b) for name, a, b in zip(self.names, ends, ends[1:])}

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        state = {n: b.clone() for n, b in self.model.named_buffers()}
        # Parameters that may not move are copied too: a forward may write into its own.
        state.update({n: p.detach().clone() for n, p in self.model.named_parameters()})
        state.update({n: theta[part].reshape(self.shapes[n]) for n, part in self.slices.items()})
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            found: Any = torch.func.functional_call(self.model, state, (x.clone(),))
        if isinstance(found, Mapping):
            return found["logits"]
        return found if isinstance(found, Tensor) else found.logits

    def _parts(self, theta: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        batches = zip(self.x.split(self.sizes), self.y.split(self.sizes))
        return [self.total(self.outputs(theta, x), y) for x, y in batches]

    def mean_loss(self, theta: Tensor) -> Tensor:
        parts = self._parts(theta)
        return sum(p[0] for p in parts) / sum(p[1] for p in parts)

    @in_plain_surroundings
    def _twice(self, function: Any) -> Tensor:
        theta = self.theta.clone().requires_grad_()
        loss = function(theta)
        zero = torch.zeros(len(theta), len(theta), dtype=torch.float64)
        if not loss.requires_grad:
            return zero
        (first,) = torch.autograd.grad(loss, theta, create_graph=True, allow_unused=True, materialize_grads=True)
        if not first.requires_grad:
            return zero
        options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        return torch.stack([torch.autograd.grad(entry, theta, **options)[0] for entry in first])

    @cached_property
    @in_plain_surroundings
    def loss(self) -> float:
        return float(self.mean_loss(self.theta))

    @cached_property
    @in_plain_surroundings
    def gradient(self) -> Tensor:
        theta = self.theta.clone().requires_grad_()
        loss = self.mean_loss(theta)
        if not loss.requires_grad:
            return torch.zeros_like(self.theta)
        return torch.autograd.grad(loss, theta, allow_unused=True, materialize_grads=True)[0]

    @cached_property
    def hessian(self) -> Tensor:
        found = self._twice(self.mean_loss)
        assert float((found - found.t()).norm()) <= 1e-9 * float(found.norm()) + 1e-14, "an operation derives wrongly"
        return found

    def sample_trace(self, index: int) -> float:
        return float(self._twice(lambda theta: torch.cat([p[2] for p in self._parts(theta)])[index]).trace())

    @cached_property
    @in_plain_surroundings
    def ggn(self) -> Tensor:
        """The Gauss–Newton matrix: outputs' derivatives around the loss's second derivative in the outputs."""
        matrix = torch.zeros(len(self.theta), len(self.theta), dtype=torch.float64)
        weight = 0.0
        for x, y in zip(self.x.split(self.sizes), self.y.split(self.sizes)):
            theta = self.theta.clone().requires_grad_()
            f = self.outputs(theta, x)
            options = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
            rows = [torch.autograd.grad(entry, theta, **options)[0] for entry in f.reshape(-1)]
            jacobian = torch.stack(rows).reshape(len(x), -1, len(theta))
            leaf = f.detach().requires_grad_()
            total, own, _ = self.total(leaf, y)
            weight += float(own)
            (slope,) = torch.autograd.grad(total, leaf, create_graph=True)
            # A sample's loss depends on its own outputs alone: one product gives a row for every sample.
            width = jacobian.shape[1]
            flat = slope.reshape(len(x), width)
            curve = torch.stack(
                [torch.autograd.grad(flat[:, c].sum(), leaf, **options)[0].reshape(len(x), width) for c in range(width)]
            )
            matrix += torch.einsum("nci,cnk,nkj->ij", jacobian, curve, jacobian)
        return matrix / weight

    # --- measures ------------------------------------------------------------------------------------------------

    def block(self, name: str) -> Tensor:
        return self.hessian[self.slices[name], self.slices[name]]

    @property
    def weights(self) -> list[str]:
        """Weight matrices in the order of the modules that own them; a tied one belongs to its first owner."""
        return [name for name in self.names if len(self.shapes[name]) >= 2]

    def matrix_of(self, name: str) -> Tensor:
        """Positions of a weight's entries in its own flat vector: (groups, neurons, inputs, kernel)."""
        shape = self.shapes[name]
        index = torch.arange(shape.numel()).reshape(shape)
        module = self.model.get_submodule(name.rpartition(".")[0])
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            return index.t()[None, :, :, None]
        groups = getattr(module, "groups", 1) if isinstance(module, (nn.Conv1d, nn.Conv2d)) else 1
        if isinstance(module, (nn.Conv1d, nn.Conv2d)):
            return index.reshape(groups, shape[0] // groups, shape[1], -1)
        return index.reshape(1, shape[0], -1, 1)

    def tensor(self, name: str) -> Tensor:
        return self.theta[self.slices[name]]

    def kappa_tau_sum(self) -> float:
        return sum(float(self.tensor(n).square().sum() * self.block(n).trace()) for n in self.weights)

    def kappa_sum(self) -> float:
        return sum(
            float(self.tensor(n).square().sum() * torch.linalg.eigvalsh(self.block(n))[-1]) for n in self.weights
        )

    def rho_sum(self) -> float:
        total = 0.0
        for name in self.weights:
            w, h = self.tensor(name), self.block(name)
            for row in self.matrix_of(name).flatten(2).flatten(0, 1):
                total += float(w[row] @ h[row][:, row] @ w[row])
        return total

    def relative_flatness(self) -> float:
        name = self.weights[-1]
        w, h, total = self.tensor(name), self.block(name), 0.0
        for group in self.matrix_of(name).flatten(2):
            gram = w[group] @ w[group].t()
            for s, row in enumerate(group):
                for t, other in enumerate(group):
                    total += float(gram[s, t] * h[row, other].sum())
        return total

    def matrix_normalized_sharpness(self) -> float:
        diagonal = self.hessian.diagonal()
        parts = [self.theta[p].square().sum() * diagonal[p].clamp(min=0).sum() for p in self.slices.values()]
        return sum(math.sqrt(float(part)) for part in parts)

    def normalized_sharpness(self) -> float | None:
        """None where the minimiser does not get there: a minimum at infinity."""
        total = 0.0
        for name in self.weights:
            index = self.matrix_of(name)
            h, w = self.block(name).diagonal().clamp(min=0), self.tensor(name).square()
            for group in index:
                found = _best_scales(h[group].sum(-1).numpy(), w[group].sum(-1).numpy())
                if found is None:
                    return None
                total += found
        return total


def _best_scales(h: np.ndarray, w2: np.ndarray) -> float | None:
    rows, columns = (h.sum(1) > 0) & (w2.sum(1) > 0), (h.sum(0) > 0) & (w2.sum(0) > 0)
    if not (rows.all() and columns.all()):
        if not (rows.any() and columns.any()):
            return 0.0
        return _best_scales(h[rows][:, columns], w2[rows][:, columns])
    if (h < 1e-9 * h.max()).any():
        return None
    m, scale = len(h), math.sqrt(h.sum() * w2.sum())

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        grown = np.exp(np.clip(z[:m, None] + z[None, m:], -200, 200))
        a, b = h * grown / scale, w2 / grown / scale
        return float((a + b).sum()), np.concatenate([(a - b).sum(1), (a - b).sum(0)])

    start = np.full(sum(h.shape), 0.25 * math.log(w2.sum() / h.sum()))
    found = minimize(objective, start, jac=True, method="BFGS", options={"gtol": 1e-11, "maxiter": 2000})
    return float(found.fun) * scale if np.abs(found.jac).max() < 1e-7 and np.abs(found.x).max() < 20 else None
