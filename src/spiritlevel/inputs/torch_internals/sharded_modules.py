"""The hooks by which FSDP makes parameters whole around a module's forward: it has no public way to leave them out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from torch import nn

from spiritlevel.inputs.torch_internals.hooks import forward_tables

_OWNER = "torch.distributed.fsdp"


@contextlib.contextmanager
def without_sharding_hooks(model: nn.Module) -> Iterator[None]:
    """Leave FSDP's hooks out; all others stay, in their order.

    Where a release has them elsewhere they run, and the outputs then take no gradient, which is refused.
    """
    tables = [table for module in model.modules() for table in forward_tables(module)]
    before = [(table, dict(table)) for table in tables if any(map(_is_of_sharding, table.values()))]
    for table, hooks in before:
        for key, hook in hooks.items():
            if _is_of_sharding(hook):
                del table[key]
    try:
        yield
    finally:
        for table, hooks in before:
            added = {key: hook for key, hook in table.items() if key not in hooks}
            table.clear()
            table.update({**hooks, **added})


def _is_of_sharding(hook: Any) -> bool:
    function = getattr(hook, "func", hook)  # of a partial call
    return str(getattr(function, "__module__", "")).startswith(_OWNER)
