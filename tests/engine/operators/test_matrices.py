"""The matrices as other libraries take them: SciPy's eigensolvers, curvlinops' estimators, NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, aslinearoperator, eigsh, lobpcg, minres
from torch import Tensor, nn

from spiritlevel.engine.operators import Operator, VarianceOperator
from spiritlevel.measures.reference.dense import Dense
from spiritlevel.values.errors import UsageError
from tests.engine.operators.material import CASES, distance, vectors

MATRICES: dict[str, Callable[[Any], Operator]] = {"hessian": lambda p: p.hessian, "ggn": lambda p: p.ggn}


@pytest.fixture(params=MATRICES)
def pair(request: pytest.FixtureRequest) -> tuple[Operator, Tensor]:
    """A matrix as users get it, and the same written out."""
    problem = CASES["tanh"].problem()
    return MATRICES[request.param](problem), getattr(Dense(problem), request.param)


def test_it_says_what_it_is(pair: tuple[Operator, Tensor]) -> None:
    matrix, dense = pair
    assert matrix.shape == dense.shape
    assert matrix.dtype == torch.float64
    assert matrix.device == torch.device("cpu")
    assert matrix.T is matrix.mT is matrix.H is matrix.adjoint() is matrix
    assert CASES["tanh"].problem(dtype="float32").hessian.dtype == torch.float32


@pytest.mark.parametrize("columns", [None, 3])
def test_tensors_and_arrays_from_both_sides(pair: tuple[Operator, Tensor], columns: int | None) -> None:
    matrix, dense = pair
    block = vectors(matrix.problem)[:, 0] if columns is None else vectors(matrix.problem, columns)
    assert distance(matrix @ block, dense @ block) < 1e-12
    left = block @ matrix if columns is None else (block.mT @ matrix).mT
    assert distance(left, dense @ block) < 1e-12
    array = block.numpy()
    array.flags.writeable = False  # as memory-mapped ones are
    for found in (matrix @ array, (array.T @ matrix).T):
        assert isinstance(found, np.ndarray)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found, (dense @ block).numpy(), rtol=1e-9, atol=1e-13)
    reversed_rows = np.ascontiguousarray(array)[::-1]  # a view that torch cannot take as it is
    np.testing.assert_allclose(matrix @ reversed_rows, dense.numpy() @ reversed_rows, rtol=1e-9, atol=1e-13)


def test_the_product_has_the_vectors_dtype_unless_that_holds_whole_numbers(pair: tuple[Operator, Tensor]) -> None:
    matrix, dense = pair
    ones = torch.ones(matrix.size, dtype=torch.long)
    assert distance(matrix @ ones, dense @ ones.double()) < 1e-12
    np.testing.assert_allclose(matrix @ ones.numpy(), (dense @ ones.double()).numpy(), rtol=1e-9, atol=1e-13)
    assert (matrix @ ones.float()).dtype == torch.float32
    assert (matrix @ ones.float().numpy()).dtype == np.float32


def test_what_cannot_be_multiplied_is_refused(pair: tuple[Operator, Tensor]) -> None:
    matrix, _ = pair
    with pytest.raises(UsageError, match="cannot be multiplied"):
        matrix @ np.zeros(3)
    with pytest.raises(UsageError, match="the matrix is real"):
        matrix @ torch.zeros(matrix.size, dtype=torch.complex128)
    with pytest.raises(UsageError, match="tensors and NumPy arrays, not list"):
        matrix @ [1.0] * matrix.size  # type: ignore[type-var]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", MATRICES)
def test_scipy_takes_it_as_it_is(name: str, dtype: str) -> None:
    matrix = MATRICES[name](CASES["tanh"].problem(dtype=dtype))
    dense = getattr(Dense(CASES["tanh"].problem()), name).numpy()
    exact, close = np.linalg.eigvalsh(dense), {"rtol": 1e-8 if dtype == "float64" else 1e-4}
    start = np.ones(len(exact), dtype)
    found = eigsh(matrix, k=1, which="LA", return_eigenvectors=False, v0=start)
    np.testing.assert_allclose(found, exact[-1:], **close)
    assert found.dtype == np.dtype(dtype)
    operator = aslinearoperator(matrix)
    assert isinstance(operator, LinearOperator)
    assert (operator.dtype, operator.shape) == (np.dtype(dtype), matrix.shape)
    block = vectors(matrix.problem, 2).numpy().astype(dtype)
    expected = dense @ block
    near = {"rtol": 1e-9 if dtype == "float64" else 1e-3, "atol": 1e-5 * np.abs(expected).max()}
    for product in (operator @ block, operator.T @ block, operator.H @ block, operator.rmatmat(block)):
        assert isinstance(product, np.ndarray)
        np.testing.assert_allclose(product, expected, **near)
    np.testing.assert_allclose(operator.rmatvec(block[:, 0]), expected[:, 0], **near)
    top, _ = lobpcg(matrix, block, maxiter=200, tol=1e-4)  # which multiplies, and never asks for the dtype
    np.testing.assert_allclose(top, exact[:-3:-1], rtol=1e-3)
    answer, failed = minres(matrix, block[:, 0], shift=-1.0, rtol=1e-6)  # (H + 1) x = b
    assert not failed
    np.testing.assert_allclose(dense @ answer + answer, block[:, 0], atol=1e-3)


def test_its_dtype_is_that_of_who_asks() -> None:
    matrix = CASES["tanh"].problem(dtype="float32").hessian
    assert matrix.dtype is torch.float32  # here and in every library of torch's
    assert aslinearoperator(matrix).dtype == np.float32
    found = eigsh(matrix.to_scipy(np.float64), k=1, return_eigenvectors=False, v0=np.ones(matrix.size))
    assert found.dtype == np.float64  # where the iteration is wanted finer than the products


def test_blocks_of_vectors_take_one_sweep_through_scipys_own_class() -> None:
    matrix = CASES["tanh"].problem().hessian
    block = vectors(matrix.problem, 5).numpy()
    matrix @ block
    before = matrix.problem.spent["hessian product"]
    read = []
    matrix.problem.progress = lambda what, at, total: read.append(at)
    matrix.to_scipy() @ block
    whole = len(read)
    read.clear()
    aslinearoperator(matrix) @ block
    assert len(read) == 5 * whole
    assert matrix.problem.spent["hessian product"] == before + 10


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MATRICES)
def test_estimators_of_curvlinops_take_it_as_it_is(name: str) -> None:
    curvlinops = pytest.importorskip("curvlinops")
    case = CASES["tanh"]
    model, (x, y) = case.model(), case.data()
    matrix = MATRICES[name](case.problem())
    theirs = {"hessian": curvlinops.HessianLinearOperator, "ggn": curvlinops.GGNLinearOperator}[name]
    other = theirs(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])
    few, many = 12, 36
    for estimator, options in (
        (curvlinops.hutchinson_trace, {"num_matvecs": few}),
        (curvlinops.hutchpp_trace, {"num_matvecs": few}),
        (curvlinops.xtrace, {"num_matvecs": few}),
        (curvlinops.hutchinson_diag, {"num_matvecs": many}),
        (curvlinops.xdiag, {"num_matvecs": few}),
        (curvlinops.hutchinson_squared_fro, {"num_matvecs": many}),
        (curvlinops.lanczos_approximate_spectrum, {"ncv": 8, "boundaries_tol": 1e-10}),
        (curvlinops.lanczos_approximate_log_spectrum, {"ncv": 8, "boundaries": (1e-6, 10.0)}),
    ):
        found = []
        for operator in (matrix, other):
            torch.manual_seed(0)  # theirs draw from torch's own stream
            parts = estimator(operator, **options)
            found.append(torch.cat([part.reshape(-1) for part in (parts if isinstance(parts, tuple) else (parts,))]))
        assert found[0].dtype == matrix.dtype
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6, msg=estimator.__name__)


def test_others_are_operators_alike() -> None:
    problem = CASES["tanh"].opened(count=11)
    variance = VarianceOperator(problem)
    block = vectors(problem, 2)
    np.testing.assert_allclose(variance.to_scipy() @ block.numpy(), (variance @ block).numpy(), rtol=1e-9, atol=1e-13)
