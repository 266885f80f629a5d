"""Our rows of one network: what a gradient and a training step cost, and what is measured in how many of them."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch

import spiritlevel as sl
from benchmarks.large import plain
from benchmarks.large.networks import Prepared
from benchmarks.memory import forget_peak, peak_bytes
from benchmarks.timing import synchronise
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.inputs.process.precision import full_float32

Facts = dict[str, Any]
Keep = Callable[..., None]  # puts facts into the row and writes it down
TOLERANCE, TOP_TOLERANCE = 0.05, 1e-2
MOST_PROBES, PROBES_AT_ONCE = 64, 4
DEADLINE = 0.9  # of a row's seconds: what is known by then comes with its error, where without one nothing would


def gradient(found: Prepared, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
    """(a) A gradient with torch's own settings and in full float32, and a training step with its peak memory."""
    keep(how="forward and backward over all measured samples; the least of three")
    default, at_once = plain.gradient_seconds(found, device)
    keep(
        default_seconds=default,
        samples_at_once=at_once,
        default_settings={
            "matmul precision": torch.get_float32_matmul_precision(),
            "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        },
    )
    with full_float32():
        full, _ = plain.gradient_seconds(found, device)
    keep(seconds=full)
    step, peak, step_at_once = plain.training_step(found, device)
    keep(
        step_seconds=step,
        step_peak_bytes=peak,
        step_samples_at_once=step_at_once,
        step_how="forward, backward and AdamW in float32 with torch's own settings, the second of two steps",
    )


def trace(found: Prepared, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
    """(b) The trace to 5%."""
    options = {"measures": ["hessian_trace"], "tolerance": TOLERANCE, "seconds": DEADLINE * seconds}
    report = _measured(found, device, known, keep, **options)
    if report is not None and "hessian_trace" in report:
        keep(**_estimate(report["hessian_trace"]))


def default(found: Prepared, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
    """(c) The default group, as ``sl.measure(problem)`` gives it, by a deadline."""
    report = _measured(found, device, known, keep, seconds=DEADLINE * seconds)
    if report is not None:
        keep(measures={name: _estimate(estimate) for name, estimate in report.items()})


def top(found: Prepared, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
    """(d) The largest eigenvalue to a residual of 1e-2 of the norm, with every product's time."""
    products: list[tuple[float, float, int, int]] = []  # when it began, seconds, columns, samples
    start: list[float] = []
    own = HessianOperator.matvec

    def timed(self: HessianOperator, block: torch.Tensor) -> torch.Tensor:
        synchronise(device)
        began = time.perf_counter()
        image = own(self, block)
        synchronise(device)
        columns = block.shape[1] if block.ndim > 1 else 1
        products.append((began, time.perf_counter() - began, columns, self.problem.source.count or 0))
        return image

    with patch.object(HessianOperator, "matvec", timed):
        settings = {"measures": ["hessian_top_eigenvalue"], "tolerance": TOP_TOLERANCE}
        report = _measured(found, device, known, keep, start, **settings, seconds=DEADLINE * seconds)
    if products:
        keep(
            seconds_before_first_product=products[0][0] - start[0],
            seconds_in_products=sum(one[1] for one in products),
            product_calls=[{"seconds": one[1], "vectors": one[2], "samples": one[3]} for one in products[:40]],
            vectors_multiplied=sum(one[2] for one in products if one[3] in (0, len(found.y))),
            vectors_multiplied_on_a_part=sum(one[2] for one in products if one[3] not in (0, len(found.y))),
        )
    if report is not None and "hessian_top_eigenvalue" in report:
        estimate = report["hessian_top_eigenvalue"]
        keep(
            **_estimate(estimate), residual=estimate.details.get("residual"), products=estimate.details.get("products")
        )


def truth(found: Prepared, device: torch.device, seconds: float, known: Facts, keep: Keep) -> None:
    """(f) The trace again: with another seed of ours, and by plain probes that share no code with it."""
    began = time.perf_counter()
    ours = [(one["value"], one["stderr"]) for one in [known.get("trace", {})] if "value" in one]

    def probing(share: float) -> None:
        draws: list[float] = []
        at_once = len(found.y)
        spent = 0.0
        while len(draws) < MOST_PROBES and (time.perf_counter() - began) + spent < share * seconds:
            before = time.perf_counter()
            some = functools.partial(plain.probes, found, len(draws), PROBES_AT_ONCE)
            new, at_once = plain.halving(some, at_once)
            spent = time.perf_counter() - before
            draws += new
            sample = torch.tensor(draws, dtype=torch.float64)
            value, error = float(sample.mean()), float(sample.std()) / math.sqrt(len(draws))
            keep(
                probes={
                    "count": len(draws), "value": value, "stderr": error, "samples_at_once": at_once,
                    "seconds": time.perf_counter() - began, "z": [apart(*one, value, error) for one in ours],
                }
            )  # fmt: skip

    probing(0.45)
    plain.free()
    second: Facts = {}
    report = _measured(
        found,
        device,
        known,
        lambda **facts: second.update(facts),
        measures=["hessian_trace"],
        tolerance=TOLERANCE,
        seed=1,
    )
    if report is not None and "hessian_trace" in report:
        second |= _estimate(report["hessian_trace"])
        second["z"] = [apart(*one, second["value"], second["stderr"]) for one in ours]
    keep(second_seed=second)


def apart(a: float, a_error: float, b: float, b_error: float) -> float:
    """Return by how many of their joint standard errors two values differ."""
    error = math.hypot(a_error or 0.0, b_error or 0.0)
    return math.nan if error == 0 else (b - a) / error


def _measured(
    found: Prepared,
    device: torch.device,
    known: Facts,
    keep: Keep,
    when: list[float] | None = None,
    **options: Any,
) -> sl.Report | None:
    """Measure, and keep seconds, passes, memory, batch sizes and what the report says; None where nothing came.

    ``when`` takes the time at which the clock was started.
    """
    sizes: dict[int, int] = {}

    def forward(model: torch.nn.Module, content: Any) -> Any:
        sizes[len(content[0])] = sizes.get(len(content[0]), 0) + 1
        return model(content[0])

    problem = sl.Problem(found.model, (found.x, found.y), loss=found.network.loss, forward=forward)
    plain.free()
    forget_peak(device)
    synchronise(device)
    start = time.perf_counter()
    if when is not None:
        when.append(start)
    report: sl.Report | None = None
    try:
        report = sl.measure(problem, **options)
    except KeyboardInterrupt as stopped:  # the row's time is over: what was finished by then is kept
        report = getattr(stopped, "report", None)
        keep(stopped=f"stopped when the row's {time.perf_counter() - start:.0f} s were spent")
    finally:
        if "seconds" in options:
            keep(deadline=options["seconds"])
        with contextlib.suppress(RuntimeError):
            synchronise(device)
        spent = time.perf_counter() - start
        keep(seconds=spent, peak_bytes=peak_bytes(device), forward_calls_by_batch_size=sizes, **_units(spent, known))
        unit = known.get("gradient", {}).get("step_peak_bytes")
        if unit:
            keep(peak_over_training_step=peak_bytes(device) / unit)
    if report is not None:
        keep(sweeps=dict(report.header.passes or {}), notes=list(report.header.notes))
    return report


def _units(spent: float, known: Facts) -> Facts:
    """Return seconds as gradient passes, in full float32 as the products are, and with torch's own settings."""
    unit = known.get("gradient", {})
    return {
        name: spent / unit[of]
        for name, of in (("passes", "seconds"), ("passes_of_default_gradients", "default_seconds"))
        if of in unit
    }


def _estimate(estimate: sl.Estimate) -> Facts:
    return {
        "value": estimate.value,
        "stderr": estimate.stderr,
        "interval": estimate.interval,
        "how": estimate.how,
        "status": estimate.status,
        "reason": estimate.reason,
    }


ROWS: dict[str, Callable[[Prepared, torch.device, float, Facts, Keep], None]] = {
    "gradient": gradient,
    "trace": trace,
    "top": top,
    "default": default,
    "truth": truth,
}
