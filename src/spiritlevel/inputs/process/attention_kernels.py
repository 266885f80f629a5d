"""Which kernels attention may run by: the fused ones have no second derivative, the mathematical one has."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def mathematical_attention() -> AbstractContextManager[None]:
    """Let attention be composed of single operations around what follows."""
    kernel: AbstractContextManager[None] = sdpa_kernel(SDPBackend.MATH)
    return kernel


def fused_kernels_allowed() -> bool:
    """Whether attention may run by a fused kernel here: the default, and what a forward that chooses one asks for."""
    backends = torch.backends.cuda
    return any((backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.cudnn_sdp_enabled()))
