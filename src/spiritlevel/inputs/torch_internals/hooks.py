"""The tables that hooks are kept in: torch gives a handle to whoever registers one, and nobody else a way to see them.

Where a table's name is missing, its owner's dictionaries are searched by the words such names are made of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.inputs.torch_internals.backward import vjp

HookTable = dict[int, Any]

_FORWARD = ("_forward_hooks", "_forward_pre_hooks")
_BACKWARD = ("_backward_hooks", "_backward_pre_hooks")
_BACKWARD_OF_ALL = ("_global_backward_hooks", "_global_backward_pre_hooks")
_OF_TENSOR = "_backward_hooks"


def forward_hooks(module: nn.Module) -> list[Any]:
    """Return the hooks around a module's forward: those after it first, then those before it."""
    return [hook for table in forward_tables(module) for hook in table.values()]


def forward_tables(module: nn.Module) -> list[HookTable]:
    """Return the tables of hooks around a module's forward: of those after it, then of those before it."""
    return _tables(module, _FORWARD, "forward")


def backward_tables(module: nn.Module) -> list[HookTable]:
    """Return the tables of hooks on a module's gradients."""
    return _tables(module, _BACKWARD, "backward")


def backward_tables_of_all_modules() -> list[HookTable]:
    """Return the tables of hooks on the gradients of every module there is."""
    return _tables(nn.modules.module, _BACKWARD_OF_ALL, "global", "backward")


def _tables(owner: Any, names: tuple[str, ...], *words: str) -> list[HookTable]:
    found = [getattr(owner, name, None) for name in names]
    if not all(isinstance(table, dict) for table in found):
        found = [
            table
            for name, table in vars(owner).items()
            if name.endswith("hooks") and all(word in name for word in words)
        ]
    return [table for table in found if isinstance(table, dict)]


def gradient_table(tensor: Tensor) -> HookTable | None:
    """Return the table of hooks on a tensor's gradient, None where it has none or torch does not show it."""
    found: HookTable | None = getattr(tensor, _OF_TENSOR, None)
    return found


def has_hidden_hooks(tensor: Tensor) -> bool:
    """Whether torch does not show a leaf's hooks and one of them changes gradients, found by sending some through."""
    if hasattr(tensor, _OF_TENSOR) or not tensor.is_floating_point():
        return False
    before, count = tensor.requires_grad, tensor.numel()
    pattern = (1 + torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).neg_()
    pattern[::2].neg_()
    try:
        tensor.requires_grad_(True)
        with torch.enable_grad():
            for size in (1e-8, 1.0, 1e8):  # some hooks change large or small gradients alone
                sent = (size * pattern).reshape(tensor.shape).to(tensor)
                (found,) = vjp(tensor.view_as(tensor), [tensor], sent)
                if not torch.equal(found, sent):
                    return True
    finally:
        tensor.requires_grad_(before)
    return False
