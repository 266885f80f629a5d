"""The tensors that operations make, as torch hands them out one operation after the other."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from spiritlevel.inputs.torch_internals.trees import leaves

try:
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:  # there is no public way: then nothing is counted
    TorchDispatchMode = None  # type: ignore[assignment, misc]


class TensorBytes:
    """Within it, the bytes of the tensors that operations made and that are still alive; their most so far."""

    def __init__(self) -> None:
        self.alive, self.peak = 0, 0
        self.known = TorchDispatchMode is not None
        self._seen: Any = weakref.WeakSet()
        self._mode: Any = _Counting(self) if self.known else None

    def __enter__(self) -> TensorBytes:
        if self._mode is not None:
            self._mode.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(*exception)

    def made(self, tensor: Tensor) -> None:
        """Count what holds a tensor's numbers, once, until it is gone."""
        storage = tensor.untyped_storage()
        if storage in self._seen:
            return
        size = storage.nbytes()
        self._seen.add(storage)
        self.alive += size
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._gone, size).atexit = False

    def _gone(self, size: int) -> None:
        self.alive -= size


if TorchDispatchMode is not None:

    class _Counting(TorchDispatchMode):
        def __init__(self, bytes_: TensorBytes) -> None:
            super().__init__()  # type: ignore[no-untyped-call]  # of torch
            self._bytes = weakref.proxy(bytes_)

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for leaf in leaves(made):
                if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                    self._bytes.made(leaf)
            return made
