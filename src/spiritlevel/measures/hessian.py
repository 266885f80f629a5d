"""The Hessian of the mean loss in numbers: trace, extreme eigenvalues, Frobenius norm, log-volume."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from spiritlevel.engine.blocks import FEWEST_SAMPLE_PROBES, Blocks
from spiritlevel.engine.estimators.eigenvalues import Eigenpairs
from spiritlevel.engine.estimators.lanczos import lanczos
from spiritlevel.engine.estimators.probes import random_signs
from spiritlevel.engine.estimators.quadrature import frobenius_squared
from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.operators.certified_eigenvalue import certified_eigenvalue, stopped_in_time
from spiritlevel.engine.operators.derivative_check import path_of
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.reference import curvature as reference
from spiritlevel.values.estimate import Estimate, Result, at_least_rounding, not_applicable

_RESCALINGS = ("layer_rescaling", "neuron_rescaling")
Eigen = Callable[..., Eigenpairs]


@declare(
    title="Hessian trace",
    formula=r"\operatorname{Tr}\,\nabla^2_\theta L(\theta)",
    citation="Lengyel et al. 2021, section 2; Tsuzuku et al. 2019, eq. (5)",
    cost=Cost(forward=1, column="outputs - 1"),
    invariant=("permutation",),
    not_invariant=(*_RESCALINGS, "output_scaling"),
    reference=reference.hessian_trace,
    layer_quantities=("hessian_trace",),
    per_sample=lambda blocks: blocks.sample_traces().value,
    surrogate="trace",
)
def hessian_trace(blocks: Blocks, *, samples: bool = False) -> Result:
    """Sum of the loss's curvatures over all parameter directions.

    Each sample's own trace comes along where it is exact; with ``samples`` also where it is sampled, with its error.
    """
    value = blocks.network_trace()
    layers = {name: blocks.layer_trace(name) for name in blocks.problem.layers}
    traces = {"hessian_trace": blocks.sums.sample_traces} if blocks.exact and blocks.sums is not None else {}
    if samples and not traces:
        found = blocks.sample_traces(FEWEST_SAMPLE_PROBES)
        traces = {"hessian_trace_estimate": found.value, "hessian_trace_stderr": found.stderr}
    return Result(value, {"hessian_trace": layers}, samples=traces)


@declare(
    title="Gauss–Newton trace",
    formula=r"\operatorname{Tr}\,\tfrac1n\sum_i J_i^\top\Lambda_i J_i",
    citation="Granziol 2021, eq. (13)",
    cost=Cost(forward=1, column="outputs - 1"),
    invariant=("permutation",),
    not_invariant=(*_RESCALINGS, "output_scaling"),
    reference=reference.ggn_trace,
    requires=("independent",),
)
def ggn_trace(blocks: Blocks) -> Estimate:
    """Trace of the part of the Hessian that comes from the loss's own curvature."""
    return blocks.ggn_trace()


def _from_pairs(pairs: Eigenpairs, problem: OpenProblem) -> Estimate:
    value, residual = float(pairs.values[0]), float(pairs.residuals[0])
    return certified_eigenvalue(
        value,
        residual,
        path_of(problem),
        met=pairs.status == "ok",
        sweeps=pairs.sweeps,
        samples=problem.survey.count,
        passes=float(pairs.products),
        products=pairs.products,
    )


@declare(
    title="Top eigenvalue of the Hessian",
    formula=r"\lambda_{\max}(\nabla^2_\theta L)",
    citation="Granziol 2021, section 1; Petzka et al. 2019",
    cost=Cost(forward=1, product="until the residual is met"),
    invariant=("permutation",),
    not_invariant=(*_RESCALINGS, "output_scaling"),
    reference=reference.hessian_top_eigenvalue,
    stability_line=True,
)
def hessian_top_eigenvalue(problem: OpenProblem, eigen: Eigen, *, tolerance: float = 1e-3) -> Estimate:
    """Largest (algebraic) curvature over all directions, certified by its residual."""
    pairs = eigen(1, "largest", tolerance)
    found = _from_pairs(pairs, problem)
    return found if pairs.status == "ok" else stopped_in_time(found, problem)


@declare(
    title="Spectral norm of the Hessian",
    formula=r"\max_i|\lambda_i(\nabla^2_\theta L)|",
    citation="Granziol 2021, section 1",
    cost=Cost(forward=1, product="until the residual is met"),
    invariant=("permutation",),
    not_invariant=(*_RESCALINGS, "output_scaling"),
    reference=reference.hessian_spectral_norm,
    stability_line=True,
)
def hessian_spectral_norm(problem: OpenProblem, eigen: Eigen, *, tolerance: float = 1e-3) -> Estimate:
    """Largest curvature in magnitude; differs from the top eigenvalue where negative curvature dominates."""
    pairs = eigen(1, "magnitude", tolerance)
    found = _from_pairs(pairs, problem)
    if found.value < 0:
        found = replace(found.scaled(-1.0), details={**found.details, "sign": -1})
    return found if pairs.status == "ok" else stopped_in_time(found, problem)


def _squares_written_out(problem: OpenProblem) -> Estimate:
    """Sum all squares: as many products as there are parameters, which are fewer than probes might be."""
    matrix = HessianOperator(problem, keep_graphs=None)
    columns = matrix.matvec(torch.eye(problem.size, dtype=problem.dtype, device=problem.device)).double()
    matrix.release()
    status, reason = matrix.path.verdict()
    square = float(columns.square().sum())
    if not matrix.path.differences:
        return Estimate(
            square, how="exact", status=status, reason=reason, samples=problem.survey.count, passes=float(problem.size)
        )
    # Differences are off by what two steps differ by, and by what makes of them a matrix that is not symmetric.
    norm = math.sqrt(square)
    error = max(matrix.path.disagreement * norm, float((columns - columns.t()).norm()) / 2)
    return Estimate(
        square,
        at_least_rounding(2 * norm * error, square, torch.finfo(problem.dtype).eps),
        how="estimated",
        status=status,
        reason=reason,
        samples=problem.survey.count,
        passes=float(problem.size),
    )


def _in_form(square: Estimate, form: str, size: int) -> Estimate:
    """Return the sum of squares as what was asked for, with every form in the details."""
    value, error = square.value, square.stderr or 0.0
    root = math.sqrt(max(value, 0.0))
    shown = {
        "norm": (root, error / (2 * root) if root > 0 else math.sqrt(error)),
        "squared": (value, error),
        "squared_per_parameter": (value / size, error / size),
    }
    details = {key: {"value": one, "stderr": stderr} for key, (one, stderr) in shown.items()}
    value, error = shown[form]
    return Estimate(**{**vars(square), "value": value, "stderr": error, "details": details})


@declare(
    title="Frobenius norm of the Hessian",
    formula=r"\|\nabla^2_\theta L\|_F",
    citation="Granziol 2021, section 1 and table 3 (whose values are the square over P)",
    cost=Cost(forward=1, product="the top pairs and probes"),
    invariant=("permutation",),
    not_invariant=(*_RESCALINGS, "output_scaling"),
    reference=reference.hessian_frobenius,
    choices={"form": ("norm", "squared", "squared_per_parameter")},
)
def hessian_frobenius(
    problem: OpenProblem,
    eigen: Eigen,
    seed: int,
    *,
    form: str = "norm",
    tolerance: float = 0.05,
    k: int = 10,
    probes: int = 16,
    max_probes: int = 128,
) -> Estimate:
    """Root of the sum of squared curvatures: the top k are counted, the rest sampled."""
    if problem.size <= max_probes:
        return _in_form(_squares_written_out(problem), form, problem.size)
    # However far these have converged, the estimate stays unbiased; only its variance rests on them.
    pairs = eigen(k, "largest")
    values: list[float] = []
    products = pairs.products
    matrix = HessianOperator(problem, keep_graphs=None)
    while True:
        # Probes of another seed than the search's: the pairs must not depend on them.
        start = random_signs(
            problem.size, probes, seed=seed + 1, first=len(values), dtype=problem.dtype, device=problem.device
        )
        try:
            run = lanczos(matrix.matvec, start, 1, seed=seed)
        except TimeSpent:
            if not values:
                raise
            break
        products += probes
        values.extend(frobenius_squared(run, pairs=(pairs.values, pairs.vectors)).samples)
        draws = torch.tensor(values, dtype=torch.float64)
        mean, error = float(draws.mean()), float(draws.std() / len(draws) ** 0.5)
        # The norm's relative error is half its square's.
        if error <= 2 * tolerance * mean or len(values) >= max_probes:
            break
    matrix.release()
    status, reason = matrix.path.verdict(
        error <= 2 * tolerance * mean, f"the error is still {error / mean:.0%} of the square" if mean > 0 else ""
    )
    square = Estimate(
        mean,
        at_least_rounding(error, mean, torch.finfo(problem.dtype).eps),
        how="estimated",
        status=status,
        reason=reason,
        samples=problem.survey.count,
        passes=float(products),
    )
    return _in_form(square, form, problem.size)


@declare(
    title="Log-volume of the top eigenvalues",
    formula=r"\sum_{i\le k}\log\lambda_i(\nabla^2_\theta L)",
    citation="Wu et al. 2017; Granziol 2021, section 1",
    cost=Cost(forward=1, product="until the residuals are met"),
    invariant=("permutation",),
    not_invariant=(*_RESCALINGS, "output_scaling"),
    reference=reference.hessian_log_volume,
)
def hessian_log_volume(problem: OpenProblem, eigen: Eigen, *, k: int = 10, tolerance: float = 1e-3) -> Estimate:
    """Logarithm of the product of the k largest curvatures: minus twice the log of the basin's extent along them."""
    if k > problem.size:
        return not_applicable(
            f"k={k} eigenvalues were asked for, but there are only {problem.size} parameters; ask for no more"
        )
    pairs = eigen(k, "largest", tolerance)
    values, residuals = pairs.values, pairs.residuals
    if float(values.min()) <= 0:
        positive = int((values > 0).sum())
        return not_applicable(f"only {positive} of the {k} largest eigenvalues are positive; choose a smaller k")
    low, high = (values - residuals).clamp(min=0).log().sum(), (values + residuals).log().sum()
    met = pairs.status == "ok"
    found = Estimate(
        float(values.log().sum()),
        interval=(float(low), float(high)),  # without a lower end where a residual reaches to 0
        how="estimated",
        status="ok" if met else "budget_spent",
        reason="" if met else f"the largest residual is still {float(residuals.max()):.2g}",
        samples=problem.survey.count,
        passes=float(pairs.products),
        details={"eigenvalues": values.tolist(), "residuals": residuals.tolist()},
    )
    return found if met else stopped_in_time(found, problem)
