"""What is measured of a model that is sharded over ranks: all by products, which all ranks make together."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from spiritlevel.analyses.measuring import header_of
from spiritlevel.engine.blocks import TOLERANCE
from spiritlevel.engine.estimators.eigenvalues import BASIS_SHARE, Eigenpairs, EigenpairSearch, Which
from spiritlevel.engine.operators.certified_eigenvalue import certified_eigenvalue
from spiritlevel.engine.operators.memory import free_bytes
from spiritlevel.engine.sharded.open_sharded import ShardedProblem
from spiritlevel.engine.sharded.sharded_products import ShardedHessian
from spiritlevel.engine.sharded.shared_gradient import shared_gradient
from spiritlevel.engine.sharded.shared_survey import take_shared_survey
from spiritlevel.engine.sharded.shared_trace import Span, shared_trace
from spiritlevel.engine.sharded.vectors import held_part, leading, local_signs, norm, squares
from spiritlevel.inputs.given import Given
from spiritlevel.inputs.process.meeting import RankLost
from spiritlevel.inputs.progress import show_progress
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.workbench import EIGEN_TOLERANCE
from spiritlevel.results import Report
from spiritlevel.results.eigenpairs import Eigenvalues
from spiritlevel.results.header import Header
from spiritlevel.values.draws import Samples
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import Estimate, Result, at_least_rounding, not_applicable

OwnSettings = Mapping[str, Any]
Search = tuple[Eigenpairs, Span]
FSDP = "torch.distributed.fsdp"
BASIS = 10  # vectors beside twice those that are sought: every one takes the room of two of the model's parts
DEFLATED = 6  # of the vectors of a search, those that a trace is taken over exactly
APART = 2**30  # no probe of a trace has such a number: what it deflates by must not depend on it


class ShardedBench:
    """What the measures of a sharded model share."""

    def __init__(self, problem: ShardedProblem, seed: int, tolerance: float | None) -> None:
        self.problem, self.seed, self.tolerance = problem, seed, tolerance
        self._hessian: ShardedHessian | None = None
        self._found: dict[tuple[Which, float], Search] = {}

    @property
    def hessian(self) -> ShardedHessian:
        """The Hessian, once it is known how its products are made."""
        if self._hessian is None:
            self._hessian = ShardedHessian(self.problem)
        return self._hessian

    def search(self, which: Which, tolerance: float) -> Search:
        """The outermost eigenpair with the vectors that were multiplied for it, from a search made before if any."""
        key = which, tolerance
        if key not in self._found:
            self._found[key] = shared_pairs(self.hessian, 1, which, tolerance, self.seed)
        return self._found[key]

    def trace(self, _: OwnSettings) -> Result:
        """The trace of the network and of each layer's block, by the same draws."""
        problem = self.problem
        span = self.search("largest", self.tolerance or EIGEN_TOLERANCE)[1]
        found = shared_trace(self.hessian, span, tolerance=self.tolerance or TOLERANCE, seed=self.seed)
        layers = {}
        for name, layer in problem.layers.items():
            rows = [found.parameters[full].values for full in layer.parameters.values()]
            layers[name] = self._mean(Samples([math.fsum(each) for each in zip(*rows)]), met=True)
        return Result(self._mean(found.draws, met=found.met), {"hessian_trace": layers})

    def _mean(self, draws: Samples, *, met: bool) -> Estimate:
        path = self.hessian.path
        error = math.hypot(draws.stderr, path.disagreement * abs(draws.mean))
        shortfall = f"the standard error is above {self.tolerance or TOLERANCE:.0%} of the value"
        status, reason = path.verdict(met, f"{shortfall} after {draws.count} draws")
        return Estimate(
            draws.mean,
            at_least_rounding(error, draws.mean, torch.finfo(self.problem.dtype).eps),
            how="estimated",
            status=status,
            reason=reason,
            samples=self.problem.survey.count,
            passes=float(draws.count),
            details={"draws": list(draws.values), "path": path.label},
        )

    def top(self, settings: OwnSettings, which: Literal["largest", "magnitude"] = "largest") -> Result:
        """The largest eigenvalue, or the largest in magnitude, with its residual."""
        pairs, _ = self.search(which, float(settings["tolerance"]))
        found = certified_eigenvalue(
            float(pairs.values[0]),
            float(pairs.residuals[0]),
            self.hessian.path,
            met=pairs.status == "ok",
            sweeps=pairs.sweeps,
            samples=self.problem.survey.count,
            passes=float(pairs.products),
            products=pairs.products,
        )
        if which == "magnitude" and found.value < 0:
            found = replace(found.scaled(-1.0), details={**found.details, "sign": -1})
        return Result(found)

    def norm_of_weights(self, _: OwnSettings) -> Result:
        """The length of all parameters, and of each layer's."""
        problem = self.problem
        lengths = dict(zip(problem.parameters, problem.company.total(squares(problem.tensors)).tolist()))
        layers = {
            name: Estimate(math.sqrt(sum(lengths[full] for full in layer.parameters.values())))
            for name, layer in problem.layers.items()
        }
        return Result(Estimate(norm(problem, problem.tensors)), {"weight_norm": layers})


MEASURED: dict[str, Callable[[ShardedBench, OwnSettings], Result]] = {
    "hessian_trace": ShardedBench.trace,
    "hessian_top_eigenvalue": ShardedBench.top,
    "hessian_spectral_norm": lambda bench, settings: bench.top(settings, "magnitude"),
    "weight_norm": ShardedBench.norm_of_weights,
}
NOT_SHARDED = (
    "it is not computed for a sharded model, whose layers are never whole on one rank; load the weights into a model "
    f"that is not sharded, or choose among {', '.join(MEASURED)}"
)


def shared_pairs(
    hessian: ShardedHessian, k: int, which: Which, tolerance: float, seed: int, max_sweeps: int = 200
) -> Search:
    """Search for eigenpairs with all ranks in step; return them and the leading vectors, with their products."""
    problem = hessian.problem
    least, wanted = 3 * k, 2 * k + BASIS
    room = BASIS_SHARE * free_bytes(problem.device) / (2 * max(problem.local_size, 1) * problem.dtype.itemsize)
    fitting = int(min(problem.company.told(room)))
    if fitting < min(least, problem.size):
        raise SpiritlevelError(
            f"{least} vectors do not fit into a rank's memory beside the model; shard it over more ranks, or ask for "
            "fewer eigenvalues"
        )
    search = EigenpairSearch(
        hessian.matvec,
        problem.size,
        k,
        which,
        tolerance=tolerance,
        max_sweeps=max_sweeps,
        relative_to="value" if which == "smallest" else "norm",
        max_basis=max(least, min(wanted, fitting)),
        start=local_signs(problem, k, seed=seed, first=APART),
        fresh=0,
        linear=not hessian.path.differences,
        seed=seed,
        dtype=problem.dtype,
        device=problem.device,
        held=held_part(problem),
    )
    with problem.session():
        return search.run(), leading(problem, search.span, DEFLATED)


@contextlib.contextmanager
def _together() -> Iterator[None]:
    """Say as a failure of the measurement what ended it on another rank."""
    try:
        yield
    except RankLost as error:
        raise SpiritlevelError(str(error)) from error


def open_sharded(given: Given) -> ShardedProblem:
    """Return a measurement of a sharded model, after the first sweep over the data of all ranks."""
    problem = ShardedProblem(given)
    problem.known_survey = take_shared_survey(problem)
    return problem


@_together()
def measured_sharded(
    given: Given,
    chosen: list[Measure],
    values: Mapping[str, OwnSettings],
    *,
    seed: int,
    tolerance: float | None,
    progress: bool = False,
) -> Report:
    """Return the report of a sharded model: the same on every rank."""
    began = time.perf_counter()
    problem = open_sharded(given)
    bench = ShardedBench(problem, seed, tolerance)
    results: dict[str, Result] = {}
    with show_progress(problem, progress and problem.company.rank == 0), problem.session():
        gradient = shared_gradient(problem)
        for own in chosen:
            measure = MEASURED.get(own.name) if own.builtin else None
            try:
                results[own.name] = (
                    Result(not_applicable(NOT_SHARDED)) if measure is None else measure(bench, values[own.name])
                )
            except SpiritlevelError as error:
                results[own.name] = Result(not_applicable(str(error)))
    header = replace(_header(problem, seed), gradient_norm=gradient.norm, gradient_noise=gradient.noise)
    header = replace(header, wall_time=time.perf_counter() - began)
    return Report(
        estimates={name: result.value for name, result in results.items()},
        per_layer={quantity: found for result in results.values() for quantity, found in result.layers.items()},
        per_neuron={},
        per_sample={},
        sample_indices=None,
        header=header,
        settings={name: dict(own) for name, own in values.items()},
        titles={own.name: own.title for own in chosen},
    )


def _header(problem: ShardedProblem, seed: int) -> Header:
    own = problem.source.drawn_from or 0
    drawn = problem.company.told(own)
    total = (own if problem.data_fingerprint else sum(drawn)) if all(drawn) else problem.survey.count
    # fully_shard gives a model's class another name, and itself as a base beside the user's.
    name = next(kind.__name__ for kind in type(problem.model).__mro__ if not kind.__module__.startswith(FSDP))
    return replace(header_of(problem, None, seed, None), samples_total=total, model=name)


@_together()
def eigenvalues_of_sharded(
    given: Given,
    k: int,
    which: Which,
    *,
    operator: str,
    tolerance: float,
    max_sweeps: int,
    seed: int,
    differences: bool = False,
    progress: bool = False,
) -> Eigenvalues:
    """Return extreme eigenpairs of a sharded model's Hessian; each rank has its own part of the vectors."""
    if operator != "hessian":
        raise UsageError(f"of a sharded model the Hessian's eigenvalues are found, not those of {operator!r}")
    problem = open_sharded(given)
    if not 1 <= k <= problem.size:
        raise UsageError(f"k must lie between 1 and the order of the matrix, {problem.size:,}; found {k}")
    with show_progress(problem, progress and problem.company.rank == 0), problem.session():
        hessian = ShardedHessian(problem)
        if differences:
            hessian.path.hessian = "finite differences"
        pairs, _ = shared_pairs(hessian, k, which, tolerance, seed, max_sweeps)
    path = hessian.path
    residuals = pairs.residuals + path.error
    shortfall = f"the largest residual is {float(residuals.max()):.2g} after {pairs.sweeps} sweeps"
    status, reason = path.verdict(pairs.status == "ok", shortfall)
    return Eigenvalues(
        values=pairs.values,
        vectors=pairs.vectors,
        residuals=residuals,
        status=status,
        reason=reason,
        sweeps=pairs.sweeps,
        products=pairs.products,
        path=path.label,
        strategy="finite differences" if path.differences else "looped",
        operator=operator,
        header=_header(problem, seed),
    )
