"""The trace of a sharded model's Hessian: exactly over some directions, by random signs over all others (Hutchinson).

tr H = tr VᵀHV + tr PHP for orthonormal V and P = I - VVᵀ.  Any V does; that of a search for eigenvalues, whose products
are known, holds what most of the variance comes from.  Of one parameter's block tr H_ll is that of (HVVᵀ + HP)_ll.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from spiritlevel.engine.estimators.probes import until
from spiritlevel.engine.sharded.sharded_products import ShardedHessian
from spiritlevel.engine.sharded.vectors import inner_products, local_signs
from spiritlevel.values.draws import Samples

TOGETHER = 2  # probes in one sweep
FEWEST, MOST = 8, 128

Span = tuple[Tensor, Tensor]  # orthonormal rows (m, local), and the products with them


@dataclass
class SharedTrace:
    """Draws of the trace and of each parameter's own block's."""

    draws: Samples
    parameters: dict[str, Samples] = field(default_factory=dict)
    met: bool = True


def shared_trace(hessian: ShardedHessian, span: Span, *, tolerance: float, seed: int) -> SharedTrace:
    """Draw until the standard error is small enough, or as many probes are spent as may be."""
    problem = hessian.problem
    basis, images = span
    total = problem.company.total
    known = inner_products(problem, basis.T, images.T).sum(1)
    parameters = {name: Samples() for name in problem.parameters}

    def beside(columns: Tensor) -> Tensor:
        """Return the part of columns that is orthogonal to the basis."""
        return columns - basis.T @ total(basis @ columns).to(columns)

    def draw(first: int, count: int) -> list[float]:
        """Return so many draws, of which a few are made in one sweep."""
        starts = range(first, first + count, TOGETHER)
        return [one for start in starts for one in few(start, min(TOGETHER, first + count - start))]

    def few(first: int, count: int) -> list[float]:
        signs = local_signs(problem, count, seed=seed, first=first)
        others = beside(signs)
        products = hessian.matvec(others)
        for name, at, row in zip(parameters, known.tolist(), inner_products(problem, signs, products).tolist()):
            parameters[name].add([at + value for value in row])
        forms = inner_products(problem, others, products).sum(0).tolist()
        return [float(known.sum()) + form for form in forms]

    draws, status = until(draw, tolerance=tolerance, minimum=FEWEST, maximum=MOST, block=TOGETHER)
    return SharedTrace(draws, parameters, status == "ok")
