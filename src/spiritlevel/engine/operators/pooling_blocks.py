"""Taking the numbers that a max-pooling took, and putting numbers back there, on a block of vectors as it lies."""

from __future__ import annotations

from torch import Tensor

from spiritlevel.engine.operators.vmapped import behind
from spiritlevel.inputs.torch_internals import aten

Window = tuple[list[int], list[int], list[int], list[int], bool]  # kernel size, stride, padding, dilation, ceil mode


def gather_places(values: Tensor, places: Tensor) -> Tensor:
    """Return the values (…, H, W) at the places (…, h, w), which are numbered within each H × W."""
    block = behind(values, places)
    if block is not None:
        return block.made(gather_places(*(operand.along(1) for operand in block.operands)), 1)
    return values.flatten(-2).gather(-1, places.flatten(-2)).reshape(places.shape)


def scatter_places(values: Tensor, places: Tensor, size: list[int], window: Window) -> Tensor:
    """Return (…, H, W) of this size with the sums of the values (…, h, w) that belong to each place."""
    block = behind(values, places)
    if block is not None:
        inner, at = (operand.along(1) for operand in block.operands)
        return block.made(scatter_places(inner, at, size, window), 1)
    # Scattering is faster than torch's own kernel, which on a CPU wants the places copied for every vector and on a GPU
    # looks at every position; but where places are shared, a GPU's scattered sums would differ from run to run.
    if values.is_cuda and not _windows_apart(window):
        found = aten.max_pool_2d_backward(values.flatten(0, -4), size, places.flatten(0, -4), *window)
        return found.reshape(*values.shape[:-2], *size)
    zeros = values.new_zeros((*values.shape[:-2], size[0] * size[1]))
    put_back: Tensor = zeros.scatter_add_(-1, places.flatten(-2), values.flatten(-2)).unflatten(-1, size)
    return put_back


def _windows_apart(window: Window) -> bool:
    """Whether no position belongs to two windows."""
    size, stride, _, dilation, _ = window
    return all(d * (n - 1) < s for n, s, d in zip(size, stride, dilation))
