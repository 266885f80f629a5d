"""Random numbers drawn while a problem is read or measured leave the caller's streams where they were."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from spiritlevel.inputs.process.scope import process_scope


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Let torch, NumPy and Python draw from a seed, and restore their states on leaving."""
    with process_scope(), kept_random_state():
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        yield


@contextlib.contextmanager
def kept_random_state(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restore the states of torch, NumPy and Python on leaving; inside a process scope, for all threads share them."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002  (what augmentations draw from)
    with torch.random.fork_rng(devices=list(devices)):
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
