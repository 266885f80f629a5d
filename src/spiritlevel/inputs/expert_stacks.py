"""Experts stacked in one tensor, as mixtures of experts hold them: (experts, outputs, inputs), or inputs first.

Told by shapes, which fit together where one weight leads from the model's width to the experts' and the other back:
twice as many outputs on the way there are a gate's.  Where both ways fit they are read as torch stores weights.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn


def stacking_order(module: nn.Module) -> str:
    """Return "outputs first" or "inputs first" for a module of stacked experts, nothing for any other."""
    if type(module).__module__.startswith("torch."):
        return ""
    shapes = [tuple(tensor.shape) for _, tensor in module.named_parameters(recurse=False) if tensor.ndim == 3]
    if len(shapes) < 2 or len({shape[0] for shape in shapes}) > 1 or shapes[0][0] < 2:
        return ""
    for words, turned in (("outputs first", False), ("inputs first", True)):
        if any(_lead_there_and_back(there, back) for there, back in _pairs(shapes, turned)):
            return words
    return ""


def _pairs(shapes: list[tuple[int, ...]], turned: bool) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    sides = [shape[:0:-1] if turned else shape[1:] for shape in shapes]  # (outputs, inputs)
    for i, there in enumerate(sides):
        yield from ((there, back) for j, back in enumerate(sides) if i != j)


def _lead_there_and_back(there: tuple[int, ...], back: tuple[int, ...]) -> bool:
    """Whether one matrix (outputs, inputs) goes where the other comes from, with or without a gate between them."""
    return there[1] == back[0] and there[0] in (back[1], 2 * back[1])
