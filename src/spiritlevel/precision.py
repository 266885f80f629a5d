"""Full float32 precision while curvature is computed: TF32 keeps ten bits, which no residual survives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Hold products of float32 matrices and convolutions at full precision; restore the settings on leaving."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    try:
        products, convolutions = torch.get_float32_matmul_precision(), cudnn.allow_tf32
        matmul.allow_tf32  # noqa: B018  (refuses where the newer per-operation settings were used)
    except RuntimeError:
        with _by_operation():
            yield
        return
    try:
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = False
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32 = convolutions


@contextlib.contextmanager
def _by_operation() -> Iterator[None]:
    """The same through torch's settings per operation, which do not mix with the older ones."""
    switches = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = "ieee"
        yield
    finally:
        for switch, precision in zip(switches, before):
            switch.fp32_precision = precision
