"""What ``torch.compile`` makes of a model: the network inside its wrapper, and whether there may be one at all."""

from __future__ import annotations

import functools
import importlib.util
import sys

from torch import nn

# Also what names in a checkpoint of a compiled model begin with.
WRAPPED = "_orig_mod"
_COMPILER = "torch._dynamo"


def network_inside(model: nn.Module) -> nn.Module | None:
    """Return the network that a compiled one wraps, None where it is not compiled.

    The wrapper has no public name for it; where it has another private one, it is the only module in there.
    """
    inner = getattr(model, WRAPPED, None)
    if inner is None and type(model).__module__.startswith(_COMPILER):
        children = list(model.children())
        inner = children[0] if len(children) == 1 else None
    return inner if isinstance(inner, nn.Module) else None


def may_be_compiled() -> bool:
    """Whether any model can have been compiled: not before the compiler is loaded, which takes seconds.

    Where it has another name, that it may.
    """
    return _COMPILER in sys.modules or not _compiler_is_known()


@functools.cache
def _compiler_is_known() -> bool:
    return importlib.util.find_spec(_COMPILER) is not None
