"""What is true of a trained network: its dense float64 Hessian by differentiating twice, and measures written from it.

The mean loss is written with torch alone (:meth:`ModernNetwork.total_loss`); of the instrument only the formulas of
``spiritlevel.reference`` are used, on this Hessian, and its mean loss must agree with the one written here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from spiritlevel.measures.reference import Dense, curvature, margins, normalized
from tests.modern.network import POOL, Batch, Trained, count_in, mapped, outputs_of

CHUNK = 256  # samples whose graph is held at one time
AT_ONCE = 1024  # rows of the Hessian times samples, found at one time
SAMPLED = 3  # samples whose own trace is written out

FORMULAS: dict[str, Callable[[Dense], float]] = {
    "hessian_trace": curvature.hessian_trace,
    "hessian_top_eigenvalue": curvature.hessian_top_eigenvalue,
    "normalized_sharpness": normalized.normalized_sharpness,
    "kappa_tau_sum": lambda dense: curvature.kappa(dense, "sum", trace=True),
    "rho_sum": lambda dense: curvature.rho(dense, "sum"),
    "output_margin": margins.output_margin,
}


@dataclass(frozen=True)
class Truth:
    """Numbers that are right, for one network on its first samples."""

    parameters: int
    loss: float
    values: dict[str, float]  # of measures; those that have no meaning for the outputs are missing
    layers: dict[str, float]  # traces
    samples: dict[int, float]  # traces
    diagonal: Tensor = field(repr=False)


class Written:
    """The mean loss as a plain function of one vector, and what two differentiations make of it."""

    def __init__(self, trained: Trained, count: int) -> None:
        self.network, self.count = trained.network, count
        self.model = trained.model
        self.names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        parameters = dict(self.model.named_parameters())
        self.theta = torch.cat([parameters[name].detach().double().reshape(-1) for name in self.names])
        self.shapes = [parameters[name].shape for name in self.names]
        self.batch = trained.network.data(count)

    def part(self, start: int, stop: int) -> Batch:
        return mapped(self.batch, lambda t: t[start:stop])

    def total(self, theta: Tensor, batch: Batch) -> tuple[Tensor, Any]:
        parts = theta.split([shape.numel() for shape in self.shapes])
        moved = {name: part.reshape(shape) for name, part, shape in zip(self.names, parts, self.shapes)}

        def model(*inputs: Any, **named: Any) -> Any:
            return torch.func.functional_call(self.model, moved, inputs, named)

        return self.network.total_loss(outputs_of(model, batch), batch)

    @cached_property
    def weight(self) -> float:
        return sum(float(self.total(self.theta, batch)[1]) for batch in self._chunks())

    def _chunks(self) -> Iterator[Batch]:
        for start in range(0, self.count, CHUNK):
            yield self.part(start, min(start + CHUNK, self.count))

    @cached_property
    def loss(self) -> float:
        return sum(float(self.total(self.theta, batch)[0].detach()) for batch in self._chunks()) / self.weight

    @cached_property
    def hessian(self) -> Tensor:
        found = torch.zeros(len(self.theta), len(self.theta), dtype=torch.float64)
        for batch in self._chunks():
            found += self.twice(batch)
        found /= self.weight
        apart = float((found - found.t()).norm() / found.norm())
        assert apart < 1e-9, f"an operation of {self.network.name} derives wrongly: asymmetric by {apart:.1e}"
        return found

    def twice(self, batch: Batch) -> Tensor:
        """The second derivative of a batch's summed loss, some rows at a time."""
        theta = self.theta.clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.total(theta, batch)[0], theta, create_graph=True)
        rows = torch.eye(len(theta), dtype=torch.float64)
        together = max(1, AT_ONCE // count_in(batch))
        try:
            options = {"retain_graph": True, "is_grads_batched": True}
            found = torch.cat([torch.autograd.grad(slope, theta, part, **options)[0] for part in rows.split(together)])
        except RuntimeError:  # torch cannot derive a group normalisation twice for several vectors
            return torch.stack([torch.autograd.grad(entry, theta, retain_graph=True)[0] for entry in slope])
        (alone,) = torch.autograd.grad(slope, theta, rows.sum(0), retain_graph=True)
        assert torch.allclose(found.sum(0), alone, rtol=1e-9, atol=1e-9 * float(found.abs().max()))
        return found

    def sample_trace(self, index: int) -> float:
        one = self.part(index, index + 1)
        return float(self.twice(one).trace()) / max(float(self.total(self.theta, one)[1]), 1.0)


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Fused attention has no second derivative, and torch's encoder leaves its layers out without gradients."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def truth_of(trained: Trained, count: int, cache: Path | None = None) -> Truth:
    """Write the Hessian out, or read what was found for the same weights and samples before."""
    kept = None if cache is None else cache / f"{trained.network.name}-{count}-{_fingerprint(trained)}.pt"
    if kept is not None and kept.exists():
        return Truth(**torch.load(kept, weights_only=True))
    with differentiable_twice():
        found = _truth(trained, count)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(asdict(found), kept)
    return found


def _truth(trained: Trained, count: int) -> Truth:
    written = Written(trained, count)
    dense = Dense(trained.problem(count))
    assert dense.names == written.names
    assert math.isclose(float(dense.loss_at(dense.theta).detach()), written.loss, rel_tol=1e-9), (
        "two ways to write the mean loss disagree"
    )
    dense.hessian = written.hessian  # the formulas are taken of the Hessian written here
    values = {}
    for name, formula in FORMULAS.items():
        if name == "output_margin" and not _one_label(written):
            continue
        values[name] = formula(dense)
    diagonal = written.hessian.diagonal().clone()
    layers = {
        name: sum(float(diagonal[dense.slices[full]].sum()) for full in layer.parameters.values())
        for name, layer in dense.problem.layers.items()
    }
    places = torch.linspace(0, count - 1, SAMPLED).long().tolist()
    samples = {place: written.sample_trace(place) for place in places}
    return Truth(len(written.theta), written.loss, values, layers, samples, diagonal)


def _one_label(written: Written) -> bool:
    """Whether outputs are class scores (B, C) with one whole number for a label."""
    one = written.part(0, 1)
    labels = one.get("labels") if isinstance(one, dict) else one[1]
    scores = outputs_of(written.model, one)
    return scores.dim() == 2 and labels is not None and labels.dim() == 1 and not labels.is_floating_point()


def _fingerprint(trained: Trained) -> str:
    told = hashlib.sha256()

    def tell(tensor: Tensor) -> Tensor:
        told.update(tensor.detach().contiguous().numpy().tobytes())
        return tensor

    for _, tensor in sorted(trained.model.state_dict().items()):
        tell(tensor)
    mapped(trained.network.data(POOL), tell)
    return told.hexdigest()[:16]
