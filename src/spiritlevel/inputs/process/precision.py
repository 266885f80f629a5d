"""The arithmetic that curvature is computed in: full float32, and no autocast.

TF32 keeps ten bits and bfloat16 seven, which no residual survives.  Sums of squares may, where somebody asks for that
and their error is measured.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from spiritlevel.inputs.process.scope import hold, process_scope


@contextlib.contextmanager
def full_float32() -> Iterator[None]:
    """Hold products of float32 matrices and convolutions at full precision."""
    with process_scope():
        hold("full float32", _full_float32)
        yield


@contextlib.contextmanager
def without_autocast() -> Iterator[None]:
    """Switch off autocast around what follows, which belongs to this thread alone."""
    with contextlib.ExitStack() as stack:
        for kind in autocast_kinds():
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def autocast_kinds() -> list[str]:
    """Return the kinds of device for which autocast is on."""
    return [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]


def has_tf32(device: torch.device) -> bool:
    """Whether a device multiplies in TF32."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 8


@contextlib.contextmanager
def coarse_float32() -> Iterator[None]:
    """Let products of float32 matrices and convolutions be in TF32 around what follows, within a measurement."""
    with process_scope(), _float32_products("tf32"):
        yield


def _full_float32() -> contextlib.AbstractContextManager[None]:
    return _float32_products("ieee")


@contextlib.contextmanager
def _float32_products(precision: str) -> Iterator[None]:
    """Hold products of float32 numbers at "ieee" precision or at "tf32"."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    try:
        products, convolutions = torch.get_float32_matmul_precision(), cudnn.allow_tf32
        matmul.allow_tf32  # noqa: B018  (refuses where the newer per-operation settings were used)
    except RuntimeError:
        with _by_operation(precision):
            yield
        return
    try:
        torch.set_float32_matmul_precision("highest" if precision == "ieee" else "high")
        cudnn.allow_tf32 = precision == "tf32"
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        cudnn.allow_tf32 = convolutions


@contextlib.contextmanager
def _by_operation(precision: str) -> Iterator[None]:
    """The same through torch's settings per operation, which do not mix with the older ones."""
    switches = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]  # type: ignore[attr-defined]
    before = [switch.fp32_precision for switch in switches]
    try:
        for switch in switches:
            switch.fp32_precision = precision
        yield
    finally:
        for switch, found in zip(switches, before):
            switch.fp32_precision = found
