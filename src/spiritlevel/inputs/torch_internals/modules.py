"""What a module keeps beside its parameters and buffers, and a copy of it that has others."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

_UNSAVED = "_non_persistent_buffers_set"
_PARAMETERS = "_parameters"
_REPEATED_PADDING = "_reversed_padding_repeated_twice"


def unsaved_buffers(module: nn.Module) -> set[str]:
    """Return the names of a module's own buffers that its state dict leaves out; without torch's list, by making it."""
    found: set[str] | None = getattr(module, _UNSAVED, None)
    if found is not None:
        return found
    return {name for name, _ in module.named_buffers(recurse=False)} - set(module.state_dict())


def with_parameters(module: nn.Module, parameters: Mapping[str, Tensor]) -> nn.Module:
    """Return a copy of a module with other parameters of its own, so that its forward alone can be run with them.

    ``torch.func.functional_call`` would run its hooks too.  The copy is shallow where torch's table of parameters has
    its known name.
    """
    if isinstance(vars(module).get(_PARAMETERS), dict):
        trial = copy.copy(module)
        trial.__dict__[_PARAMETERS] = dict(parameters)
        return trial
    trial = copy.deepcopy(module)
    for name, tensor in parameters.items():
        setattr(trial, name, nn.Parameter(tensor, requires_grad=tensor.requires_grad))
    return trial


def padding_around(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> list[int]:
    """Return a convolution's padding in the order ``F.pad`` wants it: torch keeps it so, 'same' included."""
    kept: list[int] | None = getattr(module, _REPEATED_PADDING, None)
    if kept is not None:
        return kept
    found: list[int] = []
    for dim in reversed(range(len(module.kernel_size))):
        if module.padding == "same":
            both = module.dilation[dim] * (module.kernel_size[dim] - 1)
            found += [both // 2, both - both // 2]
        else:
            found += [0, 0] if isinstance(module.padding, str) else [int(module.padding[dim])] * 2
    return found
