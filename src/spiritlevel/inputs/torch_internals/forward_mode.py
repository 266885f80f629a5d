"""Whether derivatives are being taken in forward mode, which torch keeps in a private counter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

_LEVEL = "_current_level"


def in_forward_mode() -> bool:
    """Whether a level of forward-mode differentiation is entered; without the counter, by trying to use one."""
    level = getattr(forward_ad, _LEVEL, None)
    if isinstance(level, int):
        return level >= 0
    make_dual: Callable[..., Any] = forward_ad.make_dual
    try:
        make_dual(torch.zeros(()), torch.zeros(()))
    except RuntimeError:  # there is no level to make it in
        return False
    return True
