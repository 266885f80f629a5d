"""What a batch holds: tensors in a tuple or a dict, and inside these in tuples, lists and dicts again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from spiritlevel.values.errors import SpiritlevelError, UsageError

Content = Any  # a tuple (inputs, labels, ...) or a dict of keywords and labels; tensors share their first dimension
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # for which torch has no arithmetic


def count_of(content: Content) -> int:
    """Return the number of samples in a batch, refusing a batch whose tensors disagree about it."""
    sizes = {len(tensor) for tensor in tensors_of(content) if tensor.ndim > 0}
    if not sizes:
        raise SpiritlevelError(
            "a batch of the data holds no tensors; give batches (inputs, labels) or dicts of tensors"
        )
    if len(sizes) > 1:
        raise SpiritlevelError(
            f"the tensors of one batch have different first dimensions ({', '.join(map(str, sorted(sizes)))}); "
            "inputs and labels need one entry a sample"
        )
    return sizes.pop()


def tensors_of(content: Content) -> list[Tensor]:
    """Return the tensors of a batch, however deep, in its own order."""
    if isinstance(content, Tensor):
        return [content]
    values = content.values() if isinstance(content, Mapping) else content if _is_sequence(content) else ()
    return [tensor for value in values for tensor in tensors_of(value)]


def map_tensors(content: Content, function: Callable[[Tensor], Tensor]) -> Content:
    """Return the batch with ``function`` applied to each tensor; everything else is passed on."""
    return _mapped(content, lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf)


def slice_batch(content: Content, start: int, stop: int) -> Content:
    """Return samples ``start`` to ``stop`` of a batch."""
    return _chosen(content, count_of(content), slice(start, stop))


def pick_samples(content: Content, chosen: Tensor) -> Content:
    """Return the samples of a batch with the given indices, or where a mask (B,) is true."""
    return _chosen(content, count_of(content), chosen.nonzero()[:, 0] if chosen.dtype == torch.bool else chosen)


def concatenate(batches: list[Content]) -> Content | None:
    """Return batches as one, or None where they are ragged or hold anything but tensors."""
    first = batches[0]
    if isinstance(first, Tensor):
        alike = all(isinstance(t, Tensor) and t.ndim > 0 and t.shape[1:] == first.shape[1:] for t in batches)
        return torch.cat(batches) if alike else None
    if isinstance(first, Mapping):
        if any(list(batch) != list(first) for batch in batches):
            return None
        joined = {key: concatenate([batch[key] for batch in batches]) for key in first}
        return None if any(part is None for part in joined.values()) else joined
    if not _is_sequence(first) or any(len(batch) != len(first) for batch in batches):
        return None
    parts = [concatenate([batch[i] for batch in batches]) for i in range(len(first))]
    return None if any(part is None for part in parts) else _like(first, parts)


def with_tensors(content: Content) -> Content:
    """Return a batch with its NumPy arrays as tensors, refusing what holds no plain numbers of each sample."""
    return _mapped(content, _as_tensor)


def _chosen(content: Content, count: int, index: slice | Tensor) -> Content:
    def of(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            place = index.to(leaf.device) if isinstance(index, Tensor) else index
            return leaf[place] if leaf.ndim else leaf
        if _is_sequence(leaf) and len(leaf) == count and not hasattr(leaf, "_fields"):  # texts, names: one a sample
            return leaf[index] if isinstance(index, slice) else _like(leaf, [leaf[i] for i in index.tolist()])
        return leaf

    return _mapped(content, of)


def _mapped(content: Content, function: Callable[[Any], Any]) -> Content:
    """Return a structure with ``function`` applied to each leaf; a sequence without tensors or arrays is one leaf."""
    if isinstance(content, Mapping):
        return {key: _mapped(value, function) for key, value in content.items()}
    if isinstance(content, PackedSequence) or not _is_sequence(content) or not _holds_numbers(content):
        return function(content)
    return _like(content, [_mapped(value, function) for value in content])


def _like(content: Any, values: list[Any]) -> Any:
    make = getattr(type(content), "_make", None)  # a named tuple takes its fields through _make
    return make(values) if make is not None else values if isinstance(content, list) else tuple(values)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (tuple, list))


def _holds_numbers(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_holds_numbers(each) for each in value.values())
    if _is_sequence(value):
        return any(_holds_numbers(each) for each in value)
    return isinstance(value, (Tensor, np.ndarray))


def _as_tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = _from_array(value)
    if isinstance(value, PackedSequence):
        raise UsageError(
            "a batch of the data holds a PackedSequence, in which samples do not lie apart; give padded tensors with "
            "their lengths, and pack them in a forward=lambda model, batch: ... of your own"
        )
    if not isinstance(value, Tensor):
        return value
    if value.is_meta:
        raise UsageError("a tensor of the data is on the meta device, which holds no numbers; give its values")
    if value.is_nested or value.layout != torch.strided or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else "sparse"
        what = {"nested": "x.to_padded_tensor(0.0)", "quantized": "x.dequantize()"}.get(kind, "x.to_dense()")
        raise UsageError(f"a tensor of the data is {kind}, and samples are read from plain tensors; pass {what}")
    return value.long() if value.dtype in _UNSIGNED else value


def _from_array(array: np.ndarray) -> Tensor:
    # torch reads neither arrays turned round nor another byte order, and must not write where nobody may.
    if not array.flags.writeable or any(step < 0 for step in array.strides) or not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"an array of type {array.dtype} in the data cannot be read as a tensor; give real numbers or integers"
        ) from error
