"""Weight normalisation as torch writes it: the modules that do it, and the fused operation they call.

torch offers two functions that put it on a layer, and no name for what they put there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.inputs.torch_internals.hooks import forward_hooks

_parametrization: Any
_hook: Any
try:
    from torch.nn.utils.parametrizations import _WeightNorm as _parametrization
except ImportError:
    _parametrization = None
try:
    from torch.nn.utils.weight_norm import WeightNorm as _hook  # of the older function, which torch gives up
except ImportError:
    _hook = None

_OPERATION = "_weight_norm"


def fused_weight_norm() -> Callable[..., Tensor] | None:
    """Return torch's operation for g·v/‖v‖, None where there is none by that name.

    What stands in its place is then differentiated as it is, and the check of derivatives finds out if that is wrong.
    """
    found: Callable[..., Tensor] | None = getattr(torch, _OPERATION, None)
    return found


def may_normalise_weights(module: nn.Module) -> bool:
    """Whether a module normalises weights in one of torch's ways; where one of them has no name, that it may."""
    if _parametrization is None or _hook is None:
        return True
    return isinstance(module, _parametrization) or any(isinstance(hook, _hook) for hook in forward_hooks(module))
