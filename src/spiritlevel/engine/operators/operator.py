"""A matrix as an object to multiply with, known by its products alone.

It has what the ecosystem asks of a linear operator: ``shape``, ``dtype``, ``device``, ``T``, ``adjoint()``, products
with tensors and with NumPy arrays, ``matvec`` and ``rmatvec``.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from spiritlevel.engine.operators.derivative_check import DerivativePath
from spiritlevel.engine.operators.products import Products, Strategy
from spiritlevel.inputs.open_problem import Measurable, open_problem
from spiritlevel.values.errors import UsageError

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

Columns = TypeVar("Columns", Tensor, "np.ndarray[Any, Any]")


class Operator:
    """A symmetric matrix known by its products; ``operator @ v`` takes (P,) or (P, K), one sweep over the data each.

    ``v`` is a tensor or a NumPy array; the product is of its kind and floating-point dtype, a tensor on the model's
    device. `HessianOperator`, `GGNOperator`, `LayerBlock` and `VarianceOperator` are what users make.

    Parameters
    ----------
    problem : Problem
        The network, data and loss.
    names : list of str
        The parameters that the matrix belongs to, in this order.
    of : str
        "hessian" or "ggn".
    strategy : str
        How products are made: "auto", "looped", "batched", "forward", "compiled" (on a GPU) or "finite differences".
    keep_graphs : bool
        Whether the graphs of batches are kept between sweeps; None for as many as there is room for. Those that are
        kept belong to this object, until `release`.
    whole_batches : bool
        Whether never to work on pieces of a batch.

    Raises
    ------
    UsageError
        There is no such strategy, or it needs a GPU.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> block = sl.operators.Operator(problem, ["5.weight", "5.bias"], of="ggn")
    >>> block.shape, (block @ torch.ones(330)).dtype
    ((330, 330), torch.float32)
    """

    # NumPy must not take ``array @ operator`` entry by entry, but leave it to ``__rmatmul__``.
    __array_ufunc__ = None

    def __init__(
        self,
        problem: Measurable,
        names: Sequence[str],
        *,
        of: Literal["hessian", "ggn"],
        strategy: Strategy = "auto",
        keep_graphs: bool | None = False,
        whole_batches: bool = False,
    ) -> None:
        self.problem = open_problem(problem)
        self.names = list(names)
        self._of: Literal["hessian", "ggn"] = of
        self.products = Products(
            self.problem, self.names, strategy=strategy, keep_graphs=keep_graphs, whole_batches=whole_batches
        )
        self.size = sum(problem.chosen_parameters[name].numel() for name in self.names)

    def __repr__(self) -> str:
        kind = f"{str(self.problem.dtype).removeprefix('torch.')} on {self.problem.device}"
        part = "" if len(self.names) == len(self.problem.parameters) else f", {', '.join(self.names)}"
        network = type(self.problem.model).__name__
        return f"<{type(self).__name__} of {network}{part}: {self.size:,} × {self.size:,}, {kind}>"

    @property
    def shape(self) -> tuple[int, int]:
        """The matrix's shape (P, P)."""
        return self.size, self.size

    @property
    def dtype(self) -> Any:
        """The dtype that products are computed in: one of torch's, and for SciPy the same as one of NumPy's.

        curvlinops makes its probes by this dtype and SciPy its arrays; neither takes the other's, so it goes by who
        asks.
        """
        asking = inspect.currentframe()
        asking = None if asking is None else asking.f_back
        by_scipy = asking is not None and str(asking.f_globals.get("__name__")).startswith("scipy.")
        return self.numpy_dtype if by_scipy else self.problem.dtype

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype that products are computed in, as NumPy's."""
        return np.dtype(str(self.problem.dtype).removeprefix("torch."))

    @property
    def device(self) -> torch.device:
        """The device that products are computed on, and are returned on as tensors."""
        return self.problem.device

    @property
    def T(self) -> Operator:
        """The transpose: the matrix itself, which is symmetric."""
        return self

    @property
    def mT(self) -> Operator:
        """The transpose: the matrix itself, which is symmetric."""
        return self

    @property
    def H(self) -> Operator:
        """The adjoint: the matrix itself, which is real and symmetric."""
        return self

    def adjoint(self) -> Operator:
        """Return the adjoint: the matrix itself, which is real and symmetric.

        Returns
        -------
        Operator
            The matrix itself.
        """
        return self

    def to_scipy(self, dtype: Any = None) -> LinearOperator:
        """Return the matrix as a SciPy operator of a dtype of its own: ``eigsh`` iterates in float64 by it.

        ``eigsh(problem.hessian)`` works without it, in the dtype of the products. What multiplies blocks of vectors
        (``svds``) takes them in one sweep over the data by it, where SciPy itself would go column by column.

        Parameters
        ----------
        dtype : numpy dtype
            The dtype that SciPy works in; by default that of the products.

        Returns
        -------
        scipy.sparse.linalg.LinearOperator
            The matrix.
        """
        from scipy.sparse.linalg import LinearOperator

        products = dict.fromkeys(("matvec", "rmatvec", "matmat", "rmatmat"), self.__matmul__)
        return LinearOperator(self.shape, dtype=self.numpy_dtype if dtype is None else np.dtype(dtype), **products)

    @property
    def path(self) -> DerivativePath:
        """How products are made: by double backward, or by finite differences and with which radius."""
        return self.products.path

    def release(self) -> None:
        """Let go of the graphs that were kept."""
        self.products.release()

    def __matmul__(self, vectors: Columns) -> Columns:
        if isinstance(vectors, np.ndarray):
            product = self._times(torch.from_numpy(vectors.copy())).cpu().numpy()
            return product.astype(vectors.dtype) if np.issubdtype(vectors.dtype, np.floating) else product
        if not isinstance(vectors, Tensor):
            raise UsageError(
                f"the matrix multiplies tensors and NumPy arrays, not {type(vectors).__name__}: give (P,) or (P, K)"
            )
        return self._times(vectors)

    def __rmatmul__(self, vectors: Columns) -> Columns:
        return self @ vectors if vectors.ndim < 2 else (self @ vectors.T).T

    def matvec(self, vectors: Columns) -> Columns:
        """Return the product with a vector (P,) or several (P, K), as ``operator @ vectors`` does.

        Parameters
        ----------
        vectors : Tensor or NumPy array
            (P,) or (P, K).

        Returns
        -------
        Tensor or NumPy array
            The product, of the same kind, shape and floating-point dtype.

        Raises
        ------
        UsageError
            The vectors have another length, are complex, or are neither tensor nor array.
        """
        return self @ vectors

    def rmatvec(self, vectors: Columns) -> Columns:
        """Return the transpose's product: the matrix's own, which is symmetric.

        Parameters
        ----------
        vectors : Tensor or NumPy array
            (P,) or (P, K).

        Returns
        -------
        Tensor or NumPy array
            The product.
        """
        return self @ vectors

    def rmatmat(self, vectors: Columns) -> Columns:
        """Return the transpose's product with several vectors: the matrix's own.

        Parameters
        ----------
        vectors : Tensor or NumPy array
            (P, K).

        Returns
        -------
        Tensor or NumPy array
            The product.
        """
        return self @ vectors

    def _times(self, vectors: Tensor) -> Tensor:
        if vectors.ndim not in (1, 2) or len(vectors) != self.size:
            raise UsageError(
                f"a vector of shape {tuple(vectors.shape)} cannot be multiplied: the matrix has order {self.size:,}, "
                "so give (P,) or (P, K)"
            )
        if vectors.is_complex():
            raise UsageError(f"the matrix is real: multiply the real and the imaginary part apart, not {vectors.dtype}")
        if not vectors.is_floating_point():
            vectors = vectors.to(self.problem.dtype)  # a product cut to whole numbers would mean nothing
        block = vectors[:, None] if vectors.ndim == 1 else vectors
        product = self._block(block)
        return product[:, 0] if vectors.ndim == 1 else product

    def _block(self, block: Tensor) -> Tensor:
        """Return the product with a block (P, K) in its own dtype; sums over batches are taken as `Products` does."""
        return self.join(self.products.multiply_rounded(self.split(block), self._of, block.dtype))

    def split(self, block: Tensor) -> dict[str, Tensor]:
        """Return the columns of a block (P, K) by parameter, (K, *shape).

        Parameters
        ----------
        block : Tensor
            Several vectors (P, K).

        Returns
        -------
        dict of str to Tensor
            A tensor (K, *shape) for each parameter.
        """
        sizes = [self.problem.chosen_parameters[name].numel() for name in self.names]
        return {
            name: piece.T.reshape(-1, *self.problem.chosen_parameters[name].shape)
            for name, piece in zip(self.names, block.split(sizes))
        }

    def join(self, parts: dict[str, Tensor]) -> Tensor:
        """Return the block (P, K) of tensors (K, *shape) by parameter.

        Parameters
        ----------
        parts : dict of str to Tensor
            A tensor (K, *shape) for each parameter.

        Returns
        -------
        Tensor
            Several vectors (P, K).
        """
        return torch.cat([parts[name].reshape(len(parts[name]), -1) for name in self.names], dim=1).T
