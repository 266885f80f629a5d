"""Signed columns give the second derivative they stand for, exactly, on average over all signs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spiritlevel.engine.operations.local_curvature import (
    Applied,
    Diagonal,
    LocalCurvature,
    MatrixProduct,
    Projected,
    RankTwo,
    Reshaped,
    Sum,
    TwoByTwo,
    WeightedSpread,
)

Case = tuple[LocalCurvature, list[tuple[int, ...]]]
Size = torch.Size


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def along(values: Tensor) -> Tensor:
    """Project out one direction of each row."""
    direction = torch.tensor([[1.0, 2.0, 0.0]], dtype=torch.float64) / 5**0.5
    return values - (values * direction).sum(-1, keepdim=True) * direction


def applied() -> Case:
    matrices = normal(2, 3, 3)
    symmetric = matrices + matrices.mT
    return Applied(lambda t: (symmetric @ t[..., None])[..., 0], Size((2, 3))), [(2, 3)]


def row_of_zeros() -> Case:
    left = normal(2, 3)
    left[1] = 0
    return RankTwo(left, normal(2, 3), (-1,)), [(2, 3)]


CASES: dict[str, Callable[[], Case]] = {
    "diagonal": lambda: (Diagonal(normal(2, 3)), [(2, 3)]),
    "product": lambda: (TwoByTwo(normal(2, 3), torch.zeros(2, 3), (Size((2, 3)), Size((2, 3)))), [(2, 3), (2, 3)]),
    "broadcast": lambda: (TwoByTwo(normal(2, 3), normal(2, 3), (Size((2, 3)), Size((2, 1)))), [(2, 3), (2, 1)]),
    "projected": lambda: (Projected(normal(2, 1), along, Size((2, 3))), [(2, 3)]),
    "rank two": lambda: (RankTwo(normal(2, 3), normal(2, 3), (-1,)), [(2, 3)]),
    "rank two with nothing": row_of_zeros,
    "softmax": lambda: (WeightedSpread(normal(2, 3), normal(2, 3).softmax(1), -1), [(2, 3)]),
    "few rows": lambda: (MatrixProduct(normal(2, 2, 3), 2), [(2, 2, 2), (2, 2, 3)]),
    "few columns": lambda: (MatrixProduct(normal(1, 3, 2), 2), [(1, 3, 2), (1, 2, 2)]),
    "no gradient": lambda: (MatrixProduct(torch.zeros(1, 2, 2, dtype=torch.float64), 2), [(1, 2, 2), (1, 2, 2)]),
    "applied": applied,
    "sum": lambda: (Sum([Diagonal(normal(2, 3)), RankTwo(normal(2, 3), normal(2, 3), (-1,))]), [(2, 3)]),
    "reshaped": lambda: (Reshaped(RankTwo(normal(2, 3), normal(2, 3), (-1,)), (2, 3), Size((6,))), [(6,)]),
}


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.double().reshape(-1) for part in parts])


def written_out(curvature: LocalCurvature, shapes: list[tuple[int, ...]]) -> Tensor:
    sizes = [Size(shape).numel() for shape in shapes]
    rows = torch.eye(sum(sizes), dtype=torch.float64)
    return torch.stack(
        [joined(curvature.product([p.reshape(s) for p, s in zip(row.split(sizes), shapes)])) for row in rows]
    )


def drawn(curvature: LocalCurvature, *signs: Tensor) -> tuple[Tensor, Tensor]:
    """Return s₊ and s₋ of some draws, (draws, entries of all inputs)."""
    plus, minus = (torch.cat([part.double().flatten(1) for part in side], 1) for side in curvature.columns(signs))
    return plus, minus


def mean_of_columns(curvature: LocalCurvature) -> Tensor:
    shapes = curvature.sign_shapes()
    sizes = [shape.numel() for shape in shapes]
    bits = torch.tensor(list(itertools.product([-1.0, 1.0], repeat=sum(sizes))), dtype=torch.float64)
    signs = [part.reshape(-1, *shape) for part, shape in zip(bits.split(sizes, 1), shapes)]
    plus, minus = drawn(curvature, *signs)
    one = drawn(curvature, *(part[1:2] for part in signs))
    torch.testing.assert_close(one, (plus[1:2], minus[1:2]))  # no draw sees another one's signs
    return (plus.T @ plus - minus.T @ minus) / len(bits)


@pytest.mark.parametrize("name", CASES)
def test_columns_average_to_what_products_say(name: str) -> None:
    torch.manual_seed(0)
    curvature, shapes = CASES[name]()
    dense = written_out(curvature, shapes)
    torch.testing.assert_close(dense, dense.T)
    torch.testing.assert_close(mean_of_columns(curvature), dense, rtol=1e-9, atol=1e-12)


def test_what_both_columns_share_in_one_input_cancels_in_every_draw() -> None:
    """Of a layer that reaches one factor alone nothing is left, not even noise."""
    torch.manual_seed(0)
    for curvature in (CASES["product"]()[0], CASES["few rows"]()[0]):
        (shape,) = curvature.sign_shapes()
        plus, minus = curvature.columns([torch.randint(0, 2, (3, *shape)).double() * 2 - 1])
        for one, other in zip(plus, minus):
            torch.testing.assert_close(one.square(), other.square())
