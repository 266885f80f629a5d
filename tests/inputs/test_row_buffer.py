"""Rows collected batch by batch: the same as joining a list, and a process that does not grow with its batches."""

import pytest
import torch

from spiritlevel.inputs.row_buffer import RowBuffer


@pytest.mark.parametrize("sizes", [[3], [4, 4, 2], [1] * 9, [0, 5], [5, 0, 3]])
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_rows_are_those_of_a_list_joined(sizes: list[int], shape: tuple[int, ...]) -> None:
    parts = [torch.randn(size, *shape, dtype=torch.float64) for size in sizes]
    joined = RowBuffer()
    for part in parts:
        joined.add(part)
    expected = torch.cat(parts)
    assert len(joined) == len(expected)
    assert torch.equal(joined.whole(), expected)
    assert joined.whole().dtype == torch.float64
    assert joined.whole().untyped_storage().nbytes() == expected.nbytes


def test_rows_are_copies() -> None:
    joined, part = RowBuffer(), torch.zeros(3, dtype=torch.bool)
    joined.add(part)
    part.fill_(True)
    assert not bool(joined.whole().any())


def test_room_grows_by_doubling() -> None:
    joined, rooms = RowBuffer(), set()
    for _ in range(1000):
        joined.add(torch.zeros(4))
        rooms.add(joined._room.data_ptr())
        assert len(joined._room) < 2 * len(joined) + 4
    assert len(rooms) < 16
