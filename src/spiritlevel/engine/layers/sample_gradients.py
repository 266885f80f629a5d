"""Each sample's gradient with respect to one parameter, in the forms layers give it.

A *gradient* here is that of one scalar a sample and column: M_kb = ∂(s_k·f_b)/∂W, with s_k a column of the loss's
factor.  Everything the curvature pass wants is a sum over samples and columns of squares of linear functionals of M, so
M itself is formed only where a layer is applied at several positions and only for a few samples at a time.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.inputs.torch_internals.modules import padding_around
from spiritlevel.inputs.weight_matrices import WeightView, as_matrix


def concatenated(tensors: list[Tensor], dim: int) -> Tensor:
    """Concatenate, without a copy where there is one tensor only."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim)


def pad(module: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: Tensor) -> Tensor:
    """Return a convolution's inputs with its padding around them."""
    padding = padding_around(module)
    if not any(padding):
        return inputs
    return F.pad(inputs, padding, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)


def patches(module: Any, inputs: Tensor) -> Tensor:
    """Return what a convolution multiplies its kernel with, (B, groups, positions, inputs·kernel), of padded inputs."""
    spatial = len(module.kernel_size)
    for dim in range(spatial):
        size, step, dilation = module.kernel_size[dim], module.stride[dim], module.dilation[dim]
        inputs = inputs.unfold(2 + dim, dilation * (size - 1) + 1, step)[..., ::dilation]
    # (B, C, *positions, *kernel) -> (B, G, C/G · kernel, T): with the positions last the copy runs along rows of the
    # image, several times faster than along kernels; what follows multiplies the transposed view as it is.
    positions = math.prod(inputs.shape[2 : 2 + spatial])
    kernels_first = inputs.permute(0, 1, *range(2 + spatial, 2 + 2 * spatial), *range(2, 2 + spatial))
    return kernels_first.reshape(len(inputs), module.groups, -1, positions).transpose(2, 3)


class SampleGradients(ABC):
    """Gradients M_kb of K columns for the B samples of a batch, with respect to one parameter."""

    samples: int

    @abstractmethod
    def squared_norms(self) -> Tensor:
        """‖M_kb‖², (K, B)."""

    def total_norms(self) -> Tensor:
        """Σ_k ‖M_kb‖², (B,), where the columns need not be told apart."""
        return self.squared_norms().sum(0)

    def sampled_norms(self) -> Tensor:
        """‖M_kb‖², (K, B), of columns that were drawn: rounding may take more digits than of those that are exact."""
        return self.squared_norms()

    @abstractmethod
    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        """Add Σ_kb c_kb M_kb² (entrywise), over each fold's share of the columns, to ``into`` (F, *shape)."""

    @abstractmethod
    def row_products(self, view: WeightView) -> Tensor:
        """⟨w_j, M_kbj⟩ over each row j (the weights into one output), (K, B, rows)."""

    @abstractmethod
    def column_products(self, view: WeightView) -> Tensor:
        """⟨w_i, M_kbi⟩ over each column i (the weights out of one input channel), (K, B, columns)."""

    @abstractmethod
    def transposed_norms(self, view: WeightView) -> Tensor:
        """‖WᵀM_kb‖²_F, (K, B): Petzka et al. (2021)'s relative flatness."""

    @abstractmethod
    def combine(self, coefficients: Tensor) -> Tensor:
        """Σ_kb c_kb M_kb for coefficients (K, B), in the parameter's shape."""

    @abstractmethod
    def formed(self) -> DirectGradients:
        """Return the gradients as they are."""

    @abstractmethod
    def part(self, part: slice) -> SampleGradients:
        """Return those of some samples."""

    def chunks(self, numbers: int) -> Iterator[tuple[slice, SampleGradients]]:
        """Yield slices of the batch small enough that forming their gradients takes about ``numbers`` numbers."""
        yield slice(0, self.samples), self


class DirectGradients(SampleGradients):
    """Gradients held as they are, (K, B, *shape)."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.samples = values.shape[1]

    def formed(self) -> DirectGradients:
        return self

    def part(self, part: slice) -> DirectGradients:
        return DirectGradients(self.values[:, part])

    def squared_norms(self) -> Tensor:
        # A parameter may be a single number.  One pass: squares written out first would be as many numbers again.
        found: Tensor = torch.linalg.vector_norm(self.values.reshape(*self.values.shape[:2], -1), dim=2).square()
        return found

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        folds = len(into)
        weights = coefficients.reshape(folds, 1, -1)  # a fold's columns lie side by side
        into += (weights @ self.values.square().reshape(folds, weights.shape[2], -1)).reshape(into.shape)

    def _matrix_product(self, view: WeightView) -> Tensor:
        return as_matrix(view.module, self.values, view.weight) * view.matrix  # (K, B, G, O, I, kernel)

    def row_products(self, view: WeightView) -> Tensor:
        return self._matrix_product(view).sum((-1, -2)).flatten(2)

    def column_products(self, view: WeightView) -> Tensor:
        return self._matrix_product(view).sum((-1, -3)).flatten(2)

    def transposed_norms(self, view: WeightView) -> Tensor:
        # ‖WᵀM‖² = ⟨M, (WWᵀ)M⟩: outputs² work instead of (inputs·kernel)².
        matrix = as_matrix(view.module, self.values, view.weight).flatten(-2)  # (K, B, G, O, I·kernel)
        return (matrix * (view.gram @ matrix)).sum((2, 3, 4))

    def combine(self, coefficients: Tensor) -> Tensor:
        found: Tensor = torch.tensordot(coefficients, self.values, dims=2)
        return found


class OuterGradients(SampleGradients):
    """Gradients M = Σ_t δ_t a_tᵀ in each group: inputs a (B, G, T, I·kernel), output gradients δ (K, B, G, T, O)."""

    inputs: Tensor
    deltas: Tensor
    _formed: DirectGradients | None = None  # until squares, or anything else, need them so

    def __init__(self, inputs: Tensor, deltas: Tensor, shape: torch.Size) -> None:
        self.inputs = inputs
        self.deltas = deltas
        self.shape = shape
        self.samples = len(inputs)

    @property
    def one_position(self) -> bool:
        """Whether the layer is applied once a sample, so that M is an outer product."""
        return self.inputs.shape[2] == 1

    def formed(self) -> DirectGradients:
        """Form the gradients, once: needed where squares are taken after a sum over positions."""
        if self._formed is None:
            self._formed = self._form()
        return self._formed

    def _form(self) -> DirectGradients:
        columns, samples, groups, _, outputs = self.deltas.shape
        matrix = torch.bmm(self._stacked, self.inputs.flatten(0, 1)).reshape(samples, groups, columns, outputs, -1)
        return DirectGradients(matrix.permute(2, 0, 1, 3, 4).reshape(columns, samples, *self.shape))

    @property
    def _stacked(self) -> Tensor:
        """The deltas (B·G, K·O, T): all columns of a sample share its inputs, so one product a sample serves them."""
        columns, samples, groups, positions, outputs = self.deltas.shape
        return self.deltas.permute(1, 2, 0, 4, 3).reshape(samples * groups, columns * outputs, positions)

    def total_norms(self) -> Tensor:
        if self.one_position:
            return super().total_norms()
        # The product the other way round is quicker: its rows are patches, which lie along the positions.
        matrix = torch.bmm(self.inputs.flatten(0, 1).transpose(1, 2), self._stacked.transpose(1, 2))
        # Row by row: a sum over all of them at once would lose digits in float32.
        rows: Tensor = torch.linalg.vector_norm(matrix, dim=2).double().square()
        return rows.reshape(self.samples, -1).sum(1)

    def squared_norms(self) -> Tensor:
        if not self.one_position:
            return self.formed().squared_norms()
        return (self.deltas.square().sum((-1, -2)) * self.inputs.square().sum((-1, -2))).sum(2)

    def sampled_norms(self) -> Tensor:
        columns, _, positions, outputs, fan_in = self._sizes()
        by_positions = positions * (fan_in + columns * outputs)  # Σ_ts (δ_t·δ_s)(a_t·a_s): all columns share a_t·a_s
        if self.one_position or self._formed is not None or by_positions >= columns * outputs * fan_in:
            return self.squared_norms()
        inner = self.inputs @ self.inputs.transpose(2, 3)  # (B, G, T, T)
        products = (inner @ self.deltas) * self.deltas
        return products.sum((2, 3, 4), dtype=torch.float64).clamp(min=0)

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        if not self.one_position:
            return self.formed().add_squares(into, coefficients)
        # Columns of a fold add up before the product with a²: one matrix product for all of them.
        weighted = self.deltas[:, :, :, 0].square() * coefficients[:, :, None, None]
        deltas = weighted.unflatten(0, (len(into), -1)).sum(1)  # (F, B, G, O)
        product = deltas.permute(0, 2, 3, 1) @ self.inputs[:, :, 0].square().transpose(0, 1)  # (F, G, O, I·kernel)
        into += product.reshape(into.shape)
        return None

    def row_products(self, view: WeightView) -> Tensor:
        if not self.one_position:
            return self.formed().row_products(view)
        # δ_j z_j, z the pre-activation without bias.
        outputs = torch.einsum("goi,bgi->bgo", view.flat, self.inputs[:, :, 0])
        return (self.deltas[:, :, :, 0] * outputs).flatten(2)

    def _pulled(self, view: WeightView) -> Tensor:
        # Wᵀδ is computed, not read off the graph: the input may feed other branches too.
        return torch.einsum("goi,kbgo->kbgi", view.flat, self.deltas[:, :, :, 0])

    def column_products(self, view: WeightView) -> Tensor:
        if not self.one_position:
            return self.formed().column_products(view)
        kernel = view.matrix.shape[-1]
        found: Tensor = (self.inputs[:, :, 0] * self._pulled(view)).unflatten(-1, (-1, kernel)).sum(-1).flatten(2)
        return found

    def transposed_norms(self, view: WeightView) -> Tensor:
        if not self.one_position:
            return self.formed().transposed_norms(view)
        return (self._pulled(view).square().sum(-1) * self.inputs[:, :, 0].square().sum(-1)).sum(2)

    def combine(self, coefficients: Tensor) -> Tensor:
        if self._formed is not None:
            return self._formed.combine(coefficients)
        deltas = (self.deltas * coefficients[:, :, None, None, None]).sum(0)  # (B, G, T, O)
        return torch.einsum("bgto,bgti->goi", deltas, self.inputs).reshape(self.shape)

    def chunks(self, numbers: int) -> Iterator[tuple[slice, SampleGradients]]:
        columns, groups, positions, outputs, fan_in = self._sizes()
        each = groups * (columns * outputs * (positions + fan_in) + positions * fan_in)
        step = self.samples if positions == 1 else max(1, numbers // each)
        for start in range(0, self.samples, step):
            part = slice(start, start + step)
            yield part, self.part(part)

    def _sizes(self) -> tuple[int, int, int, int, int]:
        """Columns, groups, positions, outputs and inputs·kernel of a group."""
        columns, _, groups, positions, outputs = self.deltas.shape
        return columns, groups, positions, outputs, self.inputs.shape[3]

    def part(self, part: slice) -> OuterGradients:
        return OuterGradients(self.inputs[part], self.deltas[:, part], self.shape)


Poolings = Sequence["Pooling | None"]


@dataclass(frozen=True)
class Pooling:
    """Where the values of a max-pooled output came from: no other position passes any gradient back.

    After convolution, ReLU and pooling by two that is one position in four, the same for every column.
    """

    positions: Tensor  # (B, C, pooled), index among the positions before pooling
    total: int  # positions before pooling

    def part(self, part: slice) -> Pooling:
        """Return the pooling of some samples."""
        return Pooling(self.positions[part], self.total)

    def unpool(self, deltas: Tensor) -> Tensor:
        """Return those at the positions they belong to, (K, B, C, total); windows may share a position."""
        columns, samples, channels, _ = deltas.shape
        # Samples first in memory, as all else.
        zeros = deltas.new_zeros(samples, columns, channels, self.total)
        index = self.positions[:, None].expand(-1, columns, -1, -1)
        return zeros.scatter_add_(3, index, deltas.transpose(0, 1)).transpose(0, 1)


class ConvolutionGradients(OuterGradients):
    """Those of a convolution, whose patches, and gradients before a pooling, are written out for few samples at a time.

    Written out for a whole batch they would leave the processor's cache before they are used.
    """

    def __init__(
        self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: list[Tensor], deltas: list[Tensor], poolings: Poolings
    ) -> None:
        self.module = module
        self.calls = (inputs, deltas, poolings)
        self.shape = module.weight.shape
        self.samples = len(inputs[0])

    @cached_property
    def inputs(self) -> Tensor:  # type: ignore[override]  # formed when asked for
        """The patches, (B, G, T, I·kernel)."""
        return concatenated([patches(self.module, a) for a in self.calls[0]], 2)

    @cached_property
    def deltas(self) -> Tensor:  # type: ignore[override]  # formed when asked for
        """The gradients of the convolution's own output, (K, B, G, T, O)."""
        groups, outputs = self.module.groups, self.module.out_channels // self.module.groups
        flat = [d if pooling is None else pooling.unpool(d) for d, pooling in zip(self.calls[1], self.calls[2])]
        return concatenated([d.reshape(*d.shape[:2], groups, outputs, -1).transpose(3, 4) for d in flat], 3)

    def _sizes(self) -> tuple[int, int, int, int, int]:
        # Told by the shapes, before anything is written out.
        groups, outputs = self.module.groups, self.module.out_channels // self.module.groups
        positions = sum(d.shape[3] if p is None else p.total for d, p in zip(self.calls[1], self.calls[2]))
        fan_in = self.module.in_channels // groups * math.prod(self.module.kernel_size)
        return len(self.calls[1][0]), groups, positions, outputs, fan_in

    def part(self, part: slice) -> ConvolutionGradients:
        inputs, deltas, poolings = self.calls
        return ConvolutionGradients(
            self.module,
            [a[part] for a in inputs],
            [d[:, part] for d in deltas],
            [None if pooling is None else pooling.part(part) for pooling in poolings],
        )


class IndexedGradients(SampleGradients):
    """Gradients of an embedding: only the rows of the tokens a sample holds differ from zero.

    Positions holding the same token add up before squaring; each sample's first position of a token carries the sum.
    """

    def __init__(self, tokens: Tensor, deltas: Tensor, shape: torch.Size) -> None:  # (B, T), (K, B, T, D)
        same = tokens[:, :, None] == tokens[:, None, :]
        first = ~torch.tril(same, diagonal=-1).any(-1)
        self.tokens = tokens
        self.values = (same.to(deltas.dtype) @ deltas) * first[..., None]  # (K, B, T, D)
        self.shape = shape
        self.samples = len(tokens)

    def formed(self) -> DirectGradients:
        columns, samples, _, width = self.values.shape
        dense = self.values.new_zeros(columns, samples, *self.shape)
        index = self.tokens[None, :, :, None].expand(columns, -1, -1, width)
        return DirectGradients(dense.scatter_add_(2, index, self.values))

    def part(self, part: slice) -> IndexedGradients:
        found = copy.copy(self)  # the positions of a token have been added up
        found.tokens, found.values = self.tokens[part], self.values[:, part]
        found.samples = len(found.tokens)
        return found

    def _by_token(self, values: Tensor) -> Tensor:  # (B, T, D) -> (V, D)
        zeros = torch.zeros(self.shape, dtype=values.dtype, device=values.device)
        return zeros.index_add_(0, self.tokens.reshape(-1), values.flatten(0, 1))

    def squared_norms(self) -> Tensor:
        return self.values.square().sum((2, 3))

    def add_squares(self, into: Tensor, coefficients: Tensor) -> None:
        weighted = self.values.square() * coefficients[:, :, None, None]
        for fold, own in zip(into, weighted.unflatten(0, (len(into), -1)).sum(1)):
            fold += self._by_token(own)

    def row_products(self, view: WeightView) -> Tensor:
        return (view.weight.detach()[self.tokens] * self.values).sum(2)

    def column_products(self, view: WeightView) -> Tensor:
        products = (view.weight.detach()[self.tokens] * self.values).sum(-1)  # (K, B, T)
        out = torch.zeros(*products.shape[:2], self.shape[0], dtype=products.dtype, device=products.device)
        return out.scatter_add_(2, self.tokens.expand_as(products), products)

    def transposed_norms(self, view: WeightView) -> Tensor:
        # The matrix is the transposed weight (D, V): WᵀM has entries ⟨w_v, m_v'⟩.
        return (self.values @ view.gram[0] * self.values).sum((2, 3))

    def combine(self, coefficients: Tensor) -> Tensor:
        return self._by_token((self.values * coefficients[:, :, None, None]).sum(0))
