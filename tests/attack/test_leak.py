"""Nothing is kept from one call to the next: tensors, and graphs that Python cannot see, counted over many calls."""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.measures.registry import MEASURES

SAMPLES, ALLOWED = 64, 2**20  # bytes over 200 calls
LOOSE = 0.9  # sampling stops early: what a call keeps does not depend on how long it took
_AUDITED: dict[str, Any] = {"measures": ["hessian_trace"], "strengths": ["mild"], "alphas": (1.0, 3.0)}
ANALYSES: dict[str, Callable[[sl.Problem], Any]] = {
    "eigenvalues": lambda problem: sl.eigenvalues(problem, k=2),
    "spectrum": lambda problem: sl.spectrum(problem, probes=2, steps=6),
    "audit": lambda problem: sl.audit(problem, tolerance=LOOSE, **_AUDITED),
    "compare": lambda problem: sl.compare({"a": problem, "b": problem}, measures=["hessian_trace"], tolerance=LOOSE),
    "curvature": lambda problem: sl.curvature(problem, tolerance=LOOSE),
    "per_sample": lambda problem: sl.per_sample(problem, ["hessian_trace", "output_margin"]),
    "products": lambda problem: problem.hessian @ torch.ones(problem.size) + problem.ggn @ torch.ones(problem.size),
}
PARTS = 5
FEW = {"audit": 4, "compare": 6}
# A second a call: a tenth of the calls, held to the same limit a call.
COSTLY = {"normalized_sharpness_direct": 20}


class _Heap(ctypes.Structure):
    """What ``mallinfo2`` returns."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


def bytes_in_use() -> int:
    """What is allocated and not freed, graphs included: torch's memory on a CPU comes from the C library."""
    gc.collect()
    heap = ctypes.CDLL(None).mallinfo2
    heap.restype = _Heap
    found = heap()
    return found.uordblks + found.hblkhd


def live_tensors() -> tuple[int, int]:
    """How many tensors Python knows of, and the bytes that they show."""
    gc.collect()
    # Of these kinds alone: what a tracer left behind holds nothing.
    found = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter)]
    return len(found), sum(tensor.numel() * tensor.element_size() for tensor in found)


def _problems(smooth: bool) -> Iterator[sl.Problem]:
    """The same problem and, every other time, a new one on the same network and data."""
    torch.manual_seed(0)
    act = nn.Tanh() if smooth else nn.ReLU()
    model = nn.Sequential(nn.Conv2d(1, 3, 3), act, nn.Flatten(), nn.Linear(3 * 36, 3))
    data = (torch.randn(SAMPLES, 1, 8, 8), torch.randint(3, (SAMPLES,)))
    kept = sl.Problem(model, data)
    while True:
        yield kept
        yield sl.Problem(model, data)


def _growth(call: Callable[[sl.Problem], Any], calls: int, smooth: bool) -> tuple[int, int, int]:
    """Growth over so many calls, after a few to warm up: bytes in use, tensors, and their bytes.

    Of bytes the usual growth of a part of the calls counts: libraries fill a cache once, a leak is there every time.
    """
    problems = _problems(smooth)
    for _ in range(4):
        call(next(problems))
    parts, used, (count, size) = min(PARTS, calls), [bytes_in_use()], live_tensors()
    for _ in range(parts):
        for _ in range(calls // parts):
            call(next(problems))
        used.append(bytes_in_use())
    later, larger = live_tensors()
    return int(parts * statistics.median(b - a for a, b in pairwise(used))), later - count, larger - size


needs_heap = pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library counts no memory"
)


def _check(call: Callable[[sl.Problem], Any], calls: int, smooth: bool) -> None:
    used, tensors, size = _growth(call, calls, smooth)
    assert tensors <= 4, f"{tensors} more tensors are alive after {calls} calls"
    assert size <= ALLOWED * calls / 200
    # A few calls may be the first to fill a cache of the C library's.
    assert used <= ALLOWED * max(calls / 200, 0.25), f"{used:,} bytes more are in use after {calls} calls"


@needs_heap
@pytest.mark.parametrize("name", ANALYSES)
def test_few_calls_of_an_analysis_keep_nothing(name: str) -> None:
    _check(ANALYSES[name], FEW.get(name, 50), smooth=False)


@needs_heap
@pytest.mark.parametrize("smooth", [False, True])
def test_fifty_calls_of_measures_keep_nothing(smooth: bool) -> None:
    names = ["hessian_trace", "output_margin", "rho_sum", "fisher_rao_norm", "hessian_frobenius"]
    _check(lambda problem: sl.measure(problem, measures=names, tolerance=LOOSE), 50, smooth)


@pytest.mark.slow
@needs_heap
@pytest.mark.parametrize("name", list(MEASURES))
def test_two_hundred_calls_of_a_measure_keep_nothing(name: str) -> None:
    calls = COSTLY.get(name, 200)
    _check(lambda problem: sl.measure(problem, measures=[name], tolerance=LOOSE), calls, smooth=False)


@pytest.mark.slow
@needs_heap
@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("name", ANALYSES)
def test_two_hundred_calls_of_an_analysis_keep_nothing(name: str, smooth: bool) -> None:
    _check(ANALYSES[name], 200, smooth)
