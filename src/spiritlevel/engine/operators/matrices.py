"""The matrices themselves: H and G of all parameters, the block of some of them, and the variance of H over batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spiritlevel.engine.operators.operator import Operator
from spiritlevel.engine.operators.products import Strategy
from spiritlevel.inputs.open_problem import Measurable, open_problem
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import UsageError


@documented_like(Operator)
class HessianOperator(Operator):
    """The Hessian of the mean loss over all chosen parameters.

    ``problem.hessian`` is one with the usual options.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> matrix = sl.operators.HessianOperator(problem, keep_graphs=True)
    >>> v = torch.ones(problem.size)
    >>> round(float(v @ (matrix @ v)), 3)
    24.505
    >>> matrix.release()
    """

    def __init__(self, problem: Measurable, *, strategy: Strategy = "auto", keep_graphs: bool | None = False) -> None:
        super().__init__(problem, problem.parameters, of="hessian", strategy=strategy, keep_graphs=keep_graphs)


@documented_like(Operator)
class GGNOperator(Operator):
    """The Gauss–Newton matrix of the mean loss over all chosen parameters.

    ``problem.ggn`` is one with the usual options.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> matrix = sl.operators.GGNOperator(problem)
    >>> v = torch.ones(problem.size)
    >>> (v @ (matrix @ v)).item() >= 0
    True
    """

    def __init__(self, problem: Measurable, *, strategy: Strategy = "auto", keep_graphs: bool | None = False) -> None:
        super().__init__(problem, problem.parameters, of="ggn", strategy=strategy, keep_graphs=keep_graphs)


@documented_like(Operator)
class LayerBlock(Operator):
    """The block of the Hessian (or, with ``ggn``, of G) that belongs to some parameters alone.

    Parameters
    ----------
    names : list of str
        The parameters.
    ggn : bool
        Whether it is the Gauss–Newton matrix's block.

    Raises
    ------
    UsageError
        There is no such parameter.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> block = sl.operators.LayerBlock(problem, ["5.bias"])
    >>> dense = block @ torch.eye(10)
    >>> tuple(dense.shape), bool(torch.allclose(dense, dense.T, atol=1e-6))
    ((10, 10), True)
    """

    def __init__(
        self,
        problem: Measurable,
        names: Sequence[str],
        *,
        ggn: bool = False,
        strategy: Strategy = "auto",
        keep_graphs: bool | None = False,
    ) -> None:
        unknown = [name for name in names if name not in problem.chosen_parameters]
        if unknown:
            raise UsageError(
                f"no parameter is named {unknown[0]!r} among those of the problem, which problem.parameters lists"
            )
        super().__init__(problem, names, of="ggn" if ggn else "hessian", strategy=strategy, keep_graphs=keep_graphs)


@documented_like(Operator)
class VarianceOperator(Operator):
    """The variance of the Hessian over mini-batches, v ↦ mean_B H_B² v - H² v, of the problem's own batches.

    H_B is the Hessian of batch B's own mean loss; batches count by their share of the mean loss, so that the mean of
    H_B is H whatever their sizes.  Written Σ_B p_B H_B (H_B - H) v, which loses nothing to cancellation: two sweeps.

    Parameters
    ----------
    problem : Problem
        The network, data and loss; its ``batch_size`` is that of the batches.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model, data = sl.nets.build("digits_mlp", seed=0), sl.datasets.load("digits")
    >>> problem = sl.Problem(model, data, samples=100, batch_size=20)
    >>> matrix = sl.operators.VarianceOperator(problem)
    >>> v = torch.ones(problem.size)
    >>> (v @ (matrix @ v)).item() > 0
    True
    """

    def __init__(self, problem: Measurable, *, strategy: Strategy = "auto", keep_graphs: bool | None = False) -> None:
        own = open_problem(problem).in_own_batches()
        super().__init__(
            own, own.parameters, of="hessian", strategy=strategy, keep_graphs=keep_graphs, whole_batches=True
        )

    def _block(self, block: Tensor) -> Tensor:
        """Return the product with a block (P, K): three products with the Hessian of every batch."""
        vectors = self.split(block)
        mean = self.products.multiply(vectors, what="mean over batches")
        blocks, count = self.products.blocks(vectors)
        total = [torch.zeros_like(part, dtype=torch.float64) for part in blocks]
        what = "variance over batches"
        with self.problem.sweep(what) as group:
            for part in self.products.sweep(count, what):
                share = part.share
                if share <= 0:
                    continue
                # A batch's products carry its share already: p_B H_B v.
                own = [product.detach().double() / share for product in part.hessian(blocks)]
                away = [(product - mean[name]).to(b) for product, name, b in zip(own, self.names, blocks)]
                for into, product in zip(total, part.hessian(away)):
                    into += product.detach()
        self.problem.spent["hessian product"] += 2 * count
        found, _ = group.united(dict(zip(self.names, total)), device=self.problem.device)
        return self.join(found).to(block.dtype)
