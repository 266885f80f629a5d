"""The units every row is held against, by plain autograd alone: a gradient, a training step, and probes of H."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.large.networks import Prepared
from benchmarks.memory import forget_peak, peak_bytes
from benchmarks.timing import seconds_of
from spiritlevel.inputs.process.precision import full_float32

Found = TypeVar("Found")


def free() -> None:
    """Give back what is held for nothing, so that one row's leftovers are not the next one's memory."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextlib.contextmanager
def twice_differentiable() -> Iterator[None]:
    """Attention by plain products, in full float32: the fused kernels have no second derivative."""
    with sdpa_kernel(SDPBackend.MATH), full_float32():
        yield


def halving(attempt: Callable[[int], Found], samples: int) -> tuple[Found, int]:
    """Return what the attempt gives with the most samples at once, halved until they fit into memory."""
    at_once = samples
    while True:
        try:
            return attempt(at_once), at_once
        except torch.OutOfMemoryError:
            if at_once == 1:
                raise
        at_once = -(-at_once // 2)
        free()


def gradient(found: Prepared, at_once: int) -> None:
    """Make one gradient of the mean loss over the measured samples, so many of them at a time."""
    parameters = [tensor for tensor in found.model.parameters() if tensor.requires_grad]
    total: list[Tensor] = []
    for part, share in parts(found, at_once):
        loss = found.network.criterion(found.model(found.x[part]), found.y[part]) * share
        new = torch.autograd.grad(loss, parameters)
        total = [a + b for a, b in zip(total, new)] if total else list(new)


def parts(found: Prepared, at_once: int) -> Iterator[tuple[slice, float]]:
    """Yield slices of the measured samples, each with its share of the mean loss."""
    count = len(found.y)
    for start in range(0, count, at_once):
        stop = min(start + at_once, count)
        yield slice(start, stop), (stop - start) / count


def gradient_seconds(found: Prepared, device: torch.device, repeats: int = 3) -> tuple[float, int]:
    """Return the least seconds of a few gradients, after one to warm up, and the samples at once."""
    _, at_once = halving(lambda size: gradient(found, size), len(found.y))
    return min(seconds_of(lambda: gradient(found, at_once), device)[0] for _ in range(repeats)), at_once


def training_step(found: Prepared, device: torch.device) -> tuple[float, int, int]:
    """Return (seconds, most bytes held, samples at once) of a float32 step with AdamW on the measured samples.

    The second of two steps, when the optimiser's averages exist.  With a rate of 0 the weights stay; the buffers are
    put back.  Gradients of several parts are summed where all samples at once do not fit.
    """
    model = found.model
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}

    def two_steps(at_once: int) -> tuple[float, int]:
        optimiser = torch.optim.AdamW(model.parameters(), lr=0.0)

        def step() -> None:
            optimiser.zero_grad(set_to_none=True)
            for part, share in parts(found, at_once):
                (found.network.criterion(model(found.x[part]), found.y[part]) * share).backward()
            optimiser.step()

        try:
            step()
            forget_peak(device)
            seconds, _ = seconds_of(step, device)
            return seconds, peak_bytes(device)
        finally:
            optimiser.zero_grad(set_to_none=True)

    model.train()
    try:
        (seconds, peak), at_once = halving(two_steps, len(found.y))
    finally:
        model.eval()
        for name, buffer in model.named_buffers():
            buffer.data.copy_(kept[name])
    free()
    return seconds, peak, at_once


def probes(found: Prepared, first: int, count: int, at_once: int) -> list[float]:
    """Return vᵀHv for probes v of signs, numbered from ``first``: a gradient's graph, differentiated for each."""
    parameters = [tensor for tensor in found.model.parameters() if tensor.requires_grad]
    totals = [0.0] * count
    with twice_differentiable():
        for part, share in parts(found, at_once):
            loss = found.network.criterion(found.model(found.x[part]), found.y[part]) * share
            slope = torch.autograd.grad(loss, parameters, create_graph=True)
            for index in range(count):
                signs = _signs(parameters, first + index)
                product = torch.autograd.grad(slope, parameters, signs, retain_graph=index + 1 < count)
                totals[index] += float(sum((h.double() * v).sum() for h, v in zip(product, signs)))
            del loss, slope, product
    return totals


def _signs(parameters: list[nn.Parameter], number: int) -> list[Tensor]:
    generator = torch.Generator(parameters[0].device).manual_seed(1_000_003 + number)
    return [torch.randint(2, p.shape, generator=generator, device=p.device).to(p) * 2 - 1 for p in parameters]
