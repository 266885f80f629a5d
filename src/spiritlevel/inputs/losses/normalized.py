"""Cross-entropy of standardised logits (Tsuzuku et al. 2019, eq. 20), which no scaling of the outputs can change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.losses.base import Factor, Loss, Sketch, labels_of
from spiritlevel.inputs.losses.cross_entropy import CrossEntropy
from spiritlevel.inputs.losses.indefinite import eigen_columns
from spiritlevel.inputs.losses.softmax import softmax_hessian_times, softmax_sketch_times
from spiritlevel.values.errors import SpiritlevelError, UsageError


class _Parts(NamedTuple):
    """What the second derivative is made of, in float64; see :meth:`NormalizedCrossEntropy.hessian_product`."""

    z: Tensor  # (B, C) standardised logits
    w: Tensor  # (B, C) Q (p - e_y)
    a: Tensor  # (B, 1) z·(p - e_y) / C
    scale: Tensor  # (B, 1) standard deviation of the logits
    counts: Tensor  # (B, 1) 0 where the label is ignored, else 1

    def project(self, x: Tensor) -> Tensor:
        """Q x = x - mean(x) - z (z·x)/C, orthogonal to the constant vector and to z."""
        return x - x.mean(-1, keepdim=True) - self.z * (self.z * x).mean(-1, keepdim=True)


@dataclass(frozen=True)
class NormalizedCrossEntropy(Loss):
    """Cross-entropy of z = (f - mean f) / std f, the population deviation over the logits ``(B, C)`` of each sample.

    No scaling of the outputs can change it (Tsuzuku et al. 2019, eq. 20).

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> loss, batch = sl.losses.NormalizedCrossEntropy(), (None, torch.tensor([2]))
    >>> outputs = torch.tensor([[1.0, 2.0, 4.0]])
    >>> [round(loss.per_sample(c * outputs, batch)[0].item(), 3) for c in (1, 100)]
    [0.256, 0.256]
    """

    name: str = field(default="normalized_cross_entropy", init=False, repr=False)

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Losses and weights ``(B,)``."""
        self._check(outputs, batch)
        return CrossEntropy().per_sample(_standardised(outputs)[0], batch)

    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v for each of the vectors ``(K, B, C)``.

        With σ = std f, Q the projection orthogonal to 1 and z, g = p - e_y, a = z·g/C and w = Q g, differentiating
        ∇ℓ = Q g / σ once more gives σ² Λ = Q (diag(p) - ppᵀ) Q - a Q - (z wᵀ + w zᵀ)/C.
        """
        parts = self._parts(outputs, batch)
        v = vectors.double()
        projected = parts.project(v)
        product = parts.counts * parts.project(softmax_hessian_times(parts.z, projected)) - parts.a * projected
        product = product - parts.z * (parts.w * v).mean(-1, keepdim=True)
        product = product - parts.w * (parts.z * v).mean(-1, keepdim=True)
        return (product / parts.scale.square()).to(vectors.dtype)

    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """Signed eigenvectors of Λ, at most C - 1 as it has no part along 1, or signed sketches; see :class:`Loss`."""
        self._check(outputs, batch)
        samples, classes = outputs.shape
        if classes - 1 <= sketch.limit:
            unit = torch.eye(classes, dtype=torch.float64, device=outputs.device)
            rows = self.hessian_product(outputs, batch, unit[:, None].expand(classes, samples, classes))
            columns, signs = eigen_columns(rows.transpose(0, 1))
            return Factor(columns.to(outputs.dtype), signs.to(outputs.dtype), psd=False, exact=True)
        draws = sketch.count
        parts = self._parts(outputs, batch)
        first, second, last = sketch.signs(outputs, 2 * classes).split([classes - 1, classes, 1], -1)
        # Positive part: Q F with F Fᵀ = diag(p) - ppᵀ. The term a Q joins the side its sign says.
        positive = parts.counts * parts.project(softmax_sketch_times(parts.z, first))
        multiple = parts.a.abs().sqrt() * parts.project(second)
        positive = positive + multiple * (parts.a < 0)
        negative = multiple * (parts.a >= 0)
        # -(z wᵀ + w zᵀ) = ½ (z' - w')(z' - w')ᵀ - ½ (z' + w')(z' + w')ᵀ with z' = αz, w' = w/α scaled to one length.
        geometric = (parts.z.norm(dim=-1, keepdim=True) * parts.w.norm(dim=-1, keepdim=True)).sqrt()
        unit_z = torch.nn.functional.normalize(parts.z, dim=-1) * geometric
        unit_w = torch.nn.functional.normalize(parts.w, dim=-1) * geometric
        positive = positive + last * (unit_z - unit_w) / (2 * classes) ** 0.5
        negative = negative + last * (unit_z + unit_w) / (2 * classes) ** 0.5
        columns = (torch.stack([positive, negative], 1) / parts.scale).flatten(0, 1).to(outputs.dtype)
        pair = torch.tensor([1.0, -1.0], dtype=outputs.dtype, device=outputs.device)
        return Factor(columns, pair.repeat(draws)[:, None].repeat(1, samples), psd=False, exact=False, draws=draws)

    def _parts(self, outputs: Tensor, batch: Content) -> _Parts:
        self._check(outputs, batch)
        z, scale = _standardised(outputs.detach().double())
        with torch.enable_grad():
            z.requires_grad_()
            losses, weights = CrossEntropy().per_sample(z, batch)
            (g,) = torch.autograd.grad(losses.sum(), z)
        z = z.detach()
        parts = _Parts(z, g, (z * g).mean(-1, keepdim=True), scale, weights[:, None])
        return parts._replace(w=parts.project(g))

    def _check(self, outputs: Tensor, batch: Content) -> None:
        if labels_of(batch).is_floating_point():
            raise UsageError(
                f"normalized_cross_entropy found labels of type {labels_of(batch).dtype}: pass integer class indices."
            )
        if outputs.dim() != 2 or outputs.shape[1] < 2:
            raise UsageError(
                f"normalized_cross_entropy found outputs of shape {tuple(outputs.shape)} and needs logits (B, C) of at "
                "least two classes."
            )
        constant = (outputs == outputs[:, :1]).all(1)
        if bool(constant.any()):
            raise SpiritlevelError(
                f"All logits of sample {int(constant.nonzero()[0, 0])} of the batch are equal and have no standard "
                "deviation to be divided by: normalized_cross_entropy is not defined there; use cross_entropy."
            )


def _standardised(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Standardised logits and their standard deviation (population: divided by C)."""
    centred = outputs - outputs.mean(-1, keepdim=True)
    scale = centred.square().mean(-1, keepdim=True).sqrt()
    return centred / scale, scale
