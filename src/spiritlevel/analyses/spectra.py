"""Eigenvalues and whole spectra of a problem's matrices: Hessian, Gauss–Newton matrix, blocks, batch variance."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.analyses.measuring import header_of
from spiritlevel.analyses.spectrum_plan import USABLE_SHARE, SpectrumPlan, plan_spectrum
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.estimators.eigenvalues import USUAL_WIDTH, Eigenpairs, Which, top_eigenpairs
from spiritlevel.engine.estimators.lanczos import Lanczos, lanczos
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.quadrature import counted_quadrature, frobenius_squared, pooled_pairs, quadrature_of
from spiritlevel.engine.estimators.quadrature import trace as lanczos_trace
from spiritlevel.engine.operators import GGNOperator, HessianOperator, LayerBlock, Operator, VarianceOperator
from spiritlevel.engine.operators.memory import free_bytes
from spiritlevel.engine.operators.products import Strategy
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.progress import show_progress
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results.quadrature import Quadrature
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.values.cleaning import for_terminal
from spiritlevel.values.draws import Samples
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names
from spiritlevel.values.estimate import Estimate, Status

MINIMUM_PROBES = 8  # before an error over probes is believed
TOP_COUNT = 40  # largest eigenvalues kept, where they converged
CERTIFICATE = 1e-3  # residual against the norm at which the largest eigenvalue counts as converged
SIGN_CERTIFICATE = 0.1  # residual against its own size at which the smallest one does
NEGLIGIBLE = 1e-5  # residual against the norm below which nobody asks how it compares with the eigenvalue itself
REFINING_SWEEPS = 200
CERTIFIES = "an eigenvalue lies in the interval; that it is the outermost rests on the random start"


@dataclass(frozen=True)
class Eigenvalues:
    """Extreme eigenpairs with the residuals that certify them.

    An eigenvalue lies within each residual of its value.  That it is the largest no residual can prove: the random
    start block makes it so with probability one in exact arithmetic.
    """

    values: Tensor  # (k,) float64, in the order asked for
    vectors: Tensor  # (P, k), unit columns; problem.unflatten gives them by parameter
    residuals: Tensor  # (k,)
    status: Status
    reason: str
    sweeps: int
    products: int
    path: str  # how the products were made
    strategy: str

    @property
    def intervals(self) -> Tensor:
        """The certificate intervals, (k, 2)."""
        return torch.stack([self.values - self.residuals, self.values + self.residuals], dim=1)


def operator_named(
    problem: Problem, name: str, *, strategy: Strategy = "auto", keep_graphs: bool | None = None
) -> Operator:
    """Return a matrix by name: "hessian", "ggn", "batch_variance", a layer, or one parameter of it."""
    options: dict[str, Any] = {"strategy": strategy, "keep_graphs": keep_graphs}
    if name == "hessian":
        return HessianOperator(problem, **options)
    if name == "ggn":
        return GGNOperator(problem, **options)
    if name == "batch_variance":
        return VarianceOperator(problem, **options)
    if name in problem.layers:
        return LayerBlock(problem, list(problem.layers[name].parameters.values()), **options)
    if name in problem.chosen_parameters:
        return LayerBlock(problem, [name], **options)
    known = ["hessian", "ggn", "batch_variance", *problem.layers, *problem.chosen_parameters]
    raise UsageError(
        f"there is no matrix {name!r}{near_names(name, known)}; give hessian, ggn, batch_variance, a layer or a "
        "parameter"
    )


def eigenvalues(
    problem: Problem,
    k: int = 1,
    which: Which = "largest",
    *,
    operator: str = "hessian",
    tolerance: float = 1e-3,
    max_sweeps: int = 200,
    seed: int = 0,
    strategy: Strategy = "auto",
    keep_graphs: bool | None = None,
    progress: bool = False,
) -> Eigenvalues:
    """Find the k largest, smallest or largest-in-magnitude eigenpairs, each with the residual of an actual product.

    Stops when every residual is at most ``tolerance`` times the norm of the matrix (for "smallest", times the
    eigenvalue itself, because the small end of the spectrum is short, down to 1e-5 of the norm), or when ``max_sweeps``
    sweeps are spent, which the status says.
    """
    matrix = operator_named(problem, operator, strategy=strategy, keep_graphs=keep_graphs)
    matrix.products.usual = USUAL_WIDTH
    if not 1 <= k <= matrix.size:
        raise UsageError(f"k must lie between 1 and the order of the matrix, {matrix.size:,}; found {k}")
    with show_progress(problem, progress), problem.session():
        try:
            pairs = _pairs(matrix, k, which, tolerance, max_sweeps, seed)
        finally:
            matrix.release()
    path = matrix.path
    shortfall = f"the largest residual is {float(pairs.residuals.max()):.2g} after {pairs.sweeps} sweeps"
    status, reason = path.verdict(pairs.status == "ok", shortfall)
    return Eigenvalues(
        values=pairs.values,
        vectors=pairs.vectors,
        residuals=pairs.residuals,
        status=status,
        reason=reason,
        sweeps=pairs.sweeps,
        products=pairs.products,
        path=path.label,
        strategy=matrix.products.strategy,
    )


def _pairs(
    matrix: Operator,
    k: int,
    which: Which,
    tolerance: float,
    max_sweeps: int,
    seed: int,
    start: Tensor | None = None,
) -> Eigenpairs:
    """Search for eigenpairs; at the short end relative to the eigenvalue itself, down to what is negligible."""
    problem = matrix.problem
    most, home = _basis_room(matrix, 3 * (k + 1), 6 * k + 24)
    norm = 0.0  # a lower bound, from the products themselves

    def product(columns: Tensor) -> Tensor:
        nonlocal norm
        found = matrix.matvec(columns)
        norm = max(norm, float((found.double().norm(dim=0) / columns.double().norm(dim=0)).max()))
        return found

    def negligible(sweeps: int, values: Tensor, residuals: Tensor) -> bool:
        return which == "smallest" and len(residuals) == k and bool((residuals <= 0.5 * NEGLIGIBLE * norm).all())

    pairs = top_eigenpairs(
        product,
        matrix.size,
        k,
        which,
        tolerance=tolerance,
        relative_to="value" if which == "smallest" else "norm",
        max_sweeps=max_sweeps,
        max_basis=most,
        start=start,
        linear=not matrix.path.differences,
        seed=seed,
        dtype=problem.dtype,
        device=problem.device,
        basis_device=home,
        callback=negligible,
    )
    if which == "smallest" and bool((pairs.residuals <= NEGLIGIBLE * norm).all()):
        return replace(pairs, status="ok")
    return pairs


def _basis_room(matrix: Operator, least: int, wanted: int) -> tuple[int, torch.device]:
    """Return how many basis vectors to keep and where, so that they and their images fit."""
    vector = 2 * matrix.size * matrix.problem.tensors[0].element_size()
    for home in dict.fromkeys([matrix.problem.device, torch.device("cpu")]):
        fitting = int(USABLE_SHARE * free_bytes(home) // vector)
        if fitting >= min(least, matrix.size):
            return min(wanted, fitting), home
    raise SpiritlevelError(
        f"{least} vectors of {matrix.size:,} numbers do not fit into memory; ask for fewer eigenvalues"
    )


def spectrum(
    problem: Problem,
    probes: int = 8,
    steps: int = 80,
    seed: int = 0,
    *,
    operator: str = "hessian",
    tolerance: float | None = None,
    max_probes: int = 64,
    strategy: Strategy = "auto",
    keep_graphs: bool | None = None,
    progress: bool = False,
) -> Spectrum:
    """Compute the spectrum by Lanczos from several random probes that advance together, one sweep over the data a step.

    ``operator``: "hessian", "ggn", "batch_variance" (of the problem's own batches), a layer's name for its block, or a
    parameter's.  With ``tolerance`` more probes are taken until the standard errors of trace and squared Frobenius norm
    are below that share of them, and the extreme eigenvalues are refined until their residuals are, or until
    ``max_probes`` are spent; every number then says whether it got there.  Without it ``probes`` are taken.
    ``progress`` prints the memory plan and shows the sweeps on standard error.
    """
    if tolerance is not None and not 0 < tolerance < 1:
        raise UsageError(f"tolerance must lie between 0 and 1, not {tolerance}")
    matrix = operator_named(problem, operator, strategy=strategy, keep_graphs=keep_graphs)
    plan = plan_spectrum(matrix, operator, probes, steps)
    if progress:
        print(for_terminal(str(plan), lines=True), file=sys.stderr, flush=True)
    with show_progress(problem, progress), problem.session():
        try:
            return _Run(matrix, operator, plan, seed, tolerance, max(max_probes, probes)).result()
        finally:
            matrix.release()


class _Run:
    """Rounds of probes, what they found so far, and when to stop."""

    def __init__(
        self, matrix: Operator, name: str, plan: SpectrumPlan, seed: int, tolerance: float | None, max_probes: int
    ) -> None:
        self.matrix, self.name, self.plan = matrix, name, plan
        self.problem, self.seed, self.tolerance, self.max_probes = matrix.problem, seed, tolerance, max_probes
        self.bench = Workbench(self.problem, seed=seed, tolerance=tolerance)
        self.trace, self.frobenius = Samples(), Samples()
        self.rounding_trace = self.rounding_frobenius = 0.0
        self.nodes: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.residuals: list[Tensor] = []
        self.counted: list[Quadrature] = []
        self.top = (torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))
        self.extremes: dict[str, tuple[float, float, Tensor]] = {}
        self.exact_trace, self.control = self._known_trace()

    def result(self) -> Spectrum:
        """Take rounds until the errors are met or the probes are spent, then certify the extremes."""
        while not self._done():
            wanted = self.plan.probes if self.trace.count < self.plan.probes else self.max_probes
            self._round(min(self.plan.probes_at_once, wanted - self.trace.count))
        largest, smallest = self._extreme("largest"), self._extreme("smallest")
        survey = self.problem.survey
        classes = survey.output_shape[0] if survey.correct is not None else None
        bench = self.bench
        plan = {**self.plan.record(), "path": self.matrix.path.label, "strategy": self.matrix.products.strategy}
        return Spectrum(
            operator=self.name,
            size=self.matrix.size,
            eigenvalue_max=largest,
            eigenvalue_min=smallest,
            trace=self.exact_trace or self._sum(self.trace, self.rounding_trace, "trace"),
            frobenius_squared=self._sum(self.frobenius, self.rounding_frobenius, "squared norm"),
            nodes=torch.cat(self.nodes),
            weights=torch.cat(self.weights),
            residuals=torch.cat(self.residuals),
            counted_nodes=torch.cat([found.nodes for found in self.counted]),
            counted_weights=torch.cat([found.weights for found in self.counted]),
            top_values=self.top[0],
            top_residuals=self.top[1],
            rounding=self.rounding,
            classes=classes,
            settings={
                "probes": self.trace.count,
                "steps": self.plan.steps,
                "seed": self.seed,
                "operator": self.name,
                "tolerance": self.tolerance,
                "max_probes": self.max_probes,
            },
            plan=plan,
            header=header_of(self.problem, bench, self.seed, bench.gradient),
        )

    # --- rounds ----------------------------------------------------------------------------------------------------

    def _done(self) -> bool:
        if self.trace.count < self.plan.probes:
            return False
        if self.tolerance is None or self.trace.count >= self.max_probes:
            return True
        sums = [self.frobenius] if self.exact_trace is not None else [self.trace, self.frobenius]
        return self.trace.count >= MINIMUM_PROBES and all(
            draws.stderr <= self.tolerance * abs(draws.mean) for draws in sums
        )

    def _round(self, count: int) -> None:
        problem, first = self.problem, self.trace.count
        start = random_signs(
            self.matrix.size, count, seed=self.seed, first=first, dtype=problem.dtype, device=problem.device
        )
        run = lanczos(
            self.matrix.matvec, start, self.plan.steps, basis_device=self.plan.basis_device, seed=self.seed + first
        )
        found = quadrature_of(run)
        self.rounding = found.rounding
        self.nodes.append(found.nodes)
        self.weights.append(found.weights)
        self.counted.append(counted_quadrature(run))
        self.residuals.append(run.residual_bounds)
        by_trace = lanczos_trace(run, control=self._control_forms(start))
        by_square = frobenius_squared(run)
        self.trace.add(by_trace.samples)
        self.frobenius.add(by_square.samples)
        eps = torch.finfo(problem.dtype).eps
        self.rounding_trace = 4 * eps * float((run.start_norms.square() * run.alphas[0]).abs().mean())
        self.rounding_frobenius = 8 * eps * by_square.value
        self._take_extremes(run)
        values, residuals, _ = pooled_pairs(run, range(run.probes), TOP_COUNT, "largest")
        if len(values) > len(self.top[0]):
            self.top = (values, residuals)

    def _take_extremes(self, run: Lanczos) -> None:
        flat, bounds = run.ritz_values.flatten(), run.residual_bounds.flatten()
        for which, at in (("largest", int(flat.argmax())), ("smallest", int(flat.argmin()))):
            value, sign = float(flat[at]), 1.0 if which == "largest" else -1.0
            if which in self.extremes and sign * value <= sign * self.extremes[which][0]:
                continue
            probe, place = divmod(at, run.steps)
            vector = run.ritz_vectors(probe, [place])[:, 0].to(self.problem.device)
            self.extremes[which] = (value, float(bounds[at]), vector)

    # --- the trace that is known -----------------------------------------------------------------------------------

    def _known_trace(self) -> tuple[Estimate | None, tuple[float, float, Operator] | None]:
        """Return the trace where it is exact, or tr G with its error and G itself to sample against."""
        problem = self.problem
        if self.name == "batch_variance" or problem.survey.coupled:
            return None, None
        try:
            blocks: Blocks = self.bench.blocks
        except SpiritlevelError:  # no factor of this loss: everything is sampled
            return None, None
        if self.name == "ggn":
            known = blocks.ggn_trace()
            return (known, None) if known.how == "exact" else (None, None)
        layers = {
            layer.name for layer in problem.layers.values() if set(layer.parameters.values()) & set(self.matrix.names)
        }
        sums = blocks.sums
        if sums is None:
            return None, None
        folds = torch.stack([sums.parameters[name].trace.cpu() for name in self.matrix.names]).sum(0)
        error = float(folds.std() / math.sqrt(len(folds))) if len(folds) > 1 else 0.0
        if sums.exact_columns and all(blocks.exact_layers[name] for name in layers):
            if self.name == "hessian":
                return blocks.network_trace(), None
            return Estimate(float(folds.mean()), how="exact", verified=True, samples=problem.survey.count), None
        ggn = LayerBlock(problem, self.matrix.names, ggn=True, strategy=self.matrix.products.asked)
        return None, (float(folds.mean()), error, ggn)

    def _control_forms(self, start: Tensor) -> tuple[float, Tensor] | None:
        if self.control is None:
            return None
        known, _, ggn = self.control
        return known, (start.double() * ggn.matvec(start).double()).sum(0)

    # --- estimates -------------------------------------------------------------------------------------------------

    def _sum(self, draws: Samples, rounding: float, what: str) -> Estimate:
        error = math.hypot(draws.stderr, rounding)
        if what == "trace" and self.control is not None:
            error = math.hypot(error, self.control[1])
        path = self.matrix.path
        met = self.tolerance is None or error <= self.tolerance * abs(draws.mean)
        shortfall = f"the standard error is above {self.tolerance} of the {what} after {draws.count} probes"
        status, reason = path.verdict(met, shortfall)
        return Estimate(
            draws.mean,
            error,
            how="estimated",
            status=status,
            reason=reason,
            samples=self.problem.survey.count,
            passes=float(draws.count * self.plan.steps),
            details={"draws": list(draws.values), "path": path.label},
        )

    def _extreme(self, which: Literal["largest", "smallest"]) -> Estimate:
        value, residual, vector = self.extremes[which]
        scale = max(abs(found[0]) for found in self.extremes.values())
        negligible = NEGLIGIBLE * scale
        # The short end of a spectrum needs its own scale: a residual small against the norm may not even fix its sign.
        unit = scale if which == "largest" else abs(value)
        allowed = max((CERTIFICATE if which == "largest" else SIGN_CERTIFICATE) * unit, negligible)
        passes = float(self.plan.steps)
        if self.tolerance is not None:
            allowed = max(self.tolerance * unit, negligible)
            if residual > allowed:
                pairs = _pairs(self.matrix, 1, which, self.tolerance, REFINING_SWEEPS, self.seed, vector[:, None])
                better = pairs.values[0] > value if which == "largest" else pairs.values[0] < value
                passes += pairs.sweeps
                if better or float(pairs.residuals[0]) < residual:
                    value, residual = float(pairs.values[0]), float(pairs.residuals[0])
                if pairs.status == "ok":
                    allowed = max(allowed, residual)
        path = self.matrix.path
        shortfall = f"the residual is still {residual:.2g} after {passes:.0f} sweeps"
        status, reason = path.verdict(residual <= allowed, shortfall)
        return Estimate(
            value,
            interval=(value - residual, value + residual),
            how="estimated",
            status=status,
            reason=reason,
            samples=self.problem.survey.count,
            passes=passes,
            details={"residual": residual, "certifies": CERTIFIES, "path": path.label},
        )
