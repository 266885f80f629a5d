"""From an operation that autograd recorded, and the gradient at its output, to its local second derivative."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.operations.local_curvature import (
    Applied,
    Diagonal,
    LocalCurvature,
    MatrixProduct,
    Projected,
    RankTwo,
    Reshaped,
    Sum,
    TwoByTwo,
    WeightedSpread,
)
from spiritlevel.inputs.torch_internals import nodes, operations
from spiritlevel.inputs.torch_internals.backward import vjp


def pointwise_curvature(node: Any, source: GradientEdge, gradient: Tensor) -> LocalCurvature:
    """M = diag(g φ''(h)) of a function φ of every entry, which may be several operations, by differentiating twice."""
    slope = _slope(node, source, gradient)
    if slope is None:
        return Diagonal(torch.zeros_like(gradient))
    (bend,) = vjp(slope, [source], torch.ones_like(slope), retain_graph=True, allow_unused=True, materialize_grads=True)
    return Diagonal(bend.detach())


def applied_curvature(node: Any, source: GradientEdge, gradient: Tensor) -> LocalCurvature:
    """M by its products alone, each by differentiating twice."""
    slope = _slope(node, source, gradient)
    shape = torch.Size(nodes.shape_of(source.node, source.output_nr))

    def apply(tangent: Tensor) -> Tensor:
        if slope is None:
            return torch.zeros_like(tangent)
        (found,) = vjp(slope, [source], tangent, retain_graph=True, allow_unused=True, materialize_grads=True)
        return found.detach()

    return Applied(apply, shape)


def _slope(node: Any, source: GradientEdge, gradient: Tensor) -> Tensor | None:
    """Return g φ'(h) with the graph of its own computation, None where it does not depend on h."""
    (slope,) = vjp(GradientEdge(node, 0), [source], gradient, create_graph=True, allow_unused=True)
    return slope if slope is not None and slope.requires_grad else None


def product_curvature(shapes: Sequence[tuple[int, ...]], gradient: Tensor) -> LocalCurvature:
    """A product a b, entry by entry: M = [[0, g], [g, 0]]."""
    return TwoByTwo(gradient, torch.zeros_like(gradient), (torch.Size(shapes[0]), torch.Size(shapes[1])))


def quotient_curvature(node: Any, shapes: Sequence[tuple[int, ...]], gradient: Tensor) -> LocalCurvature:
    """A quotient a/b: M = [[0, -g/b²], [-g/b², 2ga/b³]]."""
    over, under = nodes.kept(node, "self"), nodes.kept(node, "other")
    mixed = -gradient / under.square()
    return TwoByTwo(mixed, -2 * mixed * over / under, (torch.Size(shapes[0]), torch.Size(shapes[1])))


def slope_curvature(node: Any, gradient: Tensor) -> LocalCurvature:
    """M of a φ'(h) over a and what φ kept, k: [[0, g s'(k)], [g s'(k), g a s''(k)]] with s(k) = φ'(h)."""
    mixed, second = slope_factors(node)
    shape = gradient.shape
    return TwoByTwo(gradient * mixed, gradient * second * nodes.kept(node, "grad_output"), (shape, shape))


def bent_slope_curvature(node: Any, gradient: Tensor) -> LocalCurvature:
    """The same over what φ kept alone, where nothing is asked of a."""
    return Diagonal(gradient * slope_factors(node)[1] * nodes.kept(node, "grad_output"))


def slope_factors(node: Any) -> tuple[Tensor, Tensor]:
    """Return s' and s'' of a slope φ' = s(k) in what the function kept."""
    name = nodes.name_of(node)
    kept = nodes.kept(node, operations.SLOPES[name])
    if name == operations.TANH_SLOPE:  # 1 - k²
        return -2 * kept, torch.full_like(kept, -2.0)
    if name == operations.SIGMOID_SLOPE:  # k - k²
        return 1 - 2 * kept, torch.full_like(kept, -2.0)
    if name == operations.SOFTPLUS_SLOPE:  # σ(βk), and 1 where torch takes it for straight
        beta = float(nodes.kept(node, "beta"))
        share = torch.sigmoid(beta * kept)
        bend = torch.where(beta * kept > nodes.kept(node, "threshold"), 0.0, beta * share * (1 - share))
        return bend, beta * bend * (1 - 2 * share)
    if nodes.kept(node, "approximate") != "none":
        raise NotImplementedError("the slope of GELU's approximation by tanh")
    density = torch.exp(-kept.square() / 2) / math.sqrt(2 * math.pi)  # Φ(k) + kφ(k)
    return density * (2 - kept.square()), density * (kept**3 - 4 * kept)


def matrix_product_curvature(shapes: Sequence[tuple[int, ...]], gradient: Tensor) -> LocalCurvature:
    """A product of two matrices of activations."""
    return MatrixProduct(gradient, shapes[0][-1])


def softmax_curvature(node: Any, gradient: Tensor) -> LocalCurvature:
    """p = softmax(z): M = Σ_c d_c (e_c - p)(e_c - p)ᵀ with d = p (g - gᵀp), whose sum is 0."""
    shares = nodes.kept(node, "result")
    dim = _dimension(node, shares)
    about = gradient - (shares * gradient).sum(dim, keepdim=True)
    return WeightedSpread(shares * about, shares, dim)


def log_softmax_curvature(node: Any, gradient: Tensor) -> LocalCurvature:
    """log p: M = -(Σ_c g_c)(diag(p) - ppᵀ), and diag(p) - ppᵀ = Σ_c p_c (e_c - p)(e_c - p)ᵀ."""
    shares = nodes.kept(node, "result").exp()
    dim = _dimension(node, shares)
    return WeightedSpread(-gradient.sum(dim, keepdim=True) * shares, shares, dim)


def _dimension(node: Any, like: Tensor) -> int:
    """Return the dimension counted from the last, so that draws may stand before all others."""
    dim = int(nodes.kept(node, "dim"))
    return dim - 2**64 if dim >= like.ndim else dim - like.ndim  # torch keeps a negative number as a large one


def layer_norm_curvature(node: Any, gradient: Tensor) -> LocalCurvature:
    """(x - mean)/σ γ + β over the last dimensions."""
    inputs = nodes.kept(node, "input")
    weight = nodes.saved(node, "weight")
    dims = tuple(range(-len(nodes.kept(node, "normalized_shape")), 0))
    seen = gradient if weight is None else gradient * weight.detach()
    return _normalised(inputs - nodes.kept(node, "result1"), nodes.kept(node, "result2"), seen, dims)


def group_norm_curvature(node: Any, gradient: Tensor) -> LocalCurvature:
    """The same over groups of channels."""
    inputs, weight = nodes.kept(node, "input"), nodes.saved(node, "weight")
    mean, inverse = nodes.kept(node, "result1"), nodes.kept(node, "result2")
    channels = [1, -1] + [1] * (inputs.ndim - 2)
    seen = gradient if weight is None else gradient * weight.detach().reshape(channels)
    groups = (len(inputs), int(nodes.kept(node, "group")), -1)
    statistics = [part.reshape(*groups[:2], 1) for part in (mean, inverse)]
    part = _normalised(inputs.reshape(groups) - statistics[0], statistics[1], seen.reshape(groups), (-1,))
    return Reshaped(part, groups, inputs.shape)


def rms_norm_curvature(inputs: Tensor, inverse: Tensor, gradient: Tensor, dims: tuple[int, ...]) -> LocalCurvature:
    """x/σ with σ² the mean square of a row and a small number."""
    return _normalised(inputs, inverse, gradient, dims, centred=False)


def _normalised(
    about: Tensor, inverse: Tensor, gradient: Tensor, dims: tuple[int, ...], *, centred: bool = True
) -> LocalCurvature:
    """M of v·c/σ in every row, with c = Px about its mean, σ² = ‖c‖²/n + ε and 1/σ the inverse.

    M = -κΠ - (a cᵀ + c aᵀ)/(nσ³): κ = v·c/(nσ³), Π the projector P without c, a what Π leaves of v, and a further
    3/2 (v·c)/‖c‖² c of what ε is of σ².
    """
    entries = about.numel() // inverse.numel()  # of a row

    def projected(values: Tensor) -> Tensor:
        values = values - values.mean(dims, keepdim=True) if centred else values
        return values - about * ((about * values).sum(dims, keepdim=True) / safe)

    length = about.square().sum(dims, keepdim=True)
    safe = torch.where(length > 0, length, 1.0)
    scale = inverse**3 / entries
    along = (gradient * about).sum(dims, keepdim=True)
    floor = (1 - length * inverse.square() / entries).clamp(min=0)
    left = projected(gradient) + about * (1.5 * along * floor / safe)
    # A row without any length is curved by ε alone: Π is P there, and the pair nothing.
    return Sum([Projected(-along * scale, projected, about.shape), RankTwo(-left * scale, about, dims)])
