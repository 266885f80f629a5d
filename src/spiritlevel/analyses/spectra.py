"""Eigenvalues and whole spectra of a problem's matrices: Hessian, Gauss–Newton matrix, blocks, batch variance."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.analyses.eigenvalue_search import NEGLIGIBLE, certified_pairs, eigenvalues, operator_named
from spiritlevel.analyses.measuring import header_of
from spiritlevel.analyses.spectrum_plan import SpectrumPlan, plan_spectrum
from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.estimators.eigenvalues import Eigenpairs
from spiritlevel.engine.estimators.lanczos import Lanczos, lanczos_in_time
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.quadrature import (
    counted_quadrature,
    frobenius_squared,
    lanczos_trace,
    pooled_pairs,
    quadrature_of,
)
from spiritlevel.engine.operators import LayerBlock, Operator
from spiritlevel.engine.operators.certified_eigenvalue import certified_eigenvalue
from spiritlevel.engine.operators.products import Strategy
from spiritlevel.inputs.deadline import Deadline, TimeSpent, deadline_of
from spiritlevel.inputs.open_problem import Measurable, open_problem
from spiritlevel.inputs.progress import show_progress
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results.quadrature import Quadrature
from spiritlevel.results.spectrum_result import Spectrum
from spiritlevel.values.cleaning import lines_for_terminal
from spiritlevel.values.documented import documented_like
from spiritlevel.values.draws import Samples
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import ANYWHERE, Estimate, at_least_rounding

MINIMUM_PROBES = 8  # before an error over probes is believed
TOP_COUNT = 40  # largest eigenvalues kept, where they converged
CERTIFICATE = 1e-3  # residual against the norm at which the largest eigenvalue counts as converged
SIGN_CERTIFICATE = 0.1  # residual against its own size at which the smallest one does
REFINING_SWEEPS = 200
CERTIFIES = "an eigenvalue lies in the interval; that it is the outermost rests on the random start"


@documented_like(eigenvalues)
def spectrum(
    problem: Measurable,
    probes: int = 8,
    steps: int = 80,
    seed: int = 0,
    *,
    operator: str = "hessian",
    tolerance: float | None = None,
    max_probes: int = 64,
    strategy: Strategy = "auto",
    keep_graphs: bool | None = None,
    seconds: float | Deadline | None = None,
    progress: bool = False,
) -> Spectrum:
    """Compute the spectrum by Lanczos from several random probes that advance together, one sweep over the data a step.

    With ``tolerance`` more probes are taken until the standard errors of trace and squared Frobenius norm are below
    that share of them, and the extreme eigenvalues are refined until their residuals are, or until ``max_probes`` are
    spent; every number then says whether it got there.  Without it ``probes`` are taken.

    Parameters
    ----------
    probes : int
        Random probes; eight before an error over probes is believed.
    steps : int
        Lanczos steps of each probe.
    seed : int
        Seed of the probes.
    tolerance : float
        The relative error at which to stop.
    max_probes : int
        The most probes, with ``tolerance``.
    seconds : float
        By when the best answer is to be had: of fewer steps or probes, each number with its error by then.
    progress : bool
        Whether to print the memory plan and show the sweeps on standard error.

    Returns
    -------
    Spectrum
        Extreme eigenvalues, trace, Frobenius norm, density and what follows from them.

    Raises
    ------
    UsageError
        There is no such matrix, or a number is out of its range.
    SpiritlevelError
        The bases do not fit into memory.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> found = sl.spectrum(problem, probes=8, steps=20)
    >>> round(found.eigenvalue_max.value, 2), round(found.trace.value, 2), found.trace.how
    (0.34, 1.95, 'exact')
    >>> print(found.sentences[-1])
    8 probes of 20 steps; products by double backward.
    """
    if tolerance is not None and not 0 < tolerance < 1:
        raise UsageError(f"tolerance must lie between 0 and 1, not {tolerance}")
    started, deadline = time.perf_counter(), deadline_of(seconds)
    problem = open_problem(problem)
    problem.deadline = deadline or problem.deadline
    matrix = operator_named(problem, operator, strategy=strategy, keep_graphs=keep_graphs)
    plan = plan_spectrum(matrix, operator, probes, steps)
    if progress:
        print(lines_for_terminal(str(plan)), file=sys.stderr, flush=True)
    with show_progress(problem, progress), problem.session():
        try:
            found = _SpectrumRun(matrix, operator, plan, seed, tolerance, max(max_probes, probes)).result()
        finally:
            matrix.release()
    return found.described(wall_time=time.perf_counter() - started)


class _SpectrumRun:
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
        self.gradient = self.bench.gradient
        self.cut_short = ""  # by what, where fewer steps or probes were made than asked for

    def result(self) -> Spectrum:
        """Take rounds until the errors are met or the probes are spent, then certify the extremes."""
        while not self._done():
            wanted = self.plan.probes if self.trace.count < self.plan.probes else self.max_probes
            try:
                self._round(min(self.plan.probes_at_once, wanted - self.trace.count))
            except TimeSpent:
                if not self.trace.count:
                    raise
                self._stop()
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
            header=header_of(self.problem, bench, self.seed, self.gradient),
        )

    # --- rounds ----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        assert self.problem.deadline is not None
        self.cut_short = self.problem.deadline.words

    def _done(self) -> bool:
        if self.cut_short:
            return True
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
        controls = self._control_forms(start)  # before all steps, which may leave no time for it
        run = lanczos_in_time(
            self.matrix.matvec, start, self.plan.steps, basis_device=self.plan.basis_device, seed=self.seed + first
        )
        if run.steps < min(self.plan.steps, run.size):
            self._stop()
            if self.nodes and run.steps < self.nodes[0].shape[1]:
                return  # quadratures of fewer nodes would not go with the others
        found = quadrature_of(run)
        self.rounding = found.rounding
        self.nodes.append(found.nodes)
        self.weights.append(found.weights)
        self.counted.append(counted_quadrature(run))
        self.residuals.append(run.residual_bounds)
        by_trace = lanczos_trace(run, control=controls)
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
        error = blocks.sketch_error(self.matrix.names)
        if sums.exact and all(blocks.exact_layers[name] for name in layers):
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
        error = math.hypot(error, path.disagreement * abs(draws.mean))
        met = error <= self.tolerance * abs(draws.mean) if self.tolerance is not None else not self.cut_short
        shortfall = f"after {draws.count} of {self.plan.probes} probes"
        if self.tolerance is not None:
            shortfall = f"the standard error is above {self.tolerance} of the {what} after {draws.count} probes"
        shortfall += f"; {self.cut_short}" if self.cut_short else ""
        status, reason = path.verdict(met, shortfall)
        return Estimate(
            draws.mean,
            at_least_rounding(error, draws.mean, torch.finfo(self.problem.dtype).eps),
            interval=None if math.isfinite(error) else ANYWHERE,
            how="estimated",
            status=status,
            reason=reason,
            samples=self.problem.survey.count,
            passes=float(draws.count * self.nodes[0].shape[1]),
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
                pairs = self._refined(which, vector)
                if pairs is not None:
                    better = pairs.values[0] > value if which == "largest" else pairs.values[0] < value
                    passes += pairs.sweeps
                    if better or float(pairs.residuals[0]) < residual:
                        value, residual = float(pairs.values[0]), float(pairs.residuals[0])
                    if pairs.status == "ok":
                        allowed = max(allowed, residual)
        found = certified_eigenvalue(
            value,
            residual,
            self.matrix.path,
            met=residual <= allowed,
            sweeps=passes,
            samples=self.problem.survey.count,
            passes=passes,
            certifies=CERTIFIES,
        )
        if residual <= allowed or not self.cut_short:
            return found
        return replace(found, reason=f"{found.reason}; {self.cut_short}")

    def _refined(self, which: Literal["largest", "smallest"], vector: Tensor) -> Eigenpairs | None:
        """Return what a search from a Ritz vector finds, None where there is no time for one."""
        assert self.tolerance is not None
        try:
            pairs = certified_pairs(self.matrix, 1, which, self.tolerance, REFINING_SWEEPS, self.seed, vector[:, None])
        except TimeSpent:
            pairs = None
        if self.problem.deadline is not None and (pairs is None or pairs.status != "ok"):
            self._stop()
        return pairs
