"""Sketches of a second derivative Λ that is applied to vectors and never formed, by whatever structure it shows.

Of a function nobody knows anything about, Λ is seen only by its products. What makes sketches good is then looked for,
and counts only where it holds on vectors in general position, to rounding: that Λ is diagonal, that it is a
softmax's, that it maps what lies at one position to that position.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spiritlevel.inputs.losses.base import Factor, Sketch
from spiritlevel.inputs.losses.indefinite import signed_roots
from spiritlevel.inputs.losses.positions import from_positions, to_positions
from spiritlevel.inputs.losses.signs import index_signs
from spiritlevel.inputs.losses.softmax import softmax_hessian_times, softmax_sketch_times

# A position's own block of Λ is formed for this many outputs at most, and of so many entries in all for one sample.
# Both are of a sample, not of a batch, so that the batch's size changes no number.
MOST_OF_A_POSITION = 32
MOST_OF_A_SAMPLE = 1 << 20
# Output entries, over samples and draws, that are held in float64 at one time.
ENTRIES_AT_ONCE = 1 << 22
# Rounding errors that add up in a product, in units of its precision.
ROUNDINGS = 1e4
_GOLDEN = 0.6180339887498949

# Λ v at some outputs for vectors (K, B, *output shape), in the precision it was formed in.
Apply = Callable[[Tensor, Tensor], Tensor]


def general_vectors(outputs: Tensor, count: int) -> Tensor:
    """Fixed vectors ``(count, *outputs.shape)`` in float64, of random signs and sizes no two of which are equal.

    What holds of them holds of all vectors, but for a conspiracy. Signs alone would miss half the single couplings.
    """
    entries = outputs[0].numel()
    signs = index_signs(0, count, torch.arange(len(outputs), device=outputs.device), entries)
    sizes = 0.5 + (torch.arange(entries, dtype=torch.float64, device=outputs.device) * _GOLDEN).frac()
    return (signs * sizes).view(count, *outputs.shape)


def applied_factor(apply: Apply, outputs: Tensor, sketch: Sketch) -> Factor:
    """Sketches of Λ in as many draws as asked for, of one column or a signed pair each; see :class:`Factor`."""
    vectors = general_vectors(outputs, 2)
    products = apply(outputs, torch.cat([torch.ones_like(vectors[:1]), vectors]))
    rounding = ROUNDINGS * torch.finfo(products.dtype).eps
    products = products.double()
    diagonal, products = products[0], products[1:]
    axes = [-1] if outputs.dim() == 2 else [-1, 1]
    if _within(products - diagonal * vectors, rounding * _largest(products)):
        return _of_diagonal(diagonal, outputs, sketch)
    for axis in axes:
        scale = _scale_of_softmax(apply, outputs, axis, vectors, products, rounding)
        if scale is not None:
            return _of_softmax(scale, outputs, axis, sketch)
    for axis in axes:
        if to_positions(outputs, axis, 1).shape[1] > 1 and _keeps_positions(apply, outputs, axis, vectors[0]):
            return _of_positions(apply, outputs, axis, sketch)
    return _of_pairs(apply, outputs, None, sketch)


def _within(difference: Tensor, allowed: Tensor) -> bool:
    return bool((difference.abs() <= allowed).all())  # not a number is not within


def _largest(x: Tensor) -> Tensor:
    """The largest size of an entry of each sample, ``(K, B, 1, ...)``."""
    return x.abs().amax(tuple(range(2, x.dim())), keepdim=True)


def _of_diagonal(diagonal: Tensor, outputs: Tensor, sketch: Sketch) -> Factor:
    signs = sketch.signs(outputs, diagonal[0].numel(), dtype=outputs.dtype).view(-1, *outputs.shape)
    return _factor(lambda part: [signs[part] * d.to(outputs.dtype) for d in _signed_parts(diagonal)], outputs, sketch)


def _signed_parts(diagonal: Tensor) -> list[Tensor]:
    """Roots of the positive part, and of the negative one where there is any."""
    positive, negative = diagonal.clamp(min=0).sqrt(), (-diagonal).clamp(min=0).sqrt()
    return [positive, negative] if bool((negative > 0).any()) else [positive]


def _scale_of_softmax(
    apply: Apply, outputs: Tensor, axis: int, vectors: Tensor, products: Tensor, rounding: float
) -> Tensor | None:
    """Numbers s ``(B, T, 1)`` with Λ = s (diag(p) - ppᵀ) at each position, None where Λ is not of that form.

    However a cross-entropy is written, its labels, masks and weights enter through s alone, which does not depend on
    the outputs. It is read where no position is confident, for a confident one's curvature is lost in rounding; that
    it holds at the outputs themselves is then looked at.
    """
    logits = to_positions(outputs.detach().double(), axis, 1)
    if logits.shape[-1] < 2:
        return None
    spread = (logits - logits.mean(-1, keepdim=True)).abs().amax((1, 2))
    gentle = outputs.detach() / (1 + spread).to(outputs.dtype).view(-1, *[1] * (outputs.dim() - 1))
    v = to_positions(vectors, axis, 2)
    form = softmax_hessian_times(to_positions(gentle, axis, 1), v[:1])
    there = to_positions(apply(gentle, vectors[:1]).double(), axis, 2)
    scale = (form * there).sum(-1, keepdim=True) / form.square().sum(-1, keepdim=True)
    expected = softmax_hessian_times(logits, v) * scale
    allowed = rounding * scale.abs().amax(2, keepdim=True)
    if not (_within(to_positions(products, axis, 2) - expected, allowed) and bool((scale >= -allowed).all())):
        return None
    return scale[0].clamp(min=0)


def _of_softmax(scale: Tensor, outputs: Tensor, axis: int, sketch: Sketch) -> Factor:
    logits, root = to_positions(outputs.detach(), axis, 1), scale.sqrt()
    shape = (*logits.shape[:-1], logits.shape[-1] - 1)

    def columns(part: slice) -> list[Tensor]:
        draws = part.stop - part.start
        signs = sketch.signs(outputs, shape[1] * shape[2], draws=draws, passed=part.start).view(draws, *shape)
        return [from_positions(softmax_sketch_times(logits, signs) * root, outputs, axis)]

    return _factor(columns, outputs, sketch)


def _keeps_positions(apply: Apply, outputs: Tensor, axis: int, vector: Tensor) -> bool:
    """Whether Λ maps what lies at one position to that position.

    Any two positions differ in a binary digit of their numbers: a vector that is zero where the digit is 1 must be
    mapped to one that is zero there, digit by digit.
    """
    v = to_positions(vector[None], axis, 2)
    numbers = torch.arange(v.shape[2], device=outputs.device)
    for digit in range((v.shape[2] - 1).bit_length()):
        without = (numbers >> digit & 1).bool()
        some = from_positions(v.masked_fill(without[:, None], 0.0), outputs, axis)
        if bool((to_positions(apply(outputs, some), axis, 2)[:, :, without] != 0).any()):
            return False
    return True


def _of_positions(apply: Apply, outputs: Tensor, axis: int, sketch: Sketch) -> Factor:
    """Signed roots of the positions' own blocks, each with signs of its own, where the blocks are small."""
    _, positions, classes = to_positions(outputs, axis, 1).shape
    if classes > MOST_OF_A_POSITION or positions * classes * classes > MOST_OF_A_SAMPLE:
        return _of_pairs(apply, outputs, axis, sketch)
    unit = torch.eye(classes, dtype=torch.float64, device=outputs.device)
    units = unit[:, None, None].expand(classes, len(outputs), positions, classes)
    rows = to_positions(apply(outputs, from_positions(units, outputs, axis)).double(), axis, 2)
    positive, negative = signed_roots(rows.movedim(0, -1).flatten(0, 1))
    roots = [positive, negative] if bool(negative.any()) else [positive]

    def columns(part: slice) -> list[Tensor]:
        draws = part.stop - part.start
        signs = sketch.signs(outputs, positions * classes, draws=draws, passed=part.start)
        turned = signs.view(draws, -1, classes, 1)
        return [from_positions((root @ turned).view(draws, *rows.shape[1:]), outputs, axis) for root in roots]

    return _factor(columns, outputs, sketch)


def _of_pairs(apply: Apply, outputs: Tensor, axis: int | None, sketch: Sketch) -> Factor:
    """Pairs ½(aε + Λε/a) and ½(aε - Λε/a) for random signs ε, whose squares' difference ½(ε(Λε)ᵀ + (Λε)εᵀ) has mean Λ.

    a makes the two parts of one length, at each position of its own where Λ keeps positions apart (``axis``), which
    is what keeps the squares, and with them the noise, small. Being the same for ε and -ε it leaves the mean alone.
    """

    def apart(x: Tensor) -> Tensor:
        return x.flatten(2)[:, :, None] if axis is None else to_positions(x, axis, 2)

    def columns(part: slice) -> list[Tensor]:
        signs = sketch.signs(outputs, outputs[0].numel(), draws=part.stop - part.start, passed=part.start)
        signs = signs.view(-1, *outputs.shape)
        own, image = apart(signs), apart(apply(outputs, signs).double())
        ratio = image.norm(dim=-1, keepdim=True) / own.norm(dim=-1, keepdim=True)
        balance = ratio.sqrt()
        first, second = 0.5 * balance * own, 0.5 * image / balance.where(balance > 0, 1.0)
        both = [first + second, first - second]
        return [from_positions(x, outputs, -1 if axis is None else axis) for x in both]

    return _factor(columns, outputs, sketch)


def _factor(columns: Callable[[slice], list[Tensor]], outputs: Tensor, sketch: Sketch) -> Factor:
    """The sketches whose draws ``columns`` makes some at a time: one column each, or one of either sign."""
    at_once = max(1, ENTRIES_AT_ONCE // outputs.numel())
    parts = [slice(start, min(start + at_once, sketch.count)) for start in range(0, sketch.count, at_once)]
    found = [torch.stack([x.to(outputs.dtype) for x in columns(part)], 1).flatten(0, 1) for part in parts]
    per_draw = len(found[0]) // (parts[0].stop - parts[0].start)
    signs = torch.tensor([1.0, -1.0][:per_draw], dtype=outputs.dtype, device=outputs.device).repeat(sketch.count)
    return Factor(
        torch.cat(found),
        signs[:, None].repeat(1, len(outputs)),
        psd=per_draw == 1,
        exact=False,
        draws=sketch.count,
    )
