"""The peers' own calls, each at its best setting, from the same model and data to the same answer."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from benchmarks.material import Data


def installed(module: str) -> bool:
    """Whether a peer can be imported here."""
    return importlib.util.find_spec(module) is not None


def missing() -> dict[str, str]:
    """Return the peers that are not installed, with what to say of each."""
    modules = {
        "PyHessian": "pyhessian", "curvlinops": "curvlinops", "BackPACK": "backpack", "nngeometry": "nngeometry",
    }  # fmt: skip
    return {name: "not installed here" for name, module in modules.items() if not installed(module)}


# --- PyHessian -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _old_functions() -> Iterator[None]:
    """Supply ``torch.eig``, which PyHessian's density calls and torch removed: for its symmetric matrices, eigh."""

    def eig(matrix: Tensor, eigenvectors: bool = False) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        return torch.stack([values, torch.zeros_like(values)], dim=1), vectors

    before = torch.eig
    torch.eig = eig  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it makes reference cycles on purpose, and torch says so each time
            yield
    finally:
        torch.eig = before


class PyHessian:
    """PyHessian on one batch: the mode that keeps the gradient's graph and so makes its cheapest products."""

    def __init__(
        self, model: nn.Module, data: Data, names: list[str] | None = None, *, criterion: nn.Module | None = None
    ) -> None:
        from pyhessian import hessian

        model = copy.deepcopy(model)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(names is None or name in names)
        with _old_functions():
            self.hessian = hessian(model, criterion or nn.CrossEntropyLoss(), data=data, cuda=data[0].is_cuda)

    def trace(self, **options: Any) -> list[float]:
        """Return the draws of the trace, up to its own stopping rule."""
        return self.hessian.trace(**options)

    def eigenpairs(self, count: int, tolerance: float, iterations: int) -> tuple[list[float], Tensor]:
        """Return eigenvalues and vectors (P, k)."""
        values, vectors = self.hessian.eigenvalues(maxIter=iterations, tol=tolerance, top_n=count)
        return values, torch.stack([torch.cat([part.reshape(-1) for part in v]) for v in vectors], dim=1)

    def density(self, steps: int, probes: int) -> tuple[Tensor, Tensor]:
        """Return nodes and weights of all probes."""
        with _old_functions():
            nodes, weights = self.hessian.density(iter=steps, n_v=probes)
        return torch.tensor(np.array(nodes)).double(), torch.tensor(np.array(weights)).double()


# --- curvlinops ----------------------------------------------------------------------------------------------------


def curvlinops_hessian(
    model: nn.Module,
    data: Data,
    names: list[str] | None = None,
    *,
    batch_size: int = 0,
    criterion: nn.Module | None = None,
) -> Any:
    """Return curvlinops' operator, without its check of determinism, which costs passes of its own."""
    from curvlinops import HessianLinearOperator

    parameters = {name: p for name, p in model.named_parameters() if names is None or name in names}
    x, y = data
    size = batch_size or len(y)
    batches = [(x[start : start + size], y[start : start + size]) for start in range(0, len(y), size)]
    options: dict[str, Any] = {"check_deterministic": False, "num_data": len(y)}
    loss = criterion or nn.CrossEntropyLoss()
    try:
        return HessianLinearOperator(model, loss, parameters, batches, **options)
    except (TypeError, AttributeError, KeyError):  # before version 4 the parameters are a list
        return HessianLinearOperator(model, loss, list(parameters.values()), batches, **options)


def curvlinops_top(operator: Any, count: int, tolerance: float) -> tuple[np.ndarray, Tensor]:
    """Return the largest eigenvalues, descending, and vectors (P, k) through SciPy, as its documentation shows."""
    values, vectors = eigsh(operator.to_scipy(dtype=np.float32), k=count, which="LA", tol=tolerance)
    return values[::-1], torch.from_numpy(vectors[:, ::-1].copy())


def curvlinops_density(
    operator: Any, steps: int, probes: int, boundaries: tuple[float, float]
) -> tuple[Tensor, Tensor]:
    """Return its density's grid and values; the spectrum's ends are given, so that all its products are steps."""
    from curvlinops import lanczos_approximate_spectrum

    return lanczos_approximate_spectrum(operator, steps, num_points=4096, num_repeats=probes, boundaries=boundaries)


# --- BackPACK ------------------------------------------------------------------------------------------------------


class BackPack:
    """BackPACK's exact Gauss–Newton diagonal, over all samples or for each; the model is extended once."""

    def __init__(self, model: nn.Module, data: Data, *, convert: bool = False) -> None:
        from backpack import extend

        self.model = extend(copy.deepcopy(model).eval(), use_converter=convert)
        self.loss = extend(nn.CrossEntropyLoss(reduction="sum"))
        self.data = data

    def _passes(self, batch_size: int, extension: Any) -> Iterator[list[Any]]:
        from backpack import backpack

        x, y = self.data
        for start in range(0, len(y), batch_size):
            part = slice(start, start + batch_size)
            self.model.zero_grad()
            with backpack(extension), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch remarks on the hooks it works with
                self.loss(self.model(x[part]), y[part]).backward()
            yield list(self.model.parameters())

    def diagonal(self, batch_size: int) -> Tensor:
        """Return the diagonal of the mean loss's Gauss–Newton matrix, (P,)."""
        from backpack.extensions import DiagGGNExact

        total: Tensor | float = 0.0
        for parameters in self._passes(batch_size, DiagGGNExact()):
            total = total + torch.cat([p.diag_ggn_exact.reshape(-1) for p in parameters])
        assert isinstance(total, Tensor)
        return total / len(self.data[1])

    def sample_traces(self, batch_size: int) -> Tensor:
        """Return each sample's trace, (N,)."""
        from backpack.extensions import BatchDiagGGNExact

        return torch.cat(
            [
                torch.stack([p.diag_ggn_exact_batch.flatten(1).sum(1) for p in parameters]).sum(0)
                for parameters in self._passes(batch_size, BatchDiagGGNExact())
            ]
        )


# --- nngeometry ----------------------------------------------------------------------------------------------------


def nngeometry_diagonal(model: nn.Module, data: Data, batch_size: int) -> Tensor:
    """Return the diagonal of the Fisher information of the model's own predictions: the Gauss–Newton matrix's, (P,)."""
    from nngeometry.metrics import FIM
    from nngeometry.object import PMatDiag
    from torch.utils.data import DataLoader, TensorDataset

    loader = DataLoader(TensorDataset(*data), batch_size=batch_size)
    fisher = FIM(model=model, loader=loader, representation=PMatDiag, device=str(data[0].device))
    return fisher.get_diag()
