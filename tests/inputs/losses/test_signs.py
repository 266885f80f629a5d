"""Random signs: the same bits as their definition gives, in whatever dtype, and what statistics ask of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from spiritlevel.inputs import losses as sl
from spiritlevel.inputs.losses.signs import index_signs_in_parts
from spiritlevel.inputs.splitmix import splitmix64


def by_definition(seed: int, draws: int, indices: Tensor, count: int, first_draw: int = 0) -> Tensor:
    """Bit b of word w, hashed from seed, draw and index, is the sign at 64 w + b."""
    state = splitmix64(0, torch.tensor(seed))
    state = splitmix64(state, torch.arange(first_draw, first_draw + draws)[:, None])
    state = splitmix64(state, indices[None].to(torch.int64))
    words = splitmix64(state[..., None], torch.arange(-(-count // 64)))
    bits = (words[..., None] >> torch.arange(64)) & 1
    return bits.flatten(-2)[..., :count].double() * 2 - 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("count", [1, 8, 63, 64, 65, 1000])
def test_signs_are_the_bits_of_the_hash(count: int, dtype: torch.dtype) -> None:
    indices = torch.tensor([0, 5, 2**40, 3])
    for seed, first in ((0, 0), (12345, 7)):
        found = sl.index_signs(seed, 3, indices, count, first_draw=first, dtype=dtype)
        assert found.dtype == dtype
        assert found.shape == (3, 4, count)
        assert torch.equal(found.double(), by_definition(seed, 3, indices, count, first))


def test_signs_are_float64_unless_said_otherwise() -> None:
    assert sl.index_signs(0, 1, torch.arange(2), 3).dtype == torch.float64
    assert sl.index_signs(0, 2, torch.arange(0), 3).shape == (2, 0, 3)


def test_signs_made_in_inference_mode_can_be_differentiated_with() -> None:
    with torch.inference_mode():
        sl.index_signs(0, 1, torch.arange(2), 3, dtype=torch.float16)
    x = torch.ones(1, 2, 3, dtype=torch.float16, requires_grad=True)
    signs = sl.index_signs(0, 1, torch.arange(2), 3, dtype=torch.float16)
    (gradient,) = torch.autograd.grad((x * signs).sum(), x)
    assert torch.equal(gradient, signs)


def test_signs_are_balanced_and_uncorrelated() -> None:
    signs = sl.index_signs(3, 4, torch.arange(500), 130)
    assert signs.shape == (4, 500, 130)
    assert set(signs.unique().tolist()) == {-1.0, 1.0}
    assert signs.mean().abs() < 4 / signs.numel() ** 0.5
    for axis in range(3):
        neighbours = signs.narrow(axis, 1, signs.shape[axis] - 1) * signs.narrow(axis, 0, signs.shape[axis] - 1)
        assert neighbours.mean().abs() < 4 / neighbours.numel() ** 0.5
    columns = signs.permute(2, 0, 1).flatten(1)
    correlations = (columns @ columns.T / columns.shape[1]).fill_diagonal_(0)
    assert correlations.abs().max() < 5.5 / columns.shape[1] ** 0.5
    torch.testing.assert_close(sl.index_signs(3, 4, torch.tensor([77]), 65)[:, 0], signs[:, 77, :65], rtol=0, atol=0)


def test_signs_in_parts_belong_to_samples_and_are_independent() -> None:
    counts = [3, 0, 64, 17, 1]
    together = list(index_signs_in_parts(5, 4, torch.arange(6), counts))
    some = list(index_signs_in_parts(5, 2, torch.tensor([4, 1]), counts, first_draw=1))
    assert [part.shape for part in together] == [(4, 6, count) for count in counts]
    for part, other in zip(together, some):
        assert torch.equal(part[1:3][:, [4, 1]], other)
    many = torch.cat(list(index_signs_in_parts(7, 4000, torch.arange(2), counts)), dim=-1).flatten(1)
    products = many.T @ many / len(many)
    apart = products - torch.eye(len(products), dtype=products.dtype)
    assert apart.abs().max() < 6 / len(many) ** 0.5
