"""Works around the diagonal: network trace and diagonal, and exact traces of every sample."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import spiritlevel as sl
from benchmarks import material, peers
from benchmarks.exact import diagonals, gradient_pass
from benchmarks.material import Data
from benchmarks.timing import Contender, Work, best_setting, relative
from benchmarks.unchecked import ALLOWED, without_checks
from benchmarks.unchecked import NAME as UNCHECKED
from spiritlevel.inputs.open_problem import OpenProblem, open_problem

GOAL = 0.01
CHECKED = 2048  # samples whose exact traces are known
# Among which a peer's best is chosen; a GPU is not waited for at sizes that leave it idle.
PEER_BATCHES = {"cpu": (8, 16, 32, 64, 128, 256, 512), "cuda": (256, 1024, 4096)}
ROUNDS = 3  # of settings among which a peer's best is chosen


def trace_and_diagonal(device: torch.device, samples: int, probes: int) -> Work:
    """The trace and the diagonal of the network's Hessian to 1%: what every peer offers in some form."""
    model, data = material.on(device, material.lenet5(), material.images(samples))
    exact, _ = diagonals(model, data)

    def ours() -> Tensor:
        found = sl.curvature(sl.Problem(model, data))
        return torch.cat([part.reshape(-1) for part in found.diagonal.values()])

    contenders = [Contender("Spiritlevel", ours, lambda d: relative(d, exact), "exact; trace and diagonal in one pass")]
    if peers.installed("backpack"):
        extended = peers.BackPack(model, data)
        sizes = [size for size in PEER_BATCHES[device.type] if size <= samples]
        by_size = {f"batches of {b}": functools.partial(extended.diagonal, b) for b in sizes}
        name, run = best_setting(by_size, device, rounds=ROUNDS)
        contenders.append(
            Contender("BackPACK DiagGGNExact", run, lambda d: relative(d, exact), f"exact for this network; {name}")
        )
    if peers.installed("nngeometry"):
        sizes = [size for size in PEER_BATCHES[device.type] if size <= samples]
        by_size = {f"batches of {b}": functools.partial(peers.nngeometry_diagonal, model, data, b) for b in sizes}
        name, run = best_setting(by_size, device, rounds=ROUNDS)
        contenders.append(Contender("nngeometry FIM diagonal", run, lambda d: relative(d, exact), name))
    if peers.installed("curvlinops"):
        contenders += _curvlinops_estimates(model, data, exact, probes)
    if peers.installed("pyhessian"):
        contenders += _pyhessian_traces(model, data, float(exact.sum()), probes)
    return Work(
        "trace_diagonal",
        f"Hessian trace and diagonal to 1%, LeNet-5, {samples:,} images",
        gradient_pass(model, data),
        contenders,
        unavailable=peers.missing(),
        error_meaning="relative error (of the diagonal in norm, or of the trace), before any more probes",
    )


def _to_goal(error: float) -> float:
    """How many times the probes must grow for an error that falls with their root to reach 1%."""
    return max(1.0, (error / GOAL) ** 2)


def _curvlinops_estimates(model: nn.Module, data: Data, exact: Tensor, probes: int) -> list[Contender]:
    from curvlinops import hutchinson_diag, hutchinson_trace, xtrace

    def on_operator(function: Callable[..., Any]) -> Callable[[], Any]:
        return lambda: function(peers.curvlinops_hessian(model, data), num_matvecs=probes)

    def diagonal_error(found: Tensor) -> float:
        return relative(found, exact)

    def trace_error(found: Tensor) -> float:
        return abs(float(found) / float(exact.sum()) - 1)

    # One draw of an error is not its size: the trace's is taken over several runs of each.
    def typical(function: Callable[..., Any]) -> float:
        draws = [trace_error(on_operator(function)()) for _ in range(4)]
        return math.sqrt(sum(draw**2 for draw in draws) / len(draws))

    by_name = {"hutchinson_trace": hutchinson_trace, "xtrace": xtrace}
    errors = {name: typical(function) for name, function in by_name.items()}
    best = min(errors, key=lambda name: errors[name])
    found = [
        Contender(
            f"curvlinops {best}",
            on_operator(by_name[best]),
            lambda answer: errors[best],
            f"trace only; {probes} probes run, time for 1% by the inverse root of their number",
            lambda answer: _to_goal(errors[best]),
        ),
        Contender(
            "curvlinops hutchinson_diag",
            on_operator(hutchinson_diag),
            diagonal_error,
            f"diagonal; {probes} probes run, time for 1% by the inverse root of their number",
            lambda answer: _to_goal(diagonal_error(answer)),
        ),
    ]
    return found


def _pyhessian_traces(model: nn.Module, data: Data, exact: float, probes: int) -> list[Contender]:
    def fixed() -> list[float]:
        return peers.PyHessian(model, data).trace(maxIter=probes, tol=0.0)

    def standard_error(draws: list[float]) -> float:
        return float(np.std(draws, ddof=1)) / math.sqrt(len(draws)) / exact

    def by_default() -> list[float]:
        torch.manual_seed(0)
        return peers.PyHessian(model, data).trace()

    return [
        Contender(
            "PyHessian trace",
            fixed,
            standard_error,
            f"trace only; {probes} probes run, time for 1% by the inverse root of their number",
            lambda draws: _to_goal(standard_error(draws)),
        ),
        Contender(
            "PyHessian trace, default stop",
            by_default,
            lambda draws: abs(float(np.mean(draws)) / exact - 1),
            "trace only; stops by its own rule, whatever the error",
        ),
    ]


def sample_traces(
    device: torch.device, name: str, title: str, model: nn.Module, samples: int, peer_samples: int, target: bool
) -> Work:
    """The trace of each sample's own Hessian."""
    model, data = material.on(device, model, material.images(samples))
    checked = min(samples, CHECKED)
    _, exact = diagonals(model, (data[0][:checked], data[1][:checked]))

    def ours() -> Tensor:
        return sl.per_sample(sl.Problem(model, data), "hessian_trace")["hessian_trace"]

    def error_in_norm(found: Tensor) -> float:
        return relative(found[:checked], exact)

    def unchecked() -> Tensor:
        with without_checks():
            return ours()

    contenders = [
        Contender("Spiritlevel", ours, error_in_norm, "exact"),
        Contender(UNCHECKED, unchecked, error_in_norm, "the same pass with every check switched off"),
    ]
    if device.type == "cuda":
        contenders += _on_gpu(open_problem(sl.Problem(model, data)), ours, error_in_norm)
    unavailable = {name: why for name, why in peers.missing().items() if name not in ("curvlinops", "nngeometry")}
    if peers.installed("backpack"):
        convert = name == "resnet18"
        try:
            extended = peers.BackPack(model, data, convert=convert)
            sizes = [b for b in PEER_BATCHES[device.type] if b <= samples]
            by_size = {f"batches of {b}": functools.partial(extended.sample_traces, b) for b in sizes}
            best, run = best_setting(by_size, device, rounds=ROUNDS)
            contenders.append(
                Contender("BackPACK BatchDiagGGNExact", run, error_in_norm, f"exact for such networks; {best}")
            )
        except Exception as failure:  # what it cannot take it refuses in its own words
            unavailable["BackPACK"] = f"{type(failure).__name__}: {' '.join(str(failure).split())[:160]}"
    if peers.installed("pyhessian"):
        contenders.append(_pyhessian_sample_by_sample(model, data, exact, min(peer_samples, samples)))
    targets = {"BackPACK BatchDiagGGNExact": 1.5, "PyHessian trace, default stop": 1000.0} if target else {}
    targets[UNCHECKED] = 1 / ALLOWED
    return Work(
        f"sample_traces_{name}",
        f"Hessian trace of every sample, {title}, {samples:,} images",
        gradient_pass(model, data),
        contenders,
        targets,
        unavailable,
        error_meaning=f"relative error in norm over {checked:,} samples",
        limits={"seconds": 0.15} if target and device.type == "cuda" else {},
    )


def _on_gpu(known: OpenProblem, ours: Callable[[], Tensor], error: Callable[[Tensor], float]) -> list[Contender]:
    """Return what part of our time is spent on looking at a problem for the first time, and on cuDNN's choices."""

    def chosen_by_trying() -> Tensor:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            return ours()

    def again() -> Tensor:
        return sl.per_sample(known, "hessian_trace")["hessian_trace"]

    return [
        Contender("Spiritlevel, the problem seen before", again, error, "without the first sweep and its checks"),
        Contender("Spiritlevel, cuDNN trying its kernels", chosen_by_trying, error, "torch.backends.cudnn.benchmark"),
    ]


def _pyhessian_sample_by_sample(model: nn.Module, data: Data, exact: Tensor, count: int) -> Contender:
    x, y = data
    # Its rule stops after any number of probes between 2 and 100, so the samples must be many to have a usual cost.
    chosen = list(range(0, len(exact), max(1, len(exact) // count)))[:count]

    def run() -> Tensor:
        torch.manual_seed(0)
        draws = [peers.PyHessian(model, (x[i : i + 1], y[i : i + 1])).trace() for i in chosen]
        return torch.tensor([float(np.mean(draw)) for draw in draws])

    return Contender(
        "PyHessian trace, default stop",
        run,
        lambda found: relative(found, exact[chosen]),
        f"sample after sample; {count} of {len(y):,} run",
        lambda found: len(y) / count,
    )


def all_sample_traces(device: torch.device, sizes: dict[str, int]) -> list[Callable[[], Work]]:
    """The three networks of this work."""
    count = sizes["peer_samples"]
    return [
        lambda: sample_traces(device, "lenet5", "LeNet-5", material.lenet5(), sizes["lenet5"], count, True),
        lambda: sample_traces(device, "fcnbn", "FCNBN", material.fcnbn(), sizes["fcnbn"], count, False),
        lambda: sample_traces(
            device, "resnet18", "ResNet-18 of width 16 with BatchNorm", material.resnet18(), sizes["resnet18"], 2, False
        ),
    ]
