"""Sums over batches: float64 where it fits, bounded rounding where it does not, nothing at all for one batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spiritlevel.engine.operators import HessianOperator
from spiritlevel.engine.operators.batch_sums import BatchSums
from tests.engine.operators.material import CASES, distance, vectors


def parts_of(count: int, dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(count)
    return [[torch.randn(2, size, generator=generator).to(dtype) for size in (5, 3)] for _ in range(count)]


@pytest.fixture(params=[True, False], ids=["room", "no room"])
def room(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if not request.param:
        monkeypatch.setenv("SPIRITLEVEL_MEMORY", "1")
    return bool(request.param)


@pytest.mark.parametrize("count", [2, 50])
def test_the_sum_is_within_its_bound_and_leaves_the_parts_alone(count: int, room: bool) -> None:
    parts = parts_of(count)
    before = [[tensor.clone() for tensor in part] for part in parts]
    sums = BatchSums(parts[0])
    assert sums.in_float64 is room
    for part in parts:
        sums.add(part)
    roundings = 0.0 if room else (count - 1) * torch.finfo(torch.float32).eps
    for place, found in enumerate(sums.found()):
        assert found.dtype == (torch.float64 if room else torch.float32)
        tensors = [part[place].double() for part in parts]
        bound = roundings * torch.stack(tensors).abs().sum(0) + 1e-15 * count
        assert ((found.double() - torch.stack(tensors).sum(0)).abs() <= bound).all()
    for part, own in zip(parts, before):
        assert all(torch.equal(tensor, other) for tensor, other in zip(part, own))


def test_one_part_is_the_sum_itself(room: bool) -> None:
    (part,) = parts_of(1)
    sums = BatchSums(part)
    sums.add(part)
    assert all(found.data_ptr() == own.data_ptr() for found, own in zip(sums.rounded(torch.float32), part))
    assert all(torch.equal(found.float(), tensor) for found, tensor in zip(sums.found(), part))


def test_of_no_batch_it_is_zero(room: bool) -> None:
    (part,) = parts_of(1)
    assert all(
        torch.equal(found.float(), torch.zeros_like(tensor)) for found, tensor in zip(BatchSums(part).found(), part)
    )


def test_products_without_room_for_float64_are_those_with_it_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = CASES["tanh"].opened(count=40, batch_size=4, dtype="float32")
    block = vectors(problem)
    wide = HessianOperator(problem) @ block
    monkeypatch.setattr("spiritlevel.engine.operators.batch_sums.FLOAT64_SHARE", 0.0)
    narrow = HessianOperator(problem) @ block
    assert 0 < distance(narrow, wide) < 10 * torch.finfo(torch.float32).eps
