"""Base classes that torch's layers of one kind share, which have private names: found as what public ones share.

Where these share nothing closer than ``nn.Module``, the public ones themselves stand for the kind.
"""

from __future__ import annotations

from torch import nn

ModuleClasses = tuple[type[nn.Module], ...]


def shared_base(*classes: type[nn.Module]) -> ModuleClasses:
    """Return the closest class that all of some derive from, or these where that would be any module."""
    first, *others = classes
    (closest, *_) = (base for base in first.__mro__ if all(issubclass(other, base) for other in others))
    return (closest,) if closest is not nn.Module and issubclass(closest, nn.Module) else classes


BATCH_NORMS = shared_base(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# Those that can keep running statistics.
NORMS = shared_base(*BATCH_NORMS, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
LOSS_MODULES = shared_base(*(getattr(nn.modules.loss, name) for name in nn.modules.loss.__all__))
