"""ReLUs and max-poolings recorded for products: the same derivatives as torch's own, no zeros in between."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import spiritlevel as sl
from spiritlevel.operators import pieces
from spiritlevel.operators.pieces import LinearPieces
from spiritlevel.reference import Dense


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
    ],
)
def test_values_and_both_derivatives_are_those_of_torch(function) -> None:  # type: ignore[no-untyped-def]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 7, 7, dtype=torch.float64, generator=generator, requires_grad=True)
    found = []
    for recorded in (False, True):
        inner = x.sin()
        if recorded:
            with LinearPieces():
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
def test_windows_that_lie_apart_are_placed_at_once(options: dict[str, int], apart: bool) -> None:
    torch.manual_seed(0)
    values = torch.randn(4, 3, 9, 7)
    found, places = F.max_pool2d(values, 2, **options, return_indices=True)  # type: ignore[arg-type]
    window = ([2, 2], *([options.get(name, usual)] * 2 for name, usual in (("stride", 2), ("padding", 0))))
    window = (*window, [options.get("dilation", 1)] * 2, bool(options.get("ceil_mode", False)))
    assert pieces._apart(window) == apart  # type: ignore[arg-type]
    if not apart:
        return
    gradients = torch.randn(5, *found.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # vmap warns of what it takes one by one
        placed = torch.func.vmap(lambda g: pieces._placed(g, values, places))(gradients)
    for one, gradient in zip(placed, gradients):
        assert torch.equal(one, pieces._spread(gradient, values, places, window))  # type: ignore[arg-type]


def test_what_is_done_in_place_stays_in_place() -> None:
    x = torch.randn(4, requires_grad=True)
    inner = x * 1.0
    with LinearPieces():
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
    problem = sl.Problem(model, (x, torch.arange(9) % 3), batch_size=4)
    operator = sl.operators.HessianOperator(problem, strategy=strategy)  # type: ignore[arg-type]
    block = torch.randn(problem.size, 4, dtype=torch.float64)
    expected = Dense(problem).hessian @ block
    assert float((operator @ block - expected).norm()) < 1e-12 * float(expected.norm())
    assert operator.products.strategy == strategy
