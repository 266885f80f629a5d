"""The diagonal blocks of the Hessian by themselves: traces of the network and its layers, and the diagonal."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.remainder import DRAWS_OF_ENTRIES
from spiritlevel.inputs.open_problem import Measurable, open_problem
from spiritlevel.measures.workbench import Workbench
from spiritlevel.values.estimate import Estimate


@dataclass(frozen=True)
class CurvatureView:
    """Diagonal blocks of the Hessian: traces of the network and its layers, and the diagonal by parameter.

    Attributes
    ----------
    trace : Estimate
        The trace of the Hessian.
    layer_trace : dict of str to Estimate
        The trace of each layer's block.
    diagonal : dict of str to Tensor
        The diagonal by parameter, of its shape.
    diagonal_stderr : dict of str to Tensor
        The standard error of each entry; 0 where it is exact.
    exact : bool
        Whether all of it is exact.
    exact_layers : dict of str to bool
        Whether a layer's block is exact.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> view = sl.curvature(problem)
    >>> view.exact_layers
    {'1': True, '3': True, '5': True}
    """

    trace: Estimate
    layer_trace: dict[str, Estimate]
    diagonal: dict[str, Tensor]
    diagonal_stderr: dict[str, Tensor]
    exact: bool
    exact_layers: dict[str, bool]


def curvature(problem: Measurable, *, seed: int = 0, tolerance: float | None = None) -> CurvatureView:
    """Return traces and the diagonal of the Hessian, exact where the network is piecewise linear in a layer.

    Parameters
    ----------
    problem : Problem
        What to measure.
    seed : int
        Seed of what is sampled where it is not exact.
    tolerance : float
        The relative error of the network's trace at which sampling stops; layers and the diagonal carry their own
        errors.

    Returns
    -------
    CurvatureView
        The traces and the diagonal, with their errors.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> view = sl.curvature(problem)
    >>> view.exact, round(view.trace.value, 2)
    (True, 1.95)
    >>> largest = max(view.diagonal, key=lambda name: float(view.diagonal[name].max()))
    >>> largest, tuple(view.diagonal[largest].shape)
    ('5.bias', (10,))
    """
    problem = open_problem(problem)
    bench = Workbench(problem, frozenset({"diagonal"}), seed=seed, tolerance=tolerance)
    with problem.session():
        blocks: Blocks = bench.blocks
        while blocks.improve(blocks.network_trace()):
            pass  # the trace is what the tolerance concerns; layers and the diagonal carry their own errors
        if blocks.sampled_names:
            blocks.remainder.draw_at_least(DRAWS_OF_ENTRIES)
        diagonals = {name: blocks.diagonal(name) for name in problem.parameters}
        return CurvatureView(
            trace=blocks.judged(blocks.network_trace()),
            layer_trace={name: blocks.judged(blocks.layer_trace(name)) for name in problem.layers},
            diagonal={name: part.value for name, part in diagonals.items()},
            diagonal_stderr={name: part.stderr for name, part in diagonals.items()},
            exact=blocks.exact,
            exact_layers=dict(blocks.exact_layers),
        )
