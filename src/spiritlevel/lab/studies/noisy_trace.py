"""Per-sample Hessian traces as a stopping rule leaves them: random signs until the running mean stands still."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

Draw = Callable[[Tensor, torch.Generator], Tensor]


def stopped_traces(
    draw: Draw, count: int, *, maximum: int = 100, tolerance: float = 1e-3, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Return (estimates, probes used) for ``count`` samples, each stopped on its own.

    ``draw(which, generator)`` returns one vᵀHv for each sample listed. A sample stops when its running mean moved by
    less than ``tolerance`` relative to the mean before, at the earliest after two probes: PyHessian's rule with its
    defaults, which tests whether the mean moved and not whether it is right.
    """
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros(count, dtype=torch.float64)
    mean = torch.zeros(count, dtype=torch.float64)
    used = torch.zeros(count, dtype=torch.int64)
    active = torch.arange(count)
    for probe in range(1, maximum + 1):
        total[active] += draw(active, generator).double()
        fresh = total[active] / probe
        moved = (fresh - mean[active]).abs() / (mean[active].abs() + 1e-6)
        mean[active] = fresh
        used[active] = probe
        active = active[moved >= tolerance]
        if len(active) == 0:
            break
    return mean, used


def affine_draw(inputs: Tensor, probabilities: Tensor) -> Draw:
    """Return vᵀHv of an affine classifier's own samples: H = x̃x̃ᵀ ⊗ (diag(p) − ppᵀ) with x̃ = (x, 1)."""
    extended = torch.cat([inputs.double(), torch.ones(len(inputs), 1, dtype=torch.float64)], dim=1)

    def draw(which: Tensor, generator: torch.Generator) -> Tensor:
        classes = probabilities.shape[1]
        forms = []
        for part in which.split(256):
            signs = torch.randint(2, (len(part), classes, extended.shape[1]), generator=generator).mul_(2).sub_(1)
            moved = (signs * extended[part, None, :]).sum(dim=2)  # J v: (samples, classes)
            p = probabilities[part].double()
            forms.append((p * moved.square()).sum(1) - (p * moved).sum(1).square())
        return torch.cat(forms)

    return draw


def trained_draw(model: nn.Module, inputs: Tensor, labels: Tensor) -> Draw:
    """Return vᵀHv of each sample's own cross-entropy for any network, by a forward derivative of its gradient."""
    from torch.func import functional_call, grad, jvp, vmap

    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    first = next(iter(parameters.values()))
    inputs, labels = inputs.to(first), labels.to(first.device)

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(model, values, (x[None],))
        return torch.nn.functional.cross_entropy(outputs, y[None])

    def form(direction: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        product: dict[str, Tensor] = jvp(lambda values: grad(loss)(values, x, y), (parameters,), (direction,))[1]
        return torch.stack([(direction[name] * product[name]).sum() for name in direction]).sum()

    def draw(which: Tensor, generator: torch.Generator) -> Tensor:
        signs = {
            name: torch.randint(2, (len(which), *tensor.shape), generator=generator).mul_(2).sub_(1).to(first)
            for name, tensor in parameters.items()
        }
        chosen = which.to(first.device)
        return vmap(form)(signs, inputs[chosen], labels[chosen]).detach().cpu()

    return draw
