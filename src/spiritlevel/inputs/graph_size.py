"""How many bytes the graph of a forward pass holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from spiritlevel.inputs.open_problem import OpenProblem


def saved_bytes(problem: OpenProblem, run: Callable[[], object]) -> int:
    """Return the bytes of what autograd keeps of a run of the problem's model, the parameters themselves aside."""
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        place = storage.data_ptr()
        # A batch may be a small view of all the data there is; an expanded tensor is larger than what it holds.
        size = min(storage.nbytes(), tensor.numel() * tensor.element_size())
        saved[place] = max(saved.get(place, 0), size)
        # Not the tensor itself: what a graph's node keeps of its own result would keep that node alive, for ever.
        return tensor.detach()

    own = {tensor.untyped_storage().data_ptr() for tensor in problem.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        found = run()
    del found  # only now: what is freed on the way could come back at the same place
    return sum(size for place, size in saved.items() if place not in own)
