"""What ``torch.utils.checkpoint`` calls to recompute activations, under the names it looks up in its own module.

It has no public switch.  Where a release has other names checkpointing stays, and the check of derivatives finds out.
"""

from __future__ import annotations

from types import ModuleType

from torch.utils import checkpoint

AROUND = "_checkpoint_without_reentrant_generator"  # a generator: what is done before and after the function
REENTRANT = "CheckpointFunction"  # an autograd function that calls it; a public name


def places() -> list[tuple[ModuleType, str]]:
    """Return where what recomputes can be replaced: a module and a name in it, each of those above that there is."""
    return [(checkpoint, name) for name in (AROUND, REENTRANT) if hasattr(checkpoint, name)]
