"""Negative log-likelihood of a Gaussian whose mean and log-variance are both outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.losses.base import Factor, Loss, Sketch, labels_of
from spiritlevel.values.errors import UsageError


@dataclass(frozen=True)
class GaussianNLL(Loss):
    """½ (s + (y - μ)² e^-s), averaged over a sample's entries, with the mean μ and the log-variance s from the outputs.

    μ is the first half of the outputs along one axis and s the second: the channels ``(B, 2D, ...)`` or the last
    ``(B, ..., 2D)``. The shape of the labels, of μ's shape or without that axis where D is 1, decides which. It is
    ``torch.nn.GaussianNLLLoss`` of the variance e^s.

    Parameters
    ----------
    axis : int
        The axis of the halves, 1 or -1, where the shapes cannot say it.

    Raises
    ------
    UsageError
        ``axis`` is neither 1 nor -1.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> loss = sl.losses.GaussianNLL()
    >>> loss.per_sample(torch.tensor([[1.0, 0.0]]), (None, torch.tensor([[3.0]])))[0].item()
    2.0
    """

    name: str = field(default="gaussian_nll", init=False, repr=False)
    axis: int | None = None

    def __post_init__(self) -> None:
        if self.axis not in (None, 1, -1):
            raise UsageError(f"axis is {self.axis}: it must be 1 (mean and log-variance in channels) or -1 (last).")

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Mean loss over a sample's entries, and weights 1."""
        mean, log, labels, _ = self._read(outputs, batch)
        losses = 0.5 * (log + (labels - mean).square() * torch.exp(-log))
        return losses.reshape(len(outputs), -1).mean(1), outputs.new_ones(len(outputs))

    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """A column of either sign for each entry, or sketches of them; see :class:`Loss`.

        With r = μ - y an entry's block is e^-s ((1, -r), (-r, r²/2)), of determinant -r²/2 e^-2s: one eigenvalue of
        either sign. With d = (1 - r²/2)/2 and R = √(d² + r²) the larger is (1 + r²/2)/2 + R, of the vector (R + d, -r)
        or (-r, R - d), whichever does not cancel; the other follows from the determinant.
        """
        mean, log, labels, axis = self._read(outputs.detach().double(), batch)
        r = mean - labels
        c = 0.5 * r.square()
        d = 0.5 * (1 - c)
        size = torch.sqrt(d.square() + r.square())
        upper, lower = torch.where(d >= 0, size + d, -r), torch.where(d >= 0, -r, size - d)
        length = torch.sqrt(upper.square() + lower.square())
        upper, lower = upper / length, lower / length
        entries = r[0].numel()
        root = torch.sqrt(0.5 * (1 + c) + size)
        scale = torch.exp(-0.5 * log) / entries**0.5
        plus = torch.cat([upper, lower], axis) * torch.cat([scale * root] * 2, axis)
        minus = torch.cat([-lower, upper], axis) * torch.cat([scale * r.abs() / (2**0.5 * root)] * 2, axis)
        exact = 2 * entries <= sketch.limit
        if exact:
            unit = torch.eye(entries, dtype=torch.float64, device=outputs.device)
            coefficients = unit.view(entries, 1, *r.shape[1:])
        else:
            coefficients = sketch.signs(outputs, entries).view(-1, *r.shape)
        coefficients = torch.cat([coefficients] * 2, axis if axis < 0 else axis + 1)
        columns = torch.stack([coefficients * plus, coefficients * minus], 1).flatten(0, 1).to(outputs.dtype)
        pair = torch.tensor([1.0, -1.0], dtype=outputs.dtype, device=outputs.device)
        signs = pair.repeat(len(coefficients))[:, None].repeat(1, len(outputs))
        return Factor(columns, signs, psd=False, exact=exact, draws=1 if exact else len(coefficients))

    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v for each of the vectors ``(K, B, *output shape)``, block by block."""
        mean, log, labels, axis = self._read(outputs.detach().double(), batch)
        r, scale = mean - labels, torch.exp(-log) / mean[0].numel()
        axis = axis if axis < 0 else axis + 1
        of_mean, of_log = vectors.double().chunk(2, axis)
        along = of_mean - r * of_log
        product = torch.cat([along * scale, -r * scale * (along + 0.5 * r * of_log)], axis)
        return product.to(vectors.dtype)

    def _read(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor, Tensor, int]:
        """Mean, log-variance and labels of one shape, and the axis of the halves."""
        labels = labels_of(batch).to(outputs.device, outputs.dtype)
        shape = tuple(outputs.shape)
        fits = []
        for axis in [1, -1] if len(shape) > 2 else [-1]:
            place = axis % max(len(shape), 1)
            half = (*shape[:place], shape[place] // 2, *shape[place + 1 :]) if len(shape) > 1 else ()
            single = shape[:place] + shape[place + 1 :]
            whole = len(shape) > 1 and shape[place] % 2 == 0 and self.axis in (None, axis, axis % len(shape))
            if whole and (labels.shape == half or (shape[place] == 2 and labels.shape == single)):
                fits.append((axis, half))
        if len(fits) != 1:
            said = (
                "say GaussianNLL(axis=1) for mean and log-variance in channels or GaussianNLL(axis=-1) for the last"
                if fits
                else "pass labels of the shape of the mean, half of the outputs along the channels or the last axis"
            )
            raise UsageError(
                f"gaussian_nll found labels of shape {tuple(labels.shape)} for outputs of shape {shape}: {said}."
            )
        axis, half = fits[0]
        mean, log = outputs.chunk(2, axis)
        return mean, log, labels.reshape(half), axis
