"""Extreme eigenvalues of a problem's matrices, each with the residual that certifies it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spiritlevel.analyses.measuring import header_of, refuse_deadline
from spiritlevel.analyses.spectrum_plan import USABLE_SHARE
from spiritlevel.engine.estimators.eigenvalues import USUAL_WIDTH, Eigenpairs, EigenpairSearch, Which
from spiritlevel.engine.operators import GGNOperator, HessianOperator, LayerBlock, Operator, VarianceOperator
from spiritlevel.engine.operators.memory import free_bytes
from spiritlevel.engine.operators.products import Strategy
from spiritlevel.inputs.deadline import Deadline, TimeSpent, deadline_of
from spiritlevel.inputs.given import Given
from spiritlevel.inputs.open_problem import Measurable, open_problem
from spiritlevel.inputs.progress import show_progress
from spiritlevel.results.eigenpairs import Eigenvalues
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names

NEGLIGIBLE = 1e-5  # residual against the norm below which nobody asks how it compares with the eigenvalue itself


def operator_named(
    problem: Measurable, name: str, *, strategy: Strategy = "auto", keep_graphs: bool | None = None
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
    problem: Measurable,
    k: int = 1,
    which: Which = "largest",
    *,
    operator: str = "hessian",
    tolerance: float = 1e-3,
    max_sweeps: int = 200,
    seed: int = 0,
    strategy: Strategy = "auto",
    keep_graphs: bool | None = None,
    seconds: float | Deadline | None = None,
    progress: bool = False,
) -> Eigenvalues:
    """Find the k largest, smallest or largest-in-magnitude eigenpairs, each with the residual of an actual product.

    Stops when every residual is at most ``tolerance`` times the norm of the matrix (for "smallest", times the
    eigenvalue itself, because the small end of the spectrum is short, down to 1e-5 of the norm), or when ``max_sweeps``
    sweeps are spent, which the status says.

    Parameters
    ----------
    problem : Problem
        What to measure.
    k : int
        How many.
    which : str
        "largest", "smallest" or "magnitude".
    operator : str
        "hessian", "ggn", "batch_variance" (of the problem's own batches), a layer's name for its block, or a
        parameter's.
    tolerance : float
        The share at which residuals suffice.
    max_sweeps : int
        The most sweeps over the data.
    seed : int
        Seed of the start block.
    strategy : str
        How products are made: "auto", "looped", "batched", "forward", "compiled" (on a GPU) or "finite differences".
    keep_graphs : bool
        Whether to keep the graphs of batches between sweeps; None for as many as there is room for.
    seconds : float
        By when to stop, with the residuals as they stand: an eigenvalue lies within each, but a search that was cut
        short may not have come near the outermost.
    progress : bool
        Whether to show progress on standard error.

    Returns
    -------
    Eigenvalues
        Values, vectors and residuals.

    Raises
    ------
    UsageError
        There is no such matrix or strategy, or ``k`` is more than its order.
    SpiritlevelError
        So many vectors do not fit into memory.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> found = sl.eigenvalues(problem, k=3)
    >>> [round(value, 2) for value in found.values.tolist()]
    [0.34, 0.31, 0.28]
    >>> bool((found.residuals <= 1e-3 * found.values[0]).all())
    True
    """
    deadline = deadline_of(seconds)
    if isinstance(problem, Given) and problem.sharded:
        from spiritlevel.analyses.sharded_measuring import eigenvalues_of_sharded

        refuse_deadline(deadline)
        return eigenvalues_of_sharded(
            problem,
            k,
            which,
            operator=operator,
            tolerance=tolerance,
            max_sweeps=max_sweeps,
            seed=seed,
            differences=strategy == "finite differences",
            progress=progress,
        )
    problem = open_problem(problem)
    problem.deadline = deadline or problem.deadline
    matrix = operator_named(problem, operator, strategy=strategy, keep_graphs=keep_graphs)
    matrix.products.usual = USUAL_WIDTH
    if not 1 <= k <= matrix.size:
        raise UsageError(f"k must lie between 1 and the order of the matrix, {matrix.size:,}; found {k}")
    with show_progress(problem, progress), problem.session():
        try:
            pairs = certified_pairs(matrix, k, which, tolerance, max_sweeps, seed)
        finally:
            matrix.release()
    path = matrix.path
    shortfall = f"the largest residual is {float(pairs.residuals.max()):.2g} after {pairs.sweeps} sweeps"
    if pairs.status != "ok" and problem.deadline is not None and problem.deadline.refusals:
        shortfall += f"; {problem.deadline.words}"
    status, reason = path.verdict(pairs.status == "ok", shortfall)
    return Eigenvalues(
        values=pairs.values,
        vectors=pairs.vectors,
        residuals=pairs.residuals + path.error,
        status=status,
        reason=reason,
        sweeps=pairs.sweeps,
        products=pairs.products,
        path=path.label,
        strategy=matrix.products.strategy,
        operator=operator,
        header=header_of(problem, None, seed, None),
    )


def certified_pairs(
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

    search = EigenpairSearch(
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
    )
    try:
        pairs = search.run(negligible)
    except TimeSpent:
        stopped = search.so_far()
        if stopped is None:
            raise
        pairs = stopped
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
