"""A convolution and its two adjoints on a block of vectors, without moving numbers about.

torch's own rules lay a block out vector by vector.  A convolution of shared images with a block of kernels gives its
result image by image, though, and its adjoints need it so: between them the block would be copied back and forth.
Here a block stays as it lies, image by image wherever there is a choice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spiritlevel.engine.operators.vmapped import Block, Operand, behind
from spiritlevel.inputs.torch_internals import aten

Options = tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


def convolve(input: Tensor, weight: Tensor, bias: Tensor | None, options: Options) -> Tensor:
    """Return B(x, w) + b."""
    block = behind(input, weight, *([] if bias is None else [bias]))
    if block is None:
        convolved: Tensor = aten.convolution(input, weight, bias, *options)
        return convolved
    x, w, *b = block.operands
    if w.shared and all(operand.shared for operand in b):
        return _for_each_sample(lambda folded: convolve(folded, w.tensor, bias, options), x, block)
    if x.shared and options[-1] == 1:
        biases = b[0].along(0).flatten() if b else None
        found = convolve(x.tensor, w.along(0).flatten(0, 1), biases, options)
        return block.made(found.unflatten(1, (block.count, -1)), 1)
    return _one_by_one(lambda x, w, b=None: convolve(x, w, b, options), block)


def pull_to_input(gradient: Tensor, weight: Tensor, size: list[int], options: Options) -> Tensor:
    """Return Bₓ*(g, w) for images (C, H, W) of this size."""
    block = behind(gradient, weight)
    if block is None:
        input = gradient.new_empty((len(gradient), *size))  # its shape alone counts
        return aten.convolution_adjoint(0, gradient, input, weight, *options)
    g, w = block.operands
    if w.shared:
        return _for_each_sample(lambda folded: pull_to_input(folded, w.tensor, size, options), g, block)
    if g.shared and options[-1] == 1:
        found = pull_to_input(g.tensor, w.along(1).flatten(1, 2), [block.count * size[0], *size[1:]], options)
        return block.made(found.unflatten(1, (block.count, -1)), 1)
    return _one_by_one(lambda g, w: pull_to_input(g, w, size, options), block)


def pull_to_weight(gradient: Tensor, input: Tensor, size: list[int], options: Options) -> Tensor:
    """Return B_w*(g, x) for kernels (h, w) of this size."""
    block = behind(gradient, input)
    groups = options[-1]
    if block is None:
        weight = gradient.new_empty((gradient.shape[1], input.shape[1] // groups, *size))  # its shape alone counts
        return aten.convolution_adjoint(1, gradient, input, weight, *options)
    g, x = block.operands
    if x.shared and groups == 1:
        found = pull_to_weight(g.along(1).flatten(1, 2), x.tensor, size, options)
        return block.made(found.unflatten(0, (block.count, -1)), 0)
    if g.shared and groups == 1:
        found = pull_to_weight(g.tensor, x.along(1).flatten(1, 2), size, options)
        return block.made(found.unflatten(1, (block.count, -1)), 1)
    return _one_by_one(lambda g, x: pull_to_weight(g, x, size, options), block)


def _for_each_sample(operation: Callable[[Tensor], Tensor], operand: Operand, block: Block) -> Tensor:
    """Take vectors and samples as one dimension, in the order they lie in."""
    first = operand.along(0)
    if first.stride(0) == first.stride(1) * first.shape[1]:
        return block.made(operation(first.flatten(0, 1)).unflatten(0, (block.count, -1)), 0)
    return block.made(operation(operand.along(1).flatten(0, 1)).unflatten(0, (-1, block.count)), 1)


def _one_by_one(operation: Callable[..., Tensor], block: Block) -> Tensor:
    """For images and kernels that both differ from vector to vector, and for groups of channels."""
    found = [operation(*(operand.of(k) for operand in block.operands)) for k in range(block.count)]
    return block.made(torch.stack(found), 0)
