"""The peers on one network: their trace and largest eigenvalue by default, and the time to an error as small as ours.

All of them differentiate the gradient's graph, in full float32, on as many samples at once as fit.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import peers
from benchmarks.large import plain
from benchmarks.large.networks import Prepared
from benchmarks.large.rows import Facts, Keep
from benchmarks.memory import forget_peak, peak_bytes
from benchmarks.timing import seconds_of

FEWEST = 4  # draws from which a spread is taken


class Rival:
    """One peer on one network; ``draw`` is one product's contribution to the trace."""

    module: str
    default_products: int  # that its trace makes by default, at most
    default_words: str
    top_words: str

    def __init__(self, found: Prepared, at_once: int) -> None:
        """Set up on so many samples at once, and make one product, so that too many fail here."""
        raise NotImplementedError

    def draws(self, count: int) -> list[float]:
        """Return the trace by each of so many independent probes."""
        raise NotImplementedError

    def default_trace(self, most: int) -> tuple[float, float, int]:
        """Return (value, its standard error, products) of the documented default, cut off at so many products."""
        draws = self.draws(min(most, self.default_products))
        return (*mean_and_error(draws), len(draws))

    def top(self, most: int) -> tuple[float, int]:
        """Return (largest eigenvalue, products at most) by the documented default, cut off at so many products."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what no garbage collection finds."""


class EigenThings(Rival):
    module = "hessian_eigenthings"
    default_products = 99
    default_words = "trace(H): Hutch++ with 99 products"
    top_words = 'lanczos(H, which="LA"): 20 steps'

    def __init__(self, found: Prepared, at_once: int) -> None:
        from hessian_eigenthings import HessianOperator, supervised_loss

        # Its mean over batches is not weighted: batches of one size.
        at_once = next(size for size in range(at_once, 0, -1) if len(found.y) % size == 0)
        data = [(found.x[part], found.y[part]) for part, _ in plain.parts(found, at_once)]
        self.operator = HessianOperator(found.model, data, supervised_loss(found.network.criterion))
        self.seed = 0
        self.draws(1)

    def draws(self, count: int) -> list[float]:
        from hessian_eigenthings import trace

        self.seed += 1
        found = trace(self.operator, num_matvecs=count, method="hutchinson", seed=self.seed)
        return found.samples.double().tolist()

    def default_trace(self, most: int) -> tuple[float, float, int]:
        from hessian_eigenthings import trace

        if most < self.default_products:
            most = max(6, most // 3 * 3)
            found = trace(self.operator, num_matvecs=most, seed=0)
            return found.estimate, found.stderr, most
        found = trace(self.operator, seed=0)
        return found.estimate, found.stderr, self.default_products

    def top(self, most: int) -> tuple[float, int]:
        from hessian_eigenthings import lanczos

        found = lanczos(self.operator, k=min(10, max(1, most // 2)), which="LA", seed=0)
        return float(found.eigenvalues.max()), int(found.iterations)


class PyHessian(Rival):
    module = "pyhessian"
    default_products = 100
    default_words = "trace(): at most 100 probes, stops where the mean moves by less than 1e-3"
    top_words = "eigenvalues(): power iteration, at most 100 steps"

    def __init__(self, found: Prepared, at_once: int) -> None:
        if at_once < len(found.y):
            raise torch.OutOfMemoryError("one batch with its graph kept, its cheapest mode, does not fit into memory")
        torch.manual_seed(0)
        self.own = peers.PyHessian(found.model, (found.x, found.y), criterion=found.network.criterion)
        self.draws(1)

    def draws(self, count: int) -> list[float]:
        return self.own.trace(maxIter=count, tol=0.0)

    def default_trace(self, most: int) -> tuple[float, float, int]:
        torch.manual_seed(0)
        draws = self.own.trace() if most >= self.default_products else self.own.trace(maxIter=most)
        return (*mean_and_error(draws), len(draws))

    def top(self, most: int) -> tuple[float, int]:
        torch.manual_seed(0)
        steps = min(100, most)
        return float(self.own.hessian.eigenvalues(maxIter=steps)[0][0]), steps

    def close(self) -> None:
        for parameter in self.own.hessian.params:  # its gradient's graph ends in the parameter itself
            parameter.grad = None


class Curvlinops(Rival):
    module = "curvlinops"
    default_products = 100
    default_words = "hutchinson_trace, probe after probe; it has no default number, 100 taken"
    top_words = 'SciPy\'s eigsh(H.to_scipy(), k=1, which="LA"), tol=1e-2; its default, 0, would take more'

    def __init__(self, found: Prepared, at_once: int) -> None:
        self.operator = peers.curvlinops_hessian(
            copy.deepcopy(found.model), (found.x, found.y), batch_size=at_once, criterion=found.network.criterion
        )
        torch.manual_seed(0)
        self.draws(1)

    def draws(self, count: int) -> list[float]:
        from curvlinops import hutchinson_trace

        return [float(hutchinson_trace(self.operator, num_matvecs=1)) for _ in range(count)]

    def top(self, most: int) -> tuple[float, int]:
        from scipy.sparse.linalg import LinearOperator, eigsh

        inner = self.operator.to_scipy(dtype=np.float32)
        made = 0

        def matvec(vector: np.ndarray) -> np.ndarray:
            nonlocal made
            if made >= most:
                raise TimeoutError(f"eigsh was not done after the {most} products there was time for")
            made += 1
            return inner @ vector

        operator = LinearOperator(inner.shape, matvec=matvec, dtype=np.float32)
        values = eigsh(operator, k=1, which="LA", tol=1e-2, return_eigenvectors=False)
        return float(values[0]), made


class BackPack(Rival):
    module = "backpack"
    default_products = 1
    default_words = "DiagGGNMC with one sample: the trace of G, which is H's in a network of ReLU alone"
    top_words = ""

    def __init__(self, found: Prepared, at_once: int) -> None:
        if found.network.task == "next token":
            raise NotImplementedError("BackPACK's cross-entropy takes one label a sample")
        from backpack import extend
        from torch import nn

        self.found, self.at_once = found, at_once
        self.model = extend(copy.deepcopy(found.model).eval(), use_converter=True)
        self.loss = extend(nn.CrossEntropyLoss(reduction="sum"))
        torch.manual_seed(0)
        self.draws(1)

    def draws(self, count: int) -> list[float]:
        return [self._draw() for _ in range(count)]

    def _draw(self) -> float:
        from backpack import backpack
        from backpack.extensions import DiagGGNMC

        total: float | Tensor = 0.0
        for part, _ in plain.parts(self.found, self.at_once):
            self.model.zero_grad()
            with backpack(DiagGGNMC(mc_samples=1)), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch remarks on the hooks it works with
                self.loss(self.model(self.found.x[part]), self.found.y[part]).backward()
            total = total + sum(p.diag_ggn_mc.double().sum() for p in self.model.parameters())
        return float(total) / len(self.found.y)

    def top(self, most: int) -> tuple[float, int]:
        raise NotImplementedError("BackPACK has no eigenvalues")


RIVALS: dict[str, type[Rival]] = {
    "hessian-eigenthings": EigenThings,
    "curvlinops": Curvlinops,
    "BackPACK": BackPack,
    "PyHessian": PyHessian,
}


def mean_and_error(draws: list[float]) -> tuple[float, float]:
    """Return the mean of some draws and its standard error."""
    values = np.array(draws, dtype=np.float64)
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), error


def rival(name: str) -> Callable[[Prepared, torch.device, float, Facts, Keep], None]:
    """Return (e), the row of one peer."""

    def row(found: Prepared, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
        with plain.twice_differentiable():
            run(RIVALS[name], found, device, seconds, known, keep)

    return row


def run(kind: type[Rival], found: Prepared, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
    """Time a product, then run trace and eigenvalue by default as far as there is time; the rest is extrapolated."""
    began = time.perf_counter()
    keep(trace_words=kind.default_words, top_words=kind.top_words)
    if not peers.installed(kind.module):
        raise ModuleNotFoundError("not installed here")
    plain.free()
    forget_peak(device)
    (setting_up, own), at_once = plain.halving(lambda size: seconds_of(lambda: kind(found, size), device), len(found.y))
    keep(samples_at_once=at_once, set_up_seconds=setting_up)
    try:
        _timed(own, setting_up, device, seconds - (time.perf_counter() - began), known, keep)
    finally:
        own.close()


def _timed(own: Rival, setting_up: float, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
    kind, began = type(own), time.perf_counter()
    cost, first = seconds_of(lambda: own.draws(1), device)
    keep(product_seconds=cost)

    def left(share: float) -> int:
        return int(share * (seconds - (time.perf_counter() - began)) / cost)

    draws = [*first]
    if left(0.3) < kind.default_products or kind.default_products < FEWEST:
        draws += own.draws(min(32, max(FEWEST, left(0.2))))
    else:
        draws += own.draws(min(16, max(FEWEST, left(0.1))))
    value, error = mean_and_error(draws)
    keep(probes=len(draws), probes_value=value, probes_stderr=error)
    _to_our_error(draws, cost, setting_up, known, keep)
    try:
        spent, (value, error, products) = seconds_of(lambda: own.default_trace(max(2, left(0.5))), device)
        keep(
            trace_seconds=spent, trace_value=value, trace_stderr=error, trace_products=products,
            trace_cut_short=kind.default_products > products and kind is not PyHessian,
            **_against_ours(value, known),
        )  # fmt: skip
    except Exception as failure:
        keep(trace_reason=_sentence(failure))
        plain.free()
    keep(peak_bytes=peak_bytes(device))
    if not kind.top_words:
        return
    most = left(0.8)
    if most < 2:
        keep(top_reason="there was no time left for it")
        return
    try:
        spent, (highest, steps) = seconds_of(lambda: own.top(most), device)
        keep(top_seconds=spent, top_value=highest, top_products=steps)
        sure = known.get("top", {})
        if sure.get("value"):
            keep(top_error=abs(highest / sure["value"] - 1), our_top_value=sure["value"])
    except Exception as failure:  # its own sentence is the result
        keep(top_reason=_sentence(failure))
    keep(peak_bytes=peak_bytes(device))


def _sentence(failure: Exception) -> str:
    return f"{type(failure).__name__}: {' '.join(str(failure).split())[:200]}"


def _against_ours(value: float, known: Facts) -> dict[str, Any]:
    ours = known.get("trace", {}).get("value")
    return {"trace_off_ours": abs(value / ours - 1), "our_trace_value": ours} if ours else {}


def _to_our_error(draws: list[float], cost: float, setting_up: float, known: Facts, keep: Keep) -> None:
    """Say how many probes, and so how long, an error as small as ours takes: errors fall with their number's root."""
    ours = known.get("trace", {})
    value, error = mean_and_error(draws)
    scale = abs(ours.get("value") or value)
    goal = (ours.get("stderr") or 0.0) / scale if scale else 0.0
    goal_is = "our standard error"
    if not goal:
        goal, goal_is = 0.05, "5%, as our value is exact" if "value" in ours else "5%, as there is no value of ours"
    wanted = len(draws) * (error / scale / goal) ** 2 if scale else math.nan
    keep(
        spread_of_one_probe=error * math.sqrt(len(draws)) / scale if scale else math.nan,
        spread_from=len(draws),
        goal=goal,
        goal_is=goal_is,
        probes_to_goal=max(1.0, wanted),
        seconds_to_goal=max(1.0, wanted) * cost + setting_up,
    )
