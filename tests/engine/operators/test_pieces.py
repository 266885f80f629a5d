"""ReLUs and max-poolings recorded for products: the same derivatives as torch's own, no zeros in between."""

import contextlib
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.engine.operators import pooling_blocks
from spiritlevel.engine.operators.piecewise_linear import PiecewiseLinear
from spiritlevel.measures.reference import Dense
from tests.helpers import opened


def names_behind(tensor: Tensor) -> set[str]:
    seen, stack = set(), [tensor.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack.extend(child for child, _ in node.next_functions)
    return {node.name() for node in seen}


@pytest.mark.parametrize(
    "function",
    [
        F.relu,
        torch.relu,
        lambda x: x.relu(),
        nn.ReLU(),
        lambda x: F.max_pool2d(x, 2),
        nn.MaxPool2d(3, stride=2, padding=1),
        nn.MaxPool2d((2, 3), dilation=2),
        nn.MaxPool2d(2, ceil_mode=True),
        lambda x: F.relu(input=x),
        lambda x: F.max_pool2d(input=x, kernel_size=2),
    ],
)
def test_values_and_both_derivatives_are_those_of_torch(function) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    found = []
    for recorded in (False, True):
        inner = x.sin()
        if recorded:
            with PiecewiseLinear():
                values = function(inner)
            assert not {"ReluBackward0", "MaxPool2DWithIndicesBackward0"} & names_behind(values)
        else:
            values = function(inner)
        weights = torch.arange(values.numel(), dtype=torch.float64).reshape(values.shape).cos()
        (first,) = torch.autograd.grad((weights * values.square()).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        found.append((values, first, second))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("options", "apart"),
    [
        ({}, True),
        ({"padding": 1}, True),
        ({"ceil_mode": True}, True),
        ({"stride": 3}, True),
        ({"stride": 1}, False),
        ({"dilation": 2}, False),
        ({"dilation": 2, "stride": 3}, True),
    ],
)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_block_is_put_where_its_vectors_belong(options: dict[str, int], apart: bool, dim: int) -> None:
    torch.manual_seed(0)
    values = torch.randn(4, 3, 9, 7)
    found, places = F.max_pool2d(values, 2, **options, return_indices=True)  # type: ignore[arg-type]
    window: Any = ([2, 2], *([options.get(name, usual)] * 2 for name, usual in (("stride", 2), ("padding", 0))))
    window = (*window, [options.get("dilation", 1)] * 2, bool(options.get("ceil_mode", False)))
    assert pooling_blocks._windows_apart(window) == apart
    gradients, pushed = torch.randn(5, *found.shape), torch.randn(5, *values.shape)

    def both(gradient: Tensor, push: Tensor) -> tuple[Tensor, Tensor]:
        return pooling_blocks.scatter_places(gradient, places, [9, 7], window), pooling_blocks.gather_places(
            push, places
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns of what it takes one by one
        spread, chosen = torch.func.vmap(both, in_dims=dim)(gradients.movedim(0, dim), pushed.movedim(0, dim))
    for k in range(5):
        expected = torch.ops.aten.max_pool2d_with_indices_backward(gradients[k], values, *window, places)
        torch.testing.assert_close(spread[k], expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(chosen[k], pushed[k].flatten(2).gather(2, places.flatten(2)).reshape(places.shape))


@pytest.mark.parametrize("pooling", [{"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}])
def test_a_relu_before_a_pooling_is_passed_behind_it(pooling: dict[str, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    with PiecewiseLinear():
        found = F.max_pool2d(F.relu(x.sin()), **pooling)  # type: ignore[arg-type]
    assert "_PooledBackward" in names_behind(found)
    assert "_RectifiedBackward" not in names_behind(found)
    torch.testing.assert_close(found, F.max_pool2d(F.relu(x.sin()), **pooling))  # type: ignore[arg-type]


def test_what_a_relu_made_may_be_used_elsewhere_and_what_it_was_made_of_be_changed() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)

    def used_twice(x: Tensor) -> Tensor:
        rectified = F.relu(x.sin())
        return F.max_pool2d(rectified, 2) + 2 * rectified[..., ::2, ::2]

    def changed_behind(x: Tensor) -> Tensor:
        inner = x.sin()
        rectified = F.relu(inner)
        inner.neg_()
        return F.max_pool2d(rectified, 2)

    for function in (used_twice, changed_behind):
        found = []
        for recorded in (False, True):
            with PiecewiseLinear() if recorded else contextlib.nullcontext():
                values = function(x)
            (first,) = torch.autograd.grad(values.pow(3).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
            found.append((values, first, second))
        torch.testing.assert_close(*found, rtol=1e-13, atol=1e-14)


def test_what_is_done_in_place_stays_in_place() -> None:
    x = torch.randn(4, requires_grad=True)
    inner = x * 1.0
    with PiecewiseLinear():
        F.relu(inner, inplace=True)
    assert bool((inner >= 0).all())
    assert F.relu(x.detach()).equal(inner.detach())


@pytest.mark.parametrize("strategy", ["looped", "batched"])
def test_products_are_those_of_the_dense_hessian(strategy: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 2, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8, 3),
    ).double()
    x = torch.randn(9, 1, 8, 8, dtype=torch.float64)
    problem = opened(model, (x, torch.arange(9) % 3), batch_size=4)
    operator = sl.operators.HessianOperator(problem, strategy=strategy)  # type: ignore[arg-type]
    block = torch.randn(problem.size, 4, dtype=torch.float64)
    expected = Dense(problem).hessian @ block
    assert float((operator @ block - expected).norm()) < 1e-12 * float(expected.norm())
    assert operator.products.strategy == strategy
