"""What is known of each layer type: its weight as a matrix, and each sample's gradient from what went in and out.

A *gradient* here is that of one scalar a sample (a column of the loss's factor, pulled back): M = ∂(s·f)/∂W, one a
sample.  Everything the curvature pass wants is a sum over samples and columns of squares of linear functionals of M,
so M itself is formed only where a layer is applied at several positions and only for a few samples at a time.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# --- weights as matrices -------------------------------------------------------------------------------------------


def matrix_shape(module: nn.Module, weight: Tensor) -> tuple[int, int, int, int]:
    """Return (groups, outputs, inputs, kernel positions) of a weight of two or more dimensions."""
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
        groups = module.groups
        return groups, weight.shape[0] // groups, weight.shape[1], math.prod(weight.shape[2:])
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        groups = module.groups
        return groups, weight.shape[1], weight.shape[0] // groups, math.prod(weight.shape[2:])
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return 1, weight.shape[1], weight.shape[0], 1
    return 1, weight.shape[0], math.prod(weight.shape[1:]), 1


def as_matrix(module: nn.Module, tensor: Tensor, weight: Tensor) -> Tensor:
    """View a tensor shaped (..., *weight.shape) as (..., groups, outputs, inputs, kernel positions)."""
    lead = tensor.shape[: tensor.ndim - weight.ndim]
    groups, outputs, inputs, kernel = matrix_shape(module, weight)
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return tensor.reshape(*lead, groups, inputs, outputs, kernel).transpose(-3, -2)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return tensor.transpose(-1, -2).reshape(*lead, groups, outputs, inputs, kernel)
    return tensor.reshape(*lead, groups, outputs, inputs, kernel)


def from_matrix(module: nn.Module, matrix: Tensor, weight: Tensor) -> Tensor:
    """Undo :func:`as_matrix`."""
    lead = matrix.shape[:-4]
    if isinstance(module, (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)):
        return matrix.transpose(-3, -2).reshape(*lead, *weight.shape)
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
        return matrix.reshape(*lead, weight.shape[1], weight.shape[0]).transpose(-1, -2)
    return matrix.reshape(*lead, *weight.shape)


@dataclass(frozen=True)
class WeightView:
    """A weight as a matrix, with what the quadratic forms need of it computed once."""

    module: nn.Module
    weight: Tensor

    @cached_property
    def matrix(self) -> Tensor:  # (G, O, I, K)
        """The weight by groups, outputs, inputs and kernel positions."""
        return as_matrix(self.module, self.weight.detach(), self.weight)

    @cached_property
    def flat(self) -> Tensor:  # (G, O, I*K)
        """The weight with kernel positions unfolded into inputs."""
        return self.matrix.flatten(-2)

    @cached_property
    def gram(self) -> Tensor:  # (G, O, O)
        """W Wᵀ of each group."""
        return self.flat @ self.flat.transpose(-1, -2)


# --- one sample's gradient, in the three forms layers give it ------------------------------------------------------


class SampleGradients(ABC):
    """Gradients M_b of a batch's samples with respect to one parameter."""

    count: int

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """‖M_b‖² of each sample, (B,)."""

    @abstractmethod
    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        """Add Σ_b c_b M_b² (entrywise) to ``into``."""

    @abstractmethod
    def row_products(self, view: WeightView) -> Tensor:
        """⟨w_j, M_bj⟩ over each row j (the weights into one output), (B, rows)."""

    @abstractmethod
    def column_products(self, view: WeightView) -> Tensor:
        """⟨w_k, M_bk⟩ over each column k (the weights out of one input channel), (B, columns)."""

    @abstractmethod
    def transposed_norms(self, view: WeightView) -> Tensor:
        """‖WᵀM_b‖²_F of each sample, (B,): Petzka et al. (2021)'s relative flatness."""

    @abstractmethod
    def dot(self, vectors: Tensor) -> Tensor:
        """⟨M_b, V_k⟩ for ``vectors`` (K, *shape), as (K, B)."""

    @abstractmethod
    def combine(self, coefficients: Tensor) -> Tensor:
        """Σ_b c_kb M_b for coefficients (K, B), as (K, *shape)."""

    def chunks(self, numbers: int) -> Iterator[tuple[slice, SampleGradients]]:
        """Yield slices of the batch small enough that forming their gradients takes about ``numbers`` numbers."""
        yield slice(0, self.count), self


class DirectGradients(SampleGradients):
    """Gradients held as they are, (B, *shape)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.count = len(values)

    @property
    def flat(self) -> Tensor:
        return self.values.flatten(1)

    def squared_norms(self) -> Tensor:
        return self.flat.square().sum(1)

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        into += torch.tensordot(coefficients, self.values.square(), dims=1).reshape(into.shape)

    def _matrix_product(self, view: WeightView) -> Tensor:
        return as_matrix(view.module, self.values, view.weight) * view.matrix  # (B, G, O, I, K)

    def row_products(self, view: WeightView) -> Tensor:
        return self._matrix_product(view).sum((-1, -2)).flatten(1)

    def column_products(self, view: WeightView) -> Tensor:
        return self._matrix_product(view).sum((-1, -3)).flatten(1)

    def transposed_norms(self, view: WeightView) -> Tensor:
        # ‖WᵀM‖² = ⟨M, (WWᵀ)M⟩: outputs² work instead of (inputs·kernel)².
        matrix = as_matrix(view.module, self.values, view.weight).flatten(-2)  # (B, G, O, IK)
        return (matrix * (view.gram @ matrix)).sum((1, 2, 3))

    def dot(self, vectors: Tensor) -> Tensor:
        return vectors.flatten(1) @ self.flat.T

    def combine(self, coefficients: Tensor) -> Tensor:
        return (coefficients @ self.flat).reshape(len(coefficients), *self.values.shape[1:])


class OuterGradients(SampleGradients):
    """Gradients M = Σ_t δ_t a_tᵀ in each group, from inputs a (B, G, T, I·K) and output gradients δ (B, G, T, O)."""

    def __init__(self, inputs: Tensor, deltas: Tensor, shape: torch.Size) -> None:
        self.inputs = inputs
        self.deltas = deltas
        self.shape = shape
        self.count = len(inputs)
        self.one_position = inputs.shape[2] == 1

    @cached_property
    def direct(self) -> DirectGradients:
        """The gradients formed: needed where squares are taken after a sum over positions."""
        matrix = self.deltas.transpose(-1, -2) @ self.inputs  # (B, G, O, IK)
        return DirectGradients(matrix.reshape(self.count, *self.shape))

    def squared_norms(self) -> Tensor:
        if not self.one_position:
            return self.direct.squared_norms()
        return (self.deltas.square().sum(-1) * self.inputs.square().sum(-1)).sum((1, 2))

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        if not self.one_position:
            return self.direct.add_squares(into, coefficients)
        deltas = self.deltas[:, :, 0].square() * coefficients[:, None, None]  # (B, G, O)
        product = deltas.permute(1, 2, 0) @ self.inputs[:, :, 0].square().transpose(0, 1)  # (G, O, IK)
        into += product.reshape(into.shape)
        return None

    def row_products(self, view: WeightView) -> Tensor:
        if not self.one_position:
            return self.direct.row_products(view)
        # δ_j z_j, z the pre-activation without bias.
        outputs = torch.einsum("goi,bgi->bgo", view.flat, self.inputs[:, :, 0])
        return (self.deltas[:, :, 0] * outputs).flatten(1)

    def column_products(self, view: WeightView) -> Tensor:
        if not self.one_position:
            return self.direct.column_products(view)
        pulled = torch.einsum("goi,bgo->bgi", view.flat, self.deltas[:, :, 0])
        kernel = view.matrix.shape[-1]
        return (self.inputs[:, :, 0] * pulled).unflatten(-1, (-1, kernel)).sum(-1).flatten(1)

    def transposed_norms(self, view: WeightView) -> Tensor:
        if not self.one_position:
            return self.direct.transposed_norms(view)
        # Wᵀδ is computed, not read off the graph: the input may feed other branches too.
        pulled = torch.einsum("goi,bgo->bgi", view.flat, self.deltas[:, :, 0])
        return (pulled.square().sum(-1) * self.inputs[:, :, 0].square().sum(-1)).sum(1)

    def dot(self, vectors: Tensor) -> Tensor:
        groups, outputs = self.deltas.shape[1], self.deltas.shape[3]
        matrices = vectors.reshape(len(vectors), groups, outputs, -1)
        pushed = torch.einsum("bgti,kgoi->kbgto", self.inputs, matrices)
        return (pushed * self.deltas).sum((2, 3, 4))

    def combine(self, coefficients: Tensor) -> Tensor:
        scaled = coefficients[:, :, None, None, None] * self.deltas  # (K, B, G, T, O)
        return torch.einsum("kbgto,bgti->kgoi", scaled, self.inputs).reshape(len(coefficients), *self.shape)

    def chunks(self, numbers: int) -> Iterator[tuple[slice, SampleGradients]]:
        if self.one_position:
            yield slice(0, self.count), self
            return
        step = max(1, numbers // math.prod(self.shape))
        for start in range(0, self.count, step):
            part = slice(start, start + step)
            yield part, OuterGradients(self.inputs[part], self.deltas[part], self.shape)


class IndexedGradients(SampleGradients):
    """Gradients of an embedding: only the rows of the tokens a sample holds differ from zero.

    Positions holding the same token add up before squaring; each sample's first position of a token carries the sum.
    """

    def __init__(self, tokens: Tensor, deltas: Tensor, shape: torch.Size) -> None:  # (B, T), (B, T, D)
        same = tokens[:, :, None] == tokens[:, None, :]
        first = ~torch.tril(same, diagonal=-1).any(-1)
        self.tokens = tokens
        self.values = (same.to(deltas.dtype) @ deltas) * first[..., None]  # (B, T, D)
        self.shape = shape
        self.count = len(tokens)

    def _by_token(self, values: Tensor, size: torch.Size) -> Tensor:
        return torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(
            0, self.tokens.reshape(-1), values.flatten(0, 1)
        )

    def squared_norms(self) -> Tensor:
        return self.values.square().sum((1, 2))

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        into += self._by_token(self.values.square() * coefficients[:, None, None], self.shape)

    def row_products(self, view: WeightView) -> Tensor:
        return (view.weight.detach()[self.tokens] * self.values).sum(1)

    def column_products(self, view: WeightView) -> Tensor:
        products = (view.weight.detach()[self.tokens] * self.values).sum(-1)  # (B, T)
        out = torch.zeros(self.count, self.shape[0], dtype=products.dtype, device=products.device)
        return out.scatter_add_(1, self.tokens, products)

    def transposed_norms(self, view: WeightView) -> Tensor:
        # The matrix is the transposed weight (D, V): WᵀM has entries ⟨w_v, m_v'⟩.
        return (self.values @ view.gram[0] * self.values).sum((1, 2))

    def dot(self, vectors: Tensor) -> Tensor:
        return (vectors[:, self.tokens] * self.values).sum((2, 3))

    def combine(self, coefficients: Tensor) -> Tensor:
        return torch.stack([self._by_token(self.values * c[:, None, None], self.shape) for c in coefficients])


# --- rules: from a module's calls to its parameters' gradients -----------------------------------------------------

Gradients = dict[str, SampleGradients]
FromDeltas = Callable[[list[Tensor]], Gradients]
# A rule looks at the inputs of a module's calls once a batch, and then turns the gradients of the calls' outputs, once
# for each column, into the gradients of the module's parameters.  Several calls only add positions.
Rule = Callable[[Any, list[Tensor]], FromDeltas]


def _linear(module: nn.Linear, inputs: list[Tensor]) -> FromDeltas:
    joined = torch.cat([a.reshape(len(a), -1, a.shape[-1]) for a in inputs], 1)[:, None]

    def gradients(deltas: list[Tensor]) -> Gradients:
        delta = torch.cat([d.reshape(len(d), -1, d.shape[-1]) for d in deltas], 1)
        found: Gradients = {"weight": OuterGradients(joined, delta[:, None], module.weight.shape)}
        if module.bias is not None:
            found["bias"] = DirectGradients(delta.sum(1))
        return found

    return gradients


def unfold(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: Tensor) -> Tensor:
    """Return the patches a convolution multiplies its kernel with, (B, groups, positions, inputs·kernel)."""
    spatial = len(module.kernel_size)
    # torch keeps the padding of every mode, 'same' included, in the order F.pad wants it.
    padding = module._reversed_padding_repeated_twice
    if any(padding):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        inputs = F.pad(inputs, padding, mode=mode)
    for dim in range(spatial):
        size, step, dilation = module.kernel_size[dim], module.stride[dim], module.dilation[dim]
        inputs = inputs.unfold(2 + dim, dilation * (size - 1) + 1, step)[..., ::dilation]
    # (B, C, *positions, *kernel) -> (B, G, T, C/G · K)
    positions = math.prod(inputs.shape[2 : 2 + spatial])
    split = inputs.reshape(len(inputs), module.groups, -1, positions, math.prod(module.kernel_size))
    return split.transpose(2, 3).flatten(3)


def _convolution(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: list[Tensor]) -> FromDeltas:
    joined = torch.cat([unfold(module, a) for a in inputs], 2)
    groups, outputs = module.groups, module.out_channels // module.groups

    def gradients(deltas: list[Tensor]) -> Gradients:
        # (B, C, *positions) -> (B, G, T, C/G)
        delta = torch.cat([d.reshape(len(d), groups, outputs, -1).transpose(2, 3) for d in deltas], 2)
        found: Gradients = {"weight": OuterGradients(joined, delta, module.weight.shape)}
        if module.bias is not None:
            found["bias"] = DirectGradients(delta.sum(2).flatten(1))
        return found

    return gradients


def _embedding(module: nn.Embedding, inputs: list[Tensor]) -> FromDeltas:
    tokens = torch.cat([a.reshape(len(a), -1) for a in inputs], 1)

    def gradients(deltas: list[Tensor]) -> Gradients:
        delta = torch.cat([d.reshape(len(d), -1, d.shape[-1]) for d in deltas], 1)
        if module.padding_idx is not None:  # torch gives the padding row no gradient
            delta = delta * (tokens != module.padding_idx)[..., None]
        return {"weight": IndexedGradients(tokens, delta, module.weight.shape)}

    return gradients


def _affine(standardise: Callable[[Any, Tensor], Tensor]) -> Rule:
    """Return the rule of a normalisation's γ·x̂ + β, where ``standardise`` gives x̂."""

    def rule(module: Any, inputs: list[Tensor]) -> FromDeltas:
        standardised = [standardise(module, a) for a in inputs]

        def gradients(deltas: list[Tensor]) -> Gradients:
            def total(tensors: list[Tensor]) -> DirectGradients:
                return DirectGradients(torch.stack([_to_channels(module, t) for t in tensors]).sum(0))

            found: Gradients = {"weight": total([d * x for d, x in zip(deltas, standardised)])}
            if getattr(module, "bias", None) is not None:
                found["bias"] = total(deltas)
            return found

        return gradients

    return rule


def _to_channels(module: Any, values: Tensor) -> Tensor:
    """Sum over positions: LayerNorm's weights sit on the last dimensions, the others' on dimension 1."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return values.reshape(len(values), -1, *module.weight.shape).sum(1)
    return values.reshape(len(values), values.shape[1], -1).sum(2)


def _prelu(module: nn.PReLU, inputs: list[Tensor]) -> FromDeltas:
    below = [a.clamp(max=0) for a in inputs]

    def gradients(deltas: list[Tensor]) -> Gradients:
        products = [d * a for d, a in zip(deltas, below)]
        if module.num_parameters == 1:
            summed = [t.flatten(1).sum(1, keepdim=True) for t in products]
        else:
            summed = [t.reshape(*t.shape[:2], -1).sum(2) for t in products]
        return {"weight": DirectGradients(torch.stack(summed).sum(0))}

    return gradients


_batch_norm = _affine(lambda m, a: F.batch_norm(a, m.running_mean, m.running_var, eps=m.eps))

_RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
    nn.LayerNorm: _affine(lambda m, a: F.layer_norm(a, m.normalized_shape, eps=m.eps)),
    nn.RMSNorm: _affine(lambda m, a: F.rms_norm(a, m.normalized_shape, eps=m.eps)),
    nn.GroupNorm: _affine(lambda m, a: F.group_norm(a, m.num_groups, eps=m.eps)),
    nn.PReLU: _prelu,
}


def rule_of(module: nn.Module) -> Rule | None:
    """Return the rule of a module, None where there is none.

    Only the type itself counts: a subclass may compute something else.  Whatever a rule claims is compared with
    autograd before it is used, so a wrong claim costs time, not truth.
    """
    if type(module) in _RULES:
        return _RULES[type(module)]
    if type(module).__name__ == "NonDynamicallyQuantizableLinear":
        return _linear
    return None
