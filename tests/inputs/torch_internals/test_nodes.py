"""Autograd's nodes: their names, and what they keep of the operations that made them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.inputs.torch_internals import (
    nodes,
)
from tests.inputs.torch_internals.leaves import leaf

OPERATIONS: dict[str, Callable[[], Tensor]] = {
    "ADAPTIVE_AVERAGE_POOL_2D": lambda: F.adaptive_avg_pool2d(leaf(1, 2, 4, 4), 2),
    "ADD": lambda: leaf(2) + leaf(2),
    "ADDMM": lambda: F.linear(leaf(2, 3), leaf(4, 3), leaf(4)),
    "AVERAGE_POOL_2D": lambda: F.avg_pool2d(leaf(1, 2, 4, 4), 2),
    "CATENATE": lambda: torch.cat([leaf(2), leaf(2)]),
    "CLONE": lambda: leaf(2).clone(),
    "CONVOLUTION": lambda: F.conv2d(leaf(1, 2, 4, 4), leaf(3, 2, 2, 2)),
    "EXPAND": lambda: leaf(1, 2).expand(3, 2),
    "HARDTANH": lambda: F.hardtanh(leaf(2)),
    "LEAKY_RELU": lambda: F.leaky_relu(leaf(2)),
    "MATRIX_TRANSPOSE": lambda: leaf(2, 3).t(),
    "MAX_POOL_2D": lambda: F.max_pool2d(leaf(1, 2, 4, 4), 2),
    "MAX_POOL_3D": lambda: F.max_pool3d(leaf(1, 2, 4, 4, 4), 2),
    "MEAN": lambda: leaf(2, 3).mean(),
    "MEAN_ALONG": lambda: leaf(2, 3).mean(1),
    "MM": lambda: F.linear(leaf(2, 3), leaf(4, 3)),
    "MULTIPLY": lambda: leaf(2) * leaf(2),
    "NATIVE_BATCH_NORM": lambda: F.batch_norm(leaf(4, 3), torch.zeros(3), torch.ones(3)),
    "NEGATE": lambda: -leaf(2),
    "PAD": lambda: F.pad(leaf(2), (1, 1)),
    "PERMUTE": lambda: leaf(2, 3, 4).permute(1, 2, 0),
    "RELU": lambda: leaf(2).relu(),
    "RESHAPE_ALIAS": lambda: torch.ops.aten._reshape_alias(leaf(4), [2, 2], [2, 1]),
    "SELECT": lambda: leaf(2, 3)[0],
    "SLICE": lambda: leaf(4)[1:],
    "SQUEEZE": lambda: leaf(1, 2).squeeze(),
    "SQUEEZE_ALONG": lambda: leaf(1, 2).squeeze(0),
    "STACK": lambda: torch.stack([leaf(2), leaf(2)]),
    "SUBTRACT": lambda: leaf(2) - leaf(2),
    "SUM": lambda: leaf(2).sum(),
    "SUM_ALONG": lambda: leaf(2, 3).sum(0),
    "TRANSPOSE": lambda: leaf(2, 3).transpose(0, 1),
    "UNSAFE_VIEW": lambda: leaf(2, 3, 4) @ leaf(4, 5),
    "UNSQUEEZE": lambda: leaf(2).unsqueeze(0),
    "VIEW": lambda: leaf(4).view(2, 2),
}
ON_A_GPU = {"CUDNN_BATCH_NORM"}
NAMES = {name for name, value in vars(nodes).items() if name.isupper() and isinstance(value, str) and name[0] != "_"}


def test_every_name_of_a_node_is_tried() -> None:
    assert {*OPERATIONS, *ON_A_GPU, "PARAMETER"} == NAMES


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_recorded_under_its_name(name: str) -> None:
    result = OPERATIONS[name]()
    assert nodes.name_of(result.grad_fn) == getattr(nodes, name), f"torch {torch.__version__} names it otherwise"
    assert nodes.shape_of(result.grad_fn, 0) == result.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_records_batch_norm_under_its_own_name() -> None:
    layer = nn.BatchNorm2d(3, eps=0.25).cuda().eval()
    node = layer(leaf(2, 3, 4, 4).cuda()).grad_fn
    assert nodes.name_of(node) in nodes.BATCH_NORMS
    kept = "epsilon" if nodes.name_of(node) == nodes.CUDNN_BATCH_NORM else "eps"
    assert nodes.saved(node, kept) == 0.25
    assert nodes.saved(node, "training") is False


def test_a_parameter_is_recorded_under_its_name_and_told() -> None:
    weight = leaf(2, 2)
    node, _ = weight.t().grad_fn.next_functions[0]  # type: ignore[union-attr]
    assert nodes.name_of(node) == nodes.PARAMETER
    assert nodes.parameter_of(node) is weight
    assert nodes.parameter_of(weight.t().grad_fn) is None
    assert nodes.parameters_are_told()


SETTINGS: dict[str, tuple[nn.Module, tuple[int, ...], dict[str, Any]]] = {
    "linear": (nn.Linear(3, 2), (4, 3), {"alpha": 1, "beta": 1}),
    "convolution": (
        nn.Conv2d(2, 4, 3, stride=(1, 2), padding=1, dilation=(2, 1), groups=2),
        (1, 2, 6, 6),
        {"stride": (1, 2), "padding": (1, 1), "dilation": (2, 1), "groups": 2, "transposed": False},
    ),
    "transposed convolution": (nn.ConvTranspose2d(2, 4, 3), (1, 2, 6, 6), {"transposed": True}),
    "batch norm": (nn.BatchNorm1d(3, eps=0.25).eval(), (4, 3), {"eps": 0.25, "training": False}),
    "batch norm in training": (nn.BatchNorm1d(3), (4, 3), {"training": True}),
}
INPUT = {"linear": "mat1"}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_node_keeps_is_what_its_layer_was_told(name: str) -> None:
    module, shape, settings = SETTINGS[name]
    inputs = leaf(*shape)
    node = module(inputs).grad_fn
    assert {each: nodes.saved(node, each) for each in settings} == settings
    assert torch.equal(nodes.saved(node, INPUT.get(name, "input")), inputs)
    if isinstance(module, nn.BatchNorm1d) and not module.training:
        assert torch.equal(nodes.saved(node, "running_mean"), module.running_mean)  # type: ignore[arg-type]
        assert torch.equal(nodes.saved(node, "running_var"), module.running_var)  # type: ignore[arg-type]


def test_other_nodes_keep_what_is_asked_of_them() -> None:
    rectified = leaf(5).relu()
    assert torch.equal(nodes.saved(rectified.grad_fn, "result"), rectified)
    values = leaf(1, 2, 4, 4)
    _, places = F.max_pool2d(values, 2, return_indices=True)
    assert torch.equal(nodes.saved(F.max_pool2d(values, 2).grad_fn, "result1"), places)
    assert torch.equal(nodes.saved(F.linear(matrix := leaf(2, 3), leaf(4, 3)).grad_fn, "self"), matrix)
    assert [dim % 2**64 for dim in nodes.saved(leaf(2, 3).mean(-1).grad_fn, "dim")] == [2**64 - 1]
    assert nodes.saved(rectified.grad_fn, "nothing_of_that_name") is None
    assert nodes.shape_of(object(), 0) == ()


def test_functions_written_in_python_are_told_apart() -> None:
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return 2 * gradient

    node = Twice.apply(leaf(2)).grad_fn
    assert nodes.written_in_python(node)
    assert not nodes.written_in_python(leaf(2).relu().grad_fn)
    assert nodes.module_of(node) == __name__
