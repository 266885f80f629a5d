"""Convolutions recorded for products: their derivatives of both orders, and what they leave to torch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.engine.operators import convolution_blocks, vmapped
from spiritlevel.engine.operators.convolutions import LinearConvolutions

OPTIONS: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": (F.conv2d, (2, 3, 6, 5), (4, 3, 3, 2), {}),
    "strided and padded": (F.conv2d, (2, 2, 7, 6), (3, 2, 3, 3), {"stride": (2, 1), "padding": (1, 2)}),
    "dilated": (F.conv2d, (2, 2, 7, 7), (3, 2, 2, 2), {"dilation": 2, "padding": 1}),
    "grouped": (F.conv2d, (2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2}),
    "strided past the edge": (F.conv2d, (2, 1, 6, 6), (2, 1, 3, 3), {"stride": 2}),
    "one dimension": (F.conv1d, (3, 2, 9), (4, 2, 3), {"stride": 2, "padding": 1}),
    "three dimensions": (F.conv3d, (2, 2, 4, 4, 4), (2, 2, 2, 3, 2), {"padding": (0, 1, 0)}),
}


def arguments(name: str) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
    function, of_input, of_weight, options = OPTIONS[name]
    generator = torch.Generator().manual_seed(0)
    shapes = (of_input, of_weight, of_weight[:1])
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]
    return function, *tensors, options


@pytest.mark.parametrize("name", OPTIONS)
def test_derivatives_of_both_orders(name: str) -> None:
    function, x, w, b, options = arguments(name)

    def recorded(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with LinearConvolutions():
            return function(x, w, b, **options)

    torch.testing.assert_close(recorded(x, w, b), function(x, w, b, **options), rtol=1e-13, atol=1e-13)
    assert torch.autograd.gradcheck(recorded, (x, w, b))
    assert torch.autograd.gradgradcheck(recorded, (x, w, b), fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda w: recorded(x.detach(), w, b.detach()), (w,), fast_mode=True)


@pytest.mark.parametrize("name", OPTIONS)
def test_second_derivatives_are_those_of_torch_one_by_one_and_together(name: str) -> None:
    function, x, w, b, options = arguments(name)
    inputs = (x, w, b)
    generator = torch.Generator().manual_seed(1)
    blocks = [torch.randn((3, *t.shape), generator=generator, dtype=torch.float64) for t in inputs]

    def second(batched: bool) -> list[list[Tensor]]:
        loss = (function(x, w, b, **options) ** 3).sum()
        gradients = torch.autograd.grad(loss, inputs, create_graph=True)
        if batched:
            found = torch.autograd.grad(gradients, inputs, blocks, is_grads_batched=True)
            return [[part[k] for part in found] for k in range(3)]
        return [
            list(torch.autograd.grad(gradients, inputs, [block[k] for block in blocks], retain_graph=True))
            for k in range(3)
        ]

    wanted = second(False)
    with LinearConvolutions():
        found, together = second(False), second(True)
    torch.testing.assert_close(found, wanted, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(together, wanted, rtol=1e-11, atol=1e-11)


KERNELS = {
    "convolve": (
        lambda x, w, b, options: convolution_blocks.convolve(x, w, b, options),
        ((4, 3, 6, 5), (2, 3, 3, 2), (2,)),
    ),
    "without bias": (
        lambda x, w, options: convolution_blocks.convolve(x, w, None, options),
        ((4, 3, 6, 5), (2, 3, 3, 2)),
    ),
    "pull_to_input": (
        lambda g, w, options: convolution_blocks.pull_to_input(g, w, [3, 6, 5], options),
        ((4, 2, 6, 5), (2, 3, 3, 2)),
    ),
    "pull_to_weight": (
        lambda g, x, options: convolution_blocks.pull_to_weight(g, x, [3, 2], options),
        ((4, 2, 6, 5), (4, 3, 6, 5)),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("groups", [1, 2])
def test_kernels_take_blocks_however_they_lie(name: str, groups: int) -> None:
    """Vectors along any dimension of any of the operands: what one vector after another gives."""
    function, shapes = KERNELS[name]
    options = ([1, 1], [1, 1], [1, 2], groups)
    if groups == 2:  # six channels of images in two groups, three in each kernel
        grown = {(4, 3, 6, 5): (4, 6, 6, 5)}
        shapes = tuple(grown.get(shape, shape) for shape in shapes)
        if name == "pull_to_input":
            function = lambda g, w, options: convolution_blocks.pull_to_input(g, w, [6, 6, 5], options)  # noqa: E731
    generator = torch.Generator().manual_seed(0)
    dims = [(None, 0, 1) if len(shape) > 1 else (None, 0) for shape in shapes]
    for in_dims in itertools.product(*dims):
        if all(dim is None for dim in in_dims):
            continue
        plain = [torch.randn((3, *shape), generator=generator, dtype=torch.float64) for shape in shapes]
        given = [t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(plain, in_dims)]
        # Both orders in memory: a view as it is, and one that was copied.
        for tensors in (given, [t.contiguous() for t in given]):
            found = torch.func.vmap(lambda *ts: function(*ts, options), in_dims=in_dims)(*tensors)
            for k in range(3):
                one = [t[0] if dim is None else t[k] for t, dim in zip(plain, in_dims)]
                torch.testing.assert_close(found[k], function(*one, options), rtol=1e-12, atol=1e-12)


def test_results_lie_so_that_the_next_kernel_need_not_copy_them() -> None:
    options = ([1, 1], [0, 0], [1, 1], 1)
    x, v = torch.randn(4, 3, 8, 8), torch.randn(5, 2, 3, 3, 3)
    w, seen = v[0], list[Tensor]()

    def through(v: Tensor) -> Tensor:
        with torch.no_grad():
            first = convolution_blocks.convolve(x, v, None, options)
            second = convolution_blocks.pull_to_input(first.relu(), w, [3, 8, 8], options)
            block = vmapped.behind(first, second)
        assert block is not None
        seen.extend(operand.along(1) for operand in block.operands)
        return second

    torch.func.vmap(through)(v)
    assert all(tensor.is_contiguous() for tensor in seen)
    assert len(seen) == 2


def test_what_is_not_a_plain_convolution_is_left_to_torch() -> None:
    x, w = torch.randn(3, 6, 6), torch.randn(2, 3, 3, 3)
    with LinearConvolutions():
        torch.testing.assert_close(F.conv2d(x, w), torch.conv2d(x[None], w)[0])
        torch.testing.assert_close(F.conv2d(x[None], w, padding="same"), torch.conv2d(x[None], w, padding=1))
        with torch.autocast("cpu", torch.bfloat16):
            assert F.conv2d(x[None], w).dtype == torch.bfloat16
        with pytest.raises(RuntimeError):
            F.conv2d(x[None], w.double())
