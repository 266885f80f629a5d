"""What a spectrum will take, before it is computed: memory, sweeps, and the choices that make it fit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from spiritlevel.engine.operators.matrices import VarianceOperator
from spiritlevel.engine.operators.memory import free_bytes, graph_bytes
from spiritlevel.engine.operators.operator import Operator
from spiritlevel.results.numerals import bytes_text
from spiritlevel.values.errors import SpiritlevelError, UsageError

# Share of the free memory that one run may take, and vectors of work beside the basis for each probe.
USABLE_SHARE = 0.8
WORK_VECTORS = 8
FLOAT64_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class SpectrumPlan:
    """Memory and passes of a Lanczos run, with what was chosen so that it fits."""

    operator: str
    order: int  # of the matrix
    probes: int
    steps: int
    probes_at_once: int
    basis_device: str
    basis_bytes: int
    graph_bytes: int
    work_bytes: int
    free_bytes: int  # where the basis is kept
    keep_graphs: bool
    strategy: str
    path: str
    sweeps: int
    products: int

    def record(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        graphs = "graphs of all batches kept" if self.keep_graphs else "one batch's graph at a time"
        together = (
            f"all {self.probes} probes together"
            if self.probes_at_once >= self.probes
            else f"{self.probes_at_once} of {self.probes} probes at a time, so that their bases fit"
        )
        return (
            f"Spectrum of {self.operator}, order {self.order:,}: {self.sweeps:,} sweeps over the data, "
            f"{self.products:,} products ({self.path}, {self.strategy}, {graphs})\n"
            f"{together}; basis {bytes_text(self.basis_bytes)} on {self.basis_device}, graph of a batch "
            f"{bytes_text(self.graph_bytes)}, work {bytes_text(self.work_bytes)}; {bytes_text(self.free_bytes)} free"
        )


def plan_spectrum(operator: Operator, name: str, probes: int, steps: int) -> SpectrumPlan:
    """Choose how many probes advance together and where their bases are kept, so that the run fits into memory."""
    if probes < 1 or steps < 1:
        raise UsageError(f"a spectrum needs at least one probe and one step; found probes={probes}, steps={steps}")
    problem = operator.problem
    steps = min(steps, operator.size)
    element = problem.tensors[0].element_size()
    per_probe = steps * operator.size * element
    work = WORK_VECTORS * operator.size * FLOAT64_BYTES
    graph, batches = graph_bytes(problem)
    keep = operator.products.keeps_graphs
    held = graph * (batches if keep else 1)
    home, free = problem.device, free_bytes(problem.device)
    fitting = _fitting(USABLE_SHARE * free - held, per_probe + work)
    if fitting < min(2, probes) and home.type != "cpu":
        home, free = torch.device("cpu"), free_bytes(torch.device("cpu"))
        fitting = _fitting(USABLE_SHARE * free, per_probe + work)
    if fitting < 1:
        most = max(int((USABLE_SHARE * free - held - work) // (operator.size * element)), 0)
        raise SpiritlevelError(
            f"one probe's basis of {steps} vectors takes {bytes_text(per_probe)} and {bytes_text(free)} of memory are "
            "free; "
            + (f"ask for at most {most} steps" if most else "use fewer parameters, or a machine with more memory")
        )
    at_once = min(probes, fitting)
    rounds = -(-probes // at_once)
    factor = 2 if isinstance(operator, VarianceOperator) else 1
    return SpectrumPlan(
        operator=name,
        order=operator.size,
        probes=probes,
        steps=steps,
        probes_at_once=at_once,
        basis_device=str(home),
        basis_bytes=at_once * per_probe,
        graph_bytes=graph,
        work_bytes=at_once * work,
        free_bytes=free,
        keep_graphs=keep,
        strategy=operator.products.strategy_for(at_once),
        path=operator.path.label,
        sweeps=rounds * steps * factor,
        products=probes * steps * (3 if factor == 2 else 1),
    )


def _fitting(room: float, each: int) -> int:
    return max(int(room // each), 0)
