"""PyHessian's class: change ``from pyhessian import hessian`` to ``from spiritlevel.compat.pyhessian import hessian``.

The calls and the shapes of what they return are PyHessian's; the numbers are Spiritlevel's: eigenvalues with measured
residuals in place of a change between iterations, a trace that is exact where the network allows it and otherwise stops
by its standard error, quadrature weights that sum to one.  The model is not changed, not even its mode.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.analyses.eigenvalue_search import eigenvalues
from spiritlevel.engine.estimators.eigenvalues import Which
from spiritlevel.engine.estimators.lanczos import lanczos
from spiritlevel.engine.estimators.probes import random_signs, until
from spiritlevel.engine.operators import GGNOperator, HessianOperator
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.losses import Loss, labels_of, resolve
from spiritlevel.inputs.open_problem import open_problem
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results.eigenpairs import Eigenvalues
from spiritlevel.values.draws import Samples
from spiritlevel.values.errors import UsageError


class hessian:
    """The Hessian of a model's mean loss on one batch or on a data loader, in evaluation mode.

    The calls and the shapes of what they return are PyHessian's; the numbers are Spiritlevel's. The model is not
    changed, not even its mode.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    criterion : callable
        The loss of outputs and targets, a mean over the batch.
    data : pair of Tensor
        One batch (inputs, targets).
    dataloader : DataLoader
        In place of ``data``, several batches.
    cuda : bool
        Whether to work on the GPU; as with PyHessian it must be False where there is none.
    seed : int
        Makes every call repeatable: the same call gives the same numbers.

    Raises
    ------
    UsageError
        Both ``data`` and ``dataloader`` are given or neither, or the criterion is no mean over samples.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> from spiritlevel.compat.pyhessian import hessian
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> batch = sl.datasets.load("digits").subset(range(100)).tensors
    >>> h = hessian(model, torch.nn.CrossEntropyLoss(), data=batch, cuda=False)
    >>> values, vectors = h.eigenvalues(top_n=2)
    >>> [round(value, 2) for value in values], len(vectors[0])
    ([0.45, 0.41], 6)
    >>> [round(draw, 2) for draw in h.trace()]
    [1.91]
    """

    def __init__(
        self,
        model: nn.Module,
        criterion: Callable[[Tensor, Tensor], Tensor],
        data: tuple[Tensor, Tensor] | None = None,
        dataloader: Iterable[Any] | None = None,
        cuda: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        if (data is None) == (dataloader is None):
            raise UsageError("give either data=(inputs, targets) or dataloader=..., and not both")
        given = Problem(
            model,
            tuple(data) if data is not None else dataloader,
            _as_loss(criterion),
            device="cuda" if cuda else None,
            seed=seed,
        )
        self.problem = open_problem(given)
        self.model, self.criterion, self.seed = model, criterion, seed
        self.device = str(self.problem.device)
        self.full_dataset = data is None
        self.found: Eigenvalues | None = None  # of the last call of eigenvalues, with residuals and status

    def eigenvalues(
        self, maxIter: int = 100, tol: float = 1e-3, top_n: int = 1, *, which: Which = "magnitude"
    ) -> tuple[list[float], list[list[Tensor]]]:
        """Return the ``top_n`` eigenvalues and their vectors, each a list of tensors shaped as the parameters.

        As power iteration would, it looks for the largest in magnitude. A spent budget is said by a warning; ``found``
        has the residuals.

        Parameters
        ----------
        maxIter : int
            The most sweeps for each eigenvalue.
        tol : float
            The bound of the residuals, against the norm.
        top_n : int
            How many.
        which : str
            "magnitude", or "largest", which asks for the most positive.

        Returns
        -------
        pair of lists
            The eigenvalues, and for each its vector as a list of tensors.
        """
        sweeps = max(maxIter, 2) * top_n
        self.found = eigenvalues(self.problem, top_n, which, tolerance=tol, max_sweeps=sweeps, seed=self.seed)
        if self.found.status != "ok":
            warnings.warn(f"eigenvalues did not converge: {self.found.reason}", RuntimeWarning, stacklevel=2)
        vectors = [list(self.problem.unflatten(column).values()) for column in self.found.vectors.T]
        return self.found.values.tolist(), vectors

    def trace(self, maxIter: int = 100, tol: float = 1e-3) -> list[float]:
        """Return draws whose mean is the trace: one where it is exact, else until its error is ``tol`` of it.

        Parameters
        ----------
        maxIter : int
            The most draws.
        tol : float
            The relative error at which to stop.

        Returns
        -------
        list of float
            The draws.
        """
        problem = self.problem
        with problem.session():
            if problem.survey.coupled:
                return self._draws(maxIter, tol, 0.0, None)
            blocks = Workbench(problem, seed=self.seed).blocks
            if blocks.exact:
                return [blocks.network_trace().value]
            return self._draws(maxIter, tol, blocks.ggn_trace().value, GGNOperator(problem).matvec)

    def _draws(
        self, maximum: int, tolerance: float, known: float, product: Callable[[Tensor], Tensor] | None
    ) -> list[float]:
        """Return draws of zᵀHz, with the Gauss–Newton matrix, whose trace is known, as a control."""
        problem = self.problem
        matrix = HessianOperator(problem, keep_graphs=None)

        def draw(first: int, count: int) -> list[float]:
            start = random_signs(
                problem.size, count, seed=self.seed, first=first, dtype=problem.dtype, device=problem.device
            )
            forms = (start.double() * matrix.matvec(start).double()).sum(0)
            if product is not None:
                forms += known - (start.double() * product(start).double()).sum(0)
            return forms.tolist()

        samples: Samples
        samples, _ = until(draw, tolerance=tolerance, minimum=min(8, max(maximum, 2)), maximum=max(maximum, 2))
        matrix.release()
        return samples.values

    def density(self, iter: int = 100, n_v: int = 1) -> tuple[list[list[float]], list[list[float]]]:
        """Return the Ritz values and their weights of ``n_v`` probes of ``iter`` Lanczos steps, one list a probe.

        Parameters
        ----------
        iter : int
            Lanczos steps.
        n_v : int
            Probes.

        Returns
        -------
        pair of lists
            The Ritz values of every probe, and their weights, which sum to one.
        """
        problem = self.problem
        matrix = HessianOperator(problem, keep_graphs=None)
        start = random_signs(problem.size, n_v, seed=self.seed, dtype=problem.dtype, device=problem.device)
        with problem.session():
            run = lanczos(matrix.matvec, start, iter, seed=self.seed)
        matrix.release()
        return run.ritz_values.tolist(), run.weights.tolist()


def _as_loss(criterion: Any) -> Loss:
    """Return the loss per sample behind a criterion that gives the mean of a batch."""
    try:
        return resolve(criterion) if isinstance(criterion, nn.Module) else resolve(_by_sample(criterion))
    except UsageError:
        if getattr(criterion, "reduction", None) != "mean":
            raise
        apart = copy.copy(criterion)
        apart.reduction = "none"
        return resolve(_each(apart, type(criterion).__name__))


def _each(apart: Callable[[Tensor, Tensor], Tensor], name: str) -> Callable[[Tensor, Any], Tensor]:
    """Return the losses of a torch criterion without reduction, averaged over a sample's own entries."""

    def losses(outputs: Tensor, batch: Any) -> Tensor:
        found = apart(outputs, labels_of(batch))
        return found.reshape(len(outputs), -1).mean(1)

    losses.__name__ = name
    return losses


def _by_sample(criterion: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Any], Tensor]:
    """Return a function's losses sample by sample, refusing one whose mean over a batch is not their mean."""

    def losses(outputs: Tensor, batch: Any) -> Tensor:
        targets = labels_of(batch)
        found = torch.stack([criterion(outputs[i : i + 1], targets[i : i + 1]) for i in range(len(outputs))])
        whole = criterion(outputs, targets)
        if not torch.allclose(found.detach().mean(), whole.detach(), rtol=1e-4, atol=1e-7):
            raise UsageError(
                f"the criterion gives {float(whole):.6g} for a batch and {float(found.mean()):.6g} as the mean over "
                "its samples; pass one that averages over samples"
            )
        return found

    losses.__name__ = getattr(criterion, "__name__", type(criterion).__name__)
    return losses
