"""A user's own loss, differentiated twice through autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from spiritlevel.inputs.contents import Content
from spiritlevel.inputs.losses.applied import applied_factor, general_vectors
from spiritlevel.inputs.losses.base import Factor, Loss, Sketch
from spiritlevel.inputs.losses.indefinite import eigen_columns, signed_roots
from spiritlevel.inputs.torch_internals.backward import vjp
from spiritlevel.values.errors import SpiritlevelError, UsageError

# A dense Λ of D outputs costs D products and an eigendecomposition of D³ for every sample: beyond it is only applied.
MOST_OUTPUTS = 512


def coupled_in_words(name: str, sign: str) -> str:
    """Say that a loss couples the samples of a batch, by what ``sign`` it is known."""
    return (
        f"The loss {name} couples the samples of a batch: {sign}, so no loss and no curvature per sample exists, "
        "whatever the order of the data; return losses that each depend on their own sample alone, for instance on a "
        "pair of embeddings that is one sample (loss='contrastive_pairs'), or measure in mode='train' the loss of the "
        "batches as they come."
    )


@dataclass(frozen=True)
class CallableLoss(Loss):
    """A function (outputs, batch) -> losses ``(B,)`` or ``(B, T, ...)``, or a pair (losses, weights) of one shape.

    The loss of a sample must depend on its own outputs alone; the second derivative is formed for all samples at once
    on that ground, and `factor` refuses a function whose second derivative couples samples. It is formed in
    float64 where the function accepts outputs (and floating-point batch entries) in float64, else in their own dtype.
    `Problem` makes one of any function.

    Parameters
    ----------
    fn : callable
        The function.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> def log_cosh(outputs, batch):
    ...     return torch.log(torch.cosh(outputs - sl.losses.labels_of(batch))).mean(1)
    >>> loss = sl.losses.CallableLoss(log_cosh)
    >>> losses, _ = loss.per_sample(torch.zeros(2, 3), (None, torch.ones(2, 3)))
    >>> loss.name, [round(each, 3) for each in losses.tolist()]
    ('log_cosh', [0.434, 0.434])
    """

    fn: Callable[[Tensor, Any], Any]
    name: str = field(default="", init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", getattr(self.fn, "__name__", type(self.fn).__name__))

    def per_sample(self, outputs: Tensor, batch: Content) -> tuple[Tensor, Tensor]:
        """Losses and weights ``(B,)``; positions are averaged with their weights."""
        result = self.fn(outputs, batch)
        losses, weights = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not isinstance(losses, Tensor) or losses.dim() < 1 or len(losses) != len(outputs):
            found = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else f"type {type(losses).__name__}"
            raise UsageError(
                f"The loss {self.name} returned a value of {found} for {len(outputs)} samples: return one loss per "
                "sample, (B,) or (B, T), for instance with reduction='none', because a single mean hides the samples."
            )
        if weights is None:
            weights = torch.ones_like(losses)
        elif not isinstance(weights, Tensor) or weights.shape != losses.shape or bool((weights < 0).any()):
            raise UsageError(
                f"The loss {self.name} returned weights that do not fit its losses of shape {tuple(losses.shape)}: "
                "return non-negative weights as a tensor of the same shape."
            )
        weights = weights.detach().to(losses.dtype)
        if losses.dim() == 1:
            return losses.where(weights > 0, 0.0), weights
        losses, weights = losses.flatten(1), weights.flatten(1)
        total = weights.sum(1)
        # Positions of weight 0 may hold anything, infinities included.
        weighted = (weights * losses.where(weights > 0, 0.0)).sum(1)
        return weighted / total.where(total > 0, 1.0), total

    def sketched_factor(self, outputs: Tensor, batch: Content, sketch: Sketch) -> Factor:
        """Signed eigenvectors of Λ, or sketches of it where a sample has over ``limit`` outputs.

        Λ is formed where that is little work, and else only applied.
        """
        samples, count = len(outputs), outputs[0].numel()
        if count > MOST_OUTPUTS:
            self._refuse_coupling(outputs, self._products(outputs, batch, _at_every_other_sample(outputs))[0])
            return applied_factor(lambda at, vectors: self._products(at, batch, vectors), outputs, sketch)
        unit = torch.eye(count, dtype=torch.float64, device=outputs.device)
        vectors = unit.view(count, 1, *outputs.shape[1:]).expand(count, *outputs.shape)
        rows = self._products(outputs, batch, torch.cat([vectors, _at_every_other_sample(outputs)])).double()
        self._refuse_coupling(outputs, rows[-1])
        matrices = rows[:-1].reshape(count, samples, count).transpose(0, 1)
        if count <= sketch.limit:
            columns, signs = eigen_columns(matrices)
            draws = 1
        else:
            draws = sketch.count
            probes = sketch.signs(outputs, count)
            halves = [torch.einsum("bij,dbj->dbi", root, probes) for root in signed_roots(matrices)]
            columns = torch.stack(halves, 1).flatten(0, 1)
            signs = torch.tensor([1.0, -1.0], device=outputs.device).repeat(draws)[:, None].repeat(1, samples)
        return Factor(
            columns.reshape(-1, *outputs.shape).to(outputs.dtype),
            signs.to(outputs.dtype),
            psd=False,
            exact=count <= sketch.limit,
            draws=draws,
        )

    def _refuse_coupling(self, outputs: Tensor, product: Tensor) -> None:
        """Refuse a function that maps a vector which is zero at every second sample to one that is not."""
        if bool((product[1::2] != 0).any()):
            raise SpiritlevelError(coupled_in_words(self.name, "one sample's outputs change another's gradient"))

    def hessian_product(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        """Λ v for each of the vectors ``(K, B, *output shape)``, by differentiating the gradient again."""
        return self._products(outputs, batch, vectors).to(vectors.dtype)

    def _products(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        try:
            return self._double_backward(outputs.detach().double(), _in_float64(batch), vectors)
        except RuntimeError:
            # The function holds constants of its own dtype that do not mix with float64.
            return self._double_backward(outputs.detach().clone(), batch, vectors)

    def _double_backward(self, outputs: Tensor, batch: Content, vectors: Tensor) -> Tensor:
        outputs.requires_grad_()
        with torch.enable_grad():
            losses, _ = self.per_sample(outputs, batch)
            if not losses.requires_grad:
                raise SpiritlevelError(
                    f"The loss {self.name} cannot be differentiated in the outputs: compute it from them with torch "
                    "operations, without detach() or conversion to numbers."
                )
            (gradient,) = torch.autograd.grad(losses.sum(), outputs, create_graph=True)
        if not gradient.requires_grad:  # piecewise linear in the outputs
            return torch.zeros_like(vectors, dtype=gradient.dtype)
        products = []
        for vector in vectors.to(gradient.dtype):
            (product,) = vjp(gradient, [outputs], vector, retain_graph=True, materialize_grads=True)
            products.append(product)
        return torch.stack(products)


def _at_every_other_sample(outputs: Tensor) -> Tensor:
    """One vector ``(1, *outputs.shape)`` that is zero at every second sample."""
    vectors = general_vectors(outputs, 1)
    vectors[:, 1::2] = 0
    return vectors


def _in_float64(batch: Any) -> Any:
    """The batch with its floating-point tensors in float64, so that they mix with float64 outputs."""
    if isinstance(batch, Tensor):
        return batch.double() if batch.is_floating_point() else batch
    if isinstance(batch, MutableMapping):
        # A copy of its own type: some batches are read by attribute.
        converted = copy.copy(batch)
        converted.update({key: _in_float64(value) for key, value in batch.items()})
        return converted
    if isinstance(batch, (tuple, list)):
        make = getattr(type(batch), "_make", type(batch))  # a named tuple takes its fields through _make
        return make([_in_float64(value) for value in batch])
    return batch
