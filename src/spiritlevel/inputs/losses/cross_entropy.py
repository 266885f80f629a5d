"""Cross-entropy of class logits, for whole samples, for positions, and for the next token."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.losses.base import Factor, Loss, Sketch, labels_of
from spiritlevel.inputs.losses.positions import from_positions, to_positions
from spiritlevel.inputs.losses.softmax import (
    softmax_factor_times,
    softmax_hessian_times,
    softmax_sketch_times,
    widened,
)
from spiritlevel.inputs.torch_internals.tensors import version_of, viewed
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import UsageError

# Output entries, over samples and draws, that are held in float64 at one time when sketching.
ENTRIES_AT_ONCE = 1 << 22


# The last tensor on a GPU whose labels were all found in range, with its version, the classes and what is ignored.
_known: tuple[weakref.ref[Tensor], object, int, int] | None = None


def _out_of_range(labels: Tensor, classes: int, ignored: int) -> Tensor:
    return (labels != ignored) & ((labels < 0) | (labels >= classes))


def _whole_in_range(labels: Tensor, classes: int, ignored: int) -> bool:
    """Whether all labels are in range in the tensor that these are a part of; looked at once, so that a GPU need not
    be waited for with every batch."""
    global _known
    whole = viewed(labels)
    key = (version_of(whole), classes, ignored)
    if _known is not None and _known[0]() is whole and _known[1:] == key:
        return True
    if whole.is_floating_point() or bool(_out_of_range(whole, classes, ignored).any()):
        return False
    _known = (weakref.ref(whole), *key)
    return True


@dataclass(frozen=True)
class CrossEntropy(Loss):
    """Cross-entropy with the meaning of ``torch.nn.functional.cross_entropy(reduction="mean")``.

    Outputs are ``(B, C)``, or hold positions with the classes last ``(B, T, C)`` or second ``(B, C, T, ...)``; the
    shape of the labels decides which. Labels are class indices, or probabilities ``(B, C)``. In its outputs the loss
    has the second derivative s·(diag(p) - ppᵀ): the labels, the smoothing and the class weights enter through the
    scalar s alone.

    Parameters
    ----------
    label_smoothing : float
        As torch's.
    class_weights : sequence of float or Tensor
        A weight for each class.
    ignore_index : int
        The label that counts in no loss.
    class_axis : int
        Where the classes are, 1 or -1, where the shapes cannot say it.

    Raises
    ------
    UsageError
        An argument has a value that the message names.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> loss, batch = sl.losses.CrossEntropy(), (None, torch.tensor([0, 3]))
    >>> losses, weights = loss.per_sample(torch.zeros(2, 4), batch)
    >>> [round(each, 3) for each in losses.tolist()], weights.tolist()
    ([1.386, 1.386], [1.0, 1.0])
    """

    name: str = field(default="cross_entropy", init=False, repr=False)
    label_smoothing: float = 0.0
    class_weights: Sequence[float] | Tensor | None = None
    ignore_index: int = -100
    class_axis: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise UsageError(f"label_smoothing is {self.label_smoothing}: it must lie between 0 and 1.")
        if self.class_axis not in (None, 1, -1):
            raise UsageError(f"class_axis is {self.class_axis}: it must be 1 (classes second) or -1 (classes last).")
        if self.class_weights is not None:
            # Kept as numbers, so that two equal losses compare and hash equal.
            weights = tuple(float(weight) for weight in self.class_weights)
            object.__setattr__(self, "class_weights", weights)
            lowest = min(weights, default=0.0)
            if not lowest >= 0.0 or (self.label_smoothing > 0.0 and lowest == 0.0):
                raise UsageError(
                    f"class_weights contains {lowest}: weights must not be negative, and with label smoothing they "
                    "must be positive, because a sample of weight 0 would still have a loss."
                )

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Losses and weights ``(B,)``; the weight is the class weight of the label, summed over the positions."""
        logits, labels, _ = self._read(outputs, batch)
        logits = widened(logits)
        losses = F.cross_entropy(
            logits.flatten(0, 1),
            labels.flatten(0, 1),
            weight=self._class_weights(logits, logits.dtype),
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            reduction="none",
        ).unflatten(0, logits.shape[:2])
        weights = self._weights_and_scales(logits, labels)[0].sum(1).to(losses.dtype)
        return losses.sum(1) / weights.where(weights > 0, 1.0), weights

    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """Cholesky factor with C - 1 columns a position, or sketches of it; see :class:`Loss`."""
        logits, labels, axis = self._read(outputs, batch)
        samples, positions, classes = logits.shape
        count = positions * (classes - 1)
        exact = count <= sketch.limit
        root = self._curvature(logits, labels).sqrt()
        if exact:
            # Column (t, k) has the coefficient 1 at position t, class k.
            unit = torch.eye(count, dtype=torch.float64, device=logits.device)
            coefficients = unit.view(count, 1, positions, classes - 1).expand(count, samples, positions, classes - 1)
            columns = (softmax_factor_times(logits, coefficients) * root).to(outputs.dtype)
        else:
            # With a large vocabulary the float64 copies of all draws together would not fit: a few draws at a time.
            at_once = max(1, ENTRIES_AT_ONCE // logits.numel())
            columns = torch.empty(sketch.count, *logits.shape, dtype=outputs.dtype, device=outputs.device)
            for first, part in enumerate(columns.split(at_once)):
                signs = sketch.signs(outputs, count, draws=len(part), passed=first * at_once)
                coefficients = signs.unflatten(-1, (positions, classes - 1))
                part.copy_(softmax_sketch_times(logits, coefficients) * root)
        return Factor(
            columns=from_positions(columns, outputs, axis),
            signs=torch.ones(columns.shape[:2], dtype=outputs.dtype, device=outputs.device),
            psd=True,
            exact=exact,
            draws=1 if exact else len(columns),
        )

    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v = s·(p∘v - p (p·v)) for each of the vectors ``(K, B, *output shape)``."""
        logits, labels, axis = self._read(outputs, batch)
        product = softmax_hessian_times(logits, to_positions(vectors, axis, lead=2)) * self._curvature(logits, labels)
        return from_positions(product, outputs, axis).to(vectors.dtype)

    def _read(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor, int]:
        """Logits ``(B, T, C)``, labels ``(B, T)`` or probabilities ``(B, 1, C)``, and the axis of the classes."""
        labels = labels_of(batch).to(outputs.device)
        if outputs.dim() < 2:
            raise UsageError(
                f"cross_entropy found outputs of shape {tuple(outputs.shape)} and needs one logit per class, (B, C): "
                "for a single logit use the loss binary_cross_entropy."
            )
        if labels.is_floating_point():
            fits = outputs.dim() == 2 and labels.shape == outputs.shape
            sound = torch.isfinite(labels) & (labels >= 0)
            if not fits or not bool(sound.all()):
                if fits and bool((~torch.isfinite(labels)).any()):
                    sample = int((~torch.isfinite(labels)).any(1).nonzero()[0])
                    raise UsageError(
                        f"cross_entropy found a label that is NaN or infinite at sample {sample} of the batch: labels "
                        "that are no class indices must be probabilities."
                    )
                raise UsageError(
                    f"cross_entropy found labels of type {labels.dtype} and shape {tuple(labels.shape)} for outputs of "
                    f"shape {tuple(outputs.shape)}: pass integer class indices, or probabilities of shape (B, C)."
                )
            axis, labels = -1, labels.to(outputs.dtype)[:, None]
        else:
            axis = self._find_class_axis(outputs, labels)
            labels = labels.long().reshape(len(outputs), -1)
        logits = to_positions(outputs, axis, lead=1)
        classes = logits.shape[-1]
        if classes < 2:
            raise UsageError(
                "cross_entropy found one class, whose loss is always 0: for a single logit use binary_cross_entropy."
            )
        if not labels.is_floating_point():
            self._check_range(labels, classes)
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise UsageError(
                f"class_weights has {len(self.class_weights)} entries but the outputs have {classes} classes: "
                "pass one weight per class."
            )
        return logits, labels, axis

    def _find_class_axis(self, outputs: Tensor, labels: Tensor) -> int:
        shape = tuple(outputs.shape)
        last = tuple(labels.shape) == shape[:-1] and self.class_axis != 1
        second = tuple(labels.shape) == (shape[0], *shape[2:]) and self.class_axis != -1
        if not (last or second):
            raise UsageError(
                f"cross_entropy found labels of shape {tuple(labels.shape)} for outputs of shape {shape}: "
                "pass one integer class per sample or position, the shape of the outputs without their class axis."
            )
        if last and second and len(shape) > 2:
            raise UsageError(
                f"cross_entropy cannot tell the classes from the positions in outputs of shape {shape}: "
                "say CrossEntropy(class_axis=1) for classes second or CrossEntropy(class_axis=-1) for classes last."
            )
        return -1 if last else 1

    def _check_range(self, labels: Tensor, classes: int) -> None:
        if torch.compiler.is_compiling():
            return  # looking at values would break the graph; the first sweep over the data has checked them
        if labels.is_cuda and _whole_in_range(labels, classes, self.ignore_index):
            return
        wrong = _out_of_range(labels, classes, self.ignore_index)
        if bool(wrong.any()):
            sample, position = wrong.nonzero()[0].tolist()
            where = f"sample {sample}" + (f", position {position}," if labels.shape[1] > 1 else "")
            found = labels[sample, position].item()
            raise UsageError(
                f"cross_entropy found the label {found} at {where} of the batch but the outputs have {classes} "
                f"classes: labels must be 0 to {classes - 1}, or {self.ignore_index} (ignored); if {found} is to be "
                f"ignored, pass loss={type(self).__name__}(ignore_index={found}) of spiritlevel.losses"
            )

    def _class_weights(self, logits: Tensor, dtype: torch.dtype) -> Tensor | None:
        if self.class_weights is None:
            return None
        return torch.as_tensor(self.class_weights, dtype=dtype, device=logits.device)

    def _weights_and_scales(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Weight w of each position ``(B, T)``, and s·w with s·(diag(p) - ppᵀ) the second derivative of its loss.

        torch divides by Σ w_y also when smoothing, so the loss of a position is
        ℓ = -[(1-ε) w_y log p_y + ε/C Σ_c w_c log p_c] / w_y and s·w_y = (1-ε) w_y + ε/C Σ_c w_c. With probabilities q
        as labels it divides by their number: w = 1 and s = Σ_c w_c q_c.
        """
        classes = logits.shape[-1]
        weights = self._class_weights(logits, torch.float64)
        if weights is None:
            weights = torch.ones(classes, dtype=torch.float64, device=logits.device)
        smooth = self.label_smoothing
        if labels.is_floating_point():
            mixed = (1 - smooth) * labels.double() + smooth / classes
            return torch.ones(labels.shape[:2], dtype=torch.float64, device=logits.device), mixed @ weights
        counts = labels != self.ignore_index
        chosen = weights[labels.where(counts, 0)] * counts
        return chosen, (1 - smooth) * chosen + smooth / classes * weights.sum() * counts

    def _curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The factor ``(B, T, 1)`` of diag(p) - ppᵀ in the per-sample loss, a weighted mean over positions."""
        weights, scales = self._weights_and_scales(logits, labels)
        total = weights.sum(1, keepdim=True)
        return (scales / total.where(total > 0, 1.0))[..., None]


@documented_like(CrossEntropy)
@dataclass(frozen=True)
class SameToken(CrossEntropy):
    """Cross-entropy of the outputs ``(B, T, C)`` at each position against the label ``(B, T)`` at the same one.

    That is the loss of masked tokens, of tags, and of an encoder-decoder, whose model shifts the labels itself. It is
    that of `CrossEntropy`, said in so many words: what a language model or labels equal to the inputs leave open
    is then decided.

    Raises
    ------
    UsageError
        An argument has a value that the message names.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> loss, batch = sl.losses.SameToken(), (None, torch.tensor([[1, -100, 2]]))
    >>> losses, weights = loss.per_sample(torch.zeros(1, 3, 4), batch)
    >>> round(losses.item(), 3), weights.item()
    (1.386, 2.0)
    """

    name: str = field(default="same_token", init=False, repr=False)
    class_axis: int | None = -1


@dataclass(frozen=True)
class NextToken(Loss):
    """Cross-entropy of the outputs ``(B, T, C)`` at position t against the label ``(B, T)`` at t + 1.

    A label of ``ignore_index`` weighs nothing, nor does one that a batch's "attention_mask", where it has the labels'
    shape, says is padding.

    Parameters
    ----------
    ignore_index : int
        The label that counts in no loss.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> tokens = torch.tensor([[1, 0, 2]])
    >>> loss = sl.losses.NextToken()
    >>> losses, weights = loss.per_sample(torch.zeros(1, 3, 4), (tokens, tokens))
    >>> round(losses.item(), 3), weights.item()  # two of three tokens are predicted
    (1.386, 2.0)
    """

    name: str = field(default="next_token", init=False, repr=False)
    ignore_index: int = -100

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Mean loss over a sample's predicted tokens, and their number."""
        return self._token_loss().per_sample(outputs, self._shift(outputs, batch))

    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """Cholesky factor with C - 1 columns a position, or sketches of it; see :class:`Loss`."""
        return self._token_loss().sketched_factor(outputs, self._shift(outputs, batch), sketch)

    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v, zero at the last position and wherever the next label is ignored."""
        return self._token_loss().hessian_product(outputs, self._shift(outputs, batch), vectors)

    def _token_loss(self) -> CrossEntropy:
        return CrossEntropy(ignore_index=self.ignore_index, class_axis=-1)

    def _shift(self, outputs: Tensor, batch: Content) -> Content:
        labels = labels_of(batch)
        if outputs.dim() != 3 or labels.shape != outputs.shape[:2] or labels.is_floating_point():
            raise UsageError(
                f"next_token found outputs of shape {tuple(outputs.shape)} and labels of type {labels.dtype} and shape "
                f"{tuple(labels.shape)}: it needs outputs (B, T, C) and integer labels (B, T)."
            )
        mask = _attention_mask(batch)
        if mask is not None and mask.shape == labels.shape:
            labels = labels.masked_fill(mask.to(labels.device) == 0, self.ignore_index)
        # The last position predicts nothing: its label is one that is ignored.
        return (None, F.pad(labels[:, 1:], (0, 1), value=self.ignore_index))


def _attention_mask(batch: Content) -> Tensor | None:
    """The mask of a dict's inputs, or of inputs in a dict of their own beside the labels."""
    inputs = batch if isinstance(batch, Mapping) else batch[0]
    mask = inputs.get("attention_mask") if isinstance(inputs, Mapping) else None
    return mask if isinstance(mask, Tensor) else None
