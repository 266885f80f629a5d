"""The contrastive loss of pairs of embeddings (Hadsell, Chopra and LeCun 2006)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.losses.base import Factor, Loss, Sketch, labels_of
from spiritlevel.values.errors import SpiritlevelError, UsageError


class _Pairs(NamedTuple):
    """What the second derivative in the difference a - b is made of: along·ûûᵀ - across·(I - ûûᵀ), in float64."""

    unit: Tensor  # (B, D) direction û of a - b, any unit vector where they coincide
    along: Tensor  # (B, 1)
    across: Tensor  # (B, 1): -1 for pairs that are alike, whose second derivative is the identity


@dataclass(frozen=True)
class ContrastivePairs(Loss):
    """½ ‖a - b‖² of embeddings that are alike (label 1), ½ max(0, margin - ‖a - b‖)² of those that are not (label 0).

    Outputs are both embeddings of a pair, ``(B, 2, D)``, and labels ``(B,)``: a pair is a sample. A model that returns
    two tensors is given a forward that stacks them (Hadsell, Chopra and LeCun 2006).

    Parameters
    ----------
    margin : float
        The distance to which pairs that are not alike are pushed apart; positive.

    Raises
    ------
    UsageError
        ``margin`` is not positive.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> pairs = torch.tensor([[[0.0, 0.0], [0.6, 0.8]], [[0.0, 0.0], [0.3, 0.4]]])
    >>> loss = sl.losses.ContrastivePairs()
    >>> loss.per_sample(pairs, (None, torch.tensor([1, 0])))[0].tolist()
    [0.5, 0.125]
    """

    name: str = field(default="contrastive_pairs", init=False, repr=False)
    margin: float = 1.0

    def __post_init__(self) -> None:
        if not self.margin > 0:
            raise UsageError(
                f"margin is {self.margin}: pairs that are not alike are pushed apart to a positive distance."
            )

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Losses of the pairs, and weights 1."""
        alike = self._alike(outputs, batch)
        difference = outputs[:, 0] - outputs[:, 1]
        near = 0.5 * difference.square().sum(1)
        # Of a pair that is alike no distance is taken: its root has no derivative where the embeddings coincide.
        distance = (2 * near).where(~alike, 1.0).sqrt()
        return torch.where(alike, near, 0.5 * (self.margin - distance).clamp(min=0).square()), torch.ones_like(near)

    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """A column for each dimension of the difference, or signed pairs of sketches; see :class:`Loss`."""
        pairs = self._pairs(outputs, batch)
        samples, width = pairs.unit.shape
        exact = width <= sketch.limit
        if exact:
            # The reflection that takes the first axis to ∓û takes the other axes to what is orthogonal to it.
            mirror = pairs.unit.clone()
            mirror[:, 0] += torch.where(mirror[:, 0] < 0, -1.0, 1.0)
            mirror = mirror / mirror.norm(dim=1, keepdim=True)
            unit = torch.eye(width, dtype=torch.float64, device=outputs.device)[:, None]
            axes = unit - 2 * mirror * (unit * mirror).sum(-1, keepdim=True)
            values = torch.cat([pairs.along, -pairs.across.expand(samples, width - 1)], 1).T
            columns = axes * values.abs().sqrt()[..., None]
            signs = torch.where(values < 0, -1.0, 1.0)
        else:
            probes = sketch.signs(outputs, width)
            inside = (probes * pairs.unit).sum(-1, keepdim=True) * pairs.unit
            first = probes[..., :1]
            beside = (probes - inside) * pairs.across.abs().sqrt()
            # Of a pair that is alike all is of one sign, and its sketch the probe itself.
            positive = torch.where(pairs.across < 0, probes, first * pairs.along.sqrt() * pairs.unit)
            columns = torch.stack([positive, beside * (pairs.across > 0)], 1).flatten(0, 1)
            signs = torch.tensor([1.0, -1.0], device=outputs.device).repeat(len(probes))[:, None].repeat(1, samples)
        return Factor(
            torch.stack([columns, -columns], 2).to(outputs.dtype),
            signs.to(outputs.dtype),
            psd=False,
            exact=exact,
            draws=1 if exact else sketch.count,
        )

    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v for each of the vectors ``(K, B, 2, D)``."""
        pairs = self._pairs(outputs, batch)
        v = vectors[:, :, 0].double() - vectors[:, :, 1].double()
        inside = (v * pairs.unit).sum(-1, keepdim=True) * pairs.unit
        product = pairs.along * inside - pairs.across * (v - inside)
        return torch.stack([product, -product], 2).to(vectors.dtype)

    def _pairs(self, outputs: Tensor, batch: Content) -> _Pairs:
        alike = self._alike(outputs, batch)[:, None]
        embeddings = outputs.detach().double()
        difference = embeddings[:, 0] - embeddings[:, 1]
        distance = difference.norm(dim=1, keepdim=True)
        meeting = ~alike & (distance == 0)
        if bool(meeting.any()):
            raise SpiritlevelError(
                f"The embeddings of pair {int(meeting.nonzero()[0, 0])} of the batch are not alike and coincide, where "
                "contrastive_pairs has a kink and no curvature; look at that pair's inputs and label."
            )
        axis = torch.zeros_like(difference)
        axis[:, 0] = 1.0
        unit = torch.where(distance > 0, difference / distance.where(distance > 0, 1.0), axis)
        apart = alike | (distance < self.margin)
        # d/dδ of -(margin - d) û is ûûᵀ - (margin/d - 1) (I - ûûᵀ).
        across = torch.where(alike, -1.0, (self.margin - distance).clamp(min=0) / distance.where(distance > 0, 1.0))
        return _Pairs(unit, apart.double(), across)

    def _alike(self, outputs: Tensor, batch: Content) -> Tensor:
        labels = labels_of(batch).to(outputs.device)
        if outputs.dim() != 3 or outputs.shape[1] != 2 or labels.shape != outputs.shape[:1]:
            raise UsageError(
                f"contrastive_pairs found outputs of shape {tuple(outputs.shape)} and labels of shape "
                f"{tuple(labels.shape)}: it needs both embeddings of each pair, (B, 2, D), and labels (B,); for a "
                "model that returns two tensors pass forward=lambda model, batch: torch.stack(model(...), 1)."
            )
        wrong = (labels != 0) & (labels != 1)
        if bool(wrong.any()):
            sample = int(wrong.nonzero()[0, 0])
            raise UsageError(
                f"contrastive_pairs found the label {labels[sample].item()} at pair {sample} of the batch: labels must "
                "be 1 (alike) or 0 (not alike)."
            )
        return labels == 1
