"""Losses whose outputs do not interact: binary cross-entropy and squared error, with a diagonal second derivative."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.losses.base import Factor, Loss, Sketch, labels_of
from spiritlevel.inputs.losses.softmax import widened
from spiritlevel.values.errors import UsageError


class _Elementwise(Loss):
    """Mean over a sample's output entries of a convex loss of each entry alone; every sample has weight 1."""

    @abstractmethod
    def _root_of_diagonal(self, outputs: Tensor, batch: Content) -> Tensor:
        """Square roots of the diagonal of Λ, in float64, of the shape of the outputs."""

    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """One column per output entry, or sketches of them; see :class:`Loss`."""
        root = self._root_of_diagonal(outputs, batch)
        count = root[0].numel()
        exact = count <= sketch.limit
        if exact:
            unit = torch.eye(count, dtype=torch.float64, device=root.device)
            coefficients = unit.view(count, 1, *root.shape[1:])
        else:
            coefficients = sketch.signs(outputs, count).view(-1, *root.shape)
        columns = (coefficients * root).to(outputs.dtype)
        signs_of_columns = torch.ones(columns.shape[:2], dtype=outputs.dtype, device=outputs.device)
        return Factor(columns, signs_of_columns, psd=True, exact=exact, draws=1 if exact else len(columns))

    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v for each of the vectors ``(K, B, *output shape)``."""
        return (self._root_of_diagonal(outputs, batch).square() * vectors.double()).to(vectors.dtype)


@dataclass(frozen=True)
class BinaryCrossEntropy(_Elementwise):
    """Cross-entropy of independent yes-or-no logits ``(B,)``, ``(B, 1)`` or ``(B, C)``, averaged over each sample.

    Labels lie between 0 and 1.

    Parameters
    ----------
    pos_weight : float, sequence of float or Tensor
        Multiplies the positive part of the loss, one number or one per class, as in
        ``torch.nn.functional.binary_cross_entropy_with_logits``.

    Raises
    ------
    UsageError
        ``pos_weight`` is negative.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> loss, batch = sl.losses.BinaryCrossEntropy(), (None, torch.tensor([0.0, 1.0]))
    >>> losses, weights = loss.per_sample(torch.zeros(2), batch)
    >>> [round(each, 3) for each in losses.tolist()]
    [0.693, 0.693]
    """

    name: str = field(default="binary_cross_entropy", init=False, repr=False)
    pos_weight: float | Sequence[float] | Tensor | None = None

    def __post_init__(self) -> None:
        if self.pos_weight is not None:
            given = torch.as_tensor(self.pos_weight, dtype=torch.float64)
            if not bool((given >= 0).all()):
                raise UsageError(f"pos_weight is {self.pos_weight}: it must not be negative.")
            # Kept as numbers, so that two equal losses compare and hash equal.
            object.__setattr__(self, "pos_weight", given.item() if given.numel() == 1 else tuple(given.tolist()))

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Mean loss over a sample's entries, and weights 1."""
        outputs = widened(outputs)
        labels = self._labels(outputs, batch).to(outputs.dtype)
        losses = F.binary_cross_entropy_with_logits(
            outputs, labels, pos_weight=self._pos_weight(outputs, outputs.dtype), reduction="none"
        )
        return _mean_over_entries(losses), outputs.new_ones(len(outputs))

    def _root_of_diagonal(self, outputs: Tensor, batch: Content) -> Tensor:
        labels = self._labels(outputs, batch).double()
        x = outputs.detach().double()
        # ℓ = (1-y) x + (1 + (q-1) y) log(1 + e^-x), so ℓ'' = (1 + (q-1) y) σ(x) σ(-x); the root of the logarithm does
        # not underflow where the product would.
        root = (0.5 * (F.logsigmoid(x) + F.logsigmoid(-x))).exp()
        pos_weight = self._pos_weight(outputs, torch.float64)
        if pos_weight is not None:
            root = root * (1 + (pos_weight - 1) * labels).sqrt()
        scaled: Tensor = root / outputs[0].numel() ** 0.5
        return scaled

    def _pos_weight(self, outputs: Tensor, dtype: torch.dtype) -> Tensor | None:
        if self.pos_weight is None:
            return None
        weight = torch.as_tensor(self.pos_weight, dtype=dtype, device=outputs.device)
        if weight.dim() and weight.shape != outputs.shape[-1:]:
            raise UsageError(
                f"pos_weight has {len(weight)} entries but the outputs have shape {tuple(outputs.shape)}: "
                "pass one number, or one per class in the last axis."
            )
        return weight

    def _labels(self, outputs: Tensor, batch: Content) -> Tensor:
        labels = _labels_like(outputs, batch, self.name)
        wrong = ~((labels >= 0) & (labels <= 1))
        if bool(wrong.any()):
            sample = int(wrong.nonzero()[0, 0])
            raise UsageError(
                f"binary_cross_entropy found the label {labels[wrong][0].item()} at sample {sample} of the batch: "
                "labels must lie between 0 and 1; for several exclusive classes use cross_entropy."
            )
        return labels


@dataclass(frozen=True)
class MeanSquaredError(_Elementwise):
    """Squared error averaged over a sample's output entries, as torch's ``mse_loss``.

    Parameters
    ----------
    one_hot : bool
        Whether the labels are class indices ``(B,)`` and the targets their one-hot vectors.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> loss = sl.losses.MeanSquaredError(one_hot=True)
    >>> loss.per_sample(torch.zeros(2, 4), (None, torch.tensor([0, 3])))[0].tolist()
    [0.25, 0.25]
    """

    name: str = field(default="mean_squared_error", init=False, repr=False)
    one_hot: bool = False

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Mean squared error over a sample's entries, and weights 1."""
        losses = (outputs - self._targets(outputs, batch).to(outputs.dtype)).square()
        return _mean_over_entries(losses), outputs.new_ones(len(outputs))

    def _root_of_diagonal(self, outputs: Tensor, batch: Content) -> Tensor:
        self._targets(outputs, batch)
        return torch.full_like(outputs, (2.0 / outputs[0].numel()) ** 0.5, dtype=torch.float64)

    def _targets(self, outputs: Tensor, batch: Content) -> Tensor:
        if not self.one_hot:
            return _labels_like(outputs, batch, self.name)
        labels = labels_of(batch).to(outputs.device)
        if outputs.dim() != 2 or labels.shape != outputs.shape[:1] or labels.is_floating_point():
            raise UsageError(
                f"mean_squared_error with one_hot found labels of type {labels.dtype} and shape {tuple(labels.shape)} "
                f"for outputs of shape {tuple(outputs.shape)}: it needs outputs (B, C) and integer labels (B,)."
            )
        classes = outputs.shape[1]
        wrong = (labels < 0) | (labels >= classes)
        if bool(wrong.any()):
            sample = int(wrong.nonzero()[0, 0])
            raise UsageError(
                f"mean_squared_error found the label {labels[sample].item()} at sample {sample} of the batch but the "
                f"outputs have {classes} classes: labels must be 0 to {classes - 1}."
            )
        return F.one_hot(labels.long(), classes)


def _mean_over_entries(losses: Tensor) -> Tensor:
    return losses.reshape(len(losses), -1).mean(1)


def _labels_like(outputs: Tensor, batch: Content, name: str) -> Tensor:
    """Labels of exactly the shape of the outputs; only ``(B,)`` and ``(B, 1)`` stand for each other."""
    labels = labels_of(batch).to(outputs.device)
    if labels.shape != outputs.shape:
        # Broadcasting (B,) against (B, 1) would silently compare every sample with every label.
        single = outputs[0].numel() == 1 and labels.dim() <= 2 and labels.shape in ((len(outputs),), (len(outputs), 1))
        if not single:
            advice = " (class indices need MeanSquaredError(one_hot=True))" if name == "mean_squared_error" else ""
            raise UsageError(
                f"{name} found labels of shape {tuple(labels.shape)} for outputs of shape {tuple(outputs.shape)}: "
                f"pass labels of the shape of the outputs{advice}."
            )
        labels = labels.reshape(outputs.shape)
    return labels
