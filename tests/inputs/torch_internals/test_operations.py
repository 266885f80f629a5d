"""Kinds of operations: every name is one that torch records, and stands in one set."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from spiritlevel.inputs.torch_internals import nodes, operations

CURVED: dict[str, Callable[[Tensor], Tensor]] = {
    "AcosBackward0": torch.acos, "AcoshBackward0": lambda x: torch.acosh(1 + x), "AsinBackward0": torch.asin,
    "AsinhBackward0": torch.asinh, "AtanBackward0": torch.atan, "AtanhBackward0": torch.atanh,
    "CeluBackward0": F.celu, "CosBackward0": torch.cos, "CoshBackward0": torch.cosh, "EluBackward0": F.elu,
    "ErfBackward0": torch.erf, "ErfcBackward0": torch.erfc, "Exp2Backward0": torch.exp2, "ExpBackward0": torch.exp,
    "Expm1Backward0": torch.expm1, "GeluBackward0": F.gelu, "HardswishBackward0": F.hardswish,
    "LgammaBackward0": torch.lgamma, "Log10Backward0": torch.log10, "Log1PBackward0": torch.log1p,
    "Log2Backward0": torch.log2, "LogBackward0": torch.log, "LogSigmoidBackward0": F.logsigmoid,
    "LogitBackward0": torch.logit, "MishBackward0": F.mish, "PowBackward0": lambda x: x.pow(3),
    "ReciprocalBackward0": torch.reciprocal, "RsqrtBackward0": torch.rsqrt, "SigmoidBackward0": torch.sigmoid,
    "SiluBackward0": F.silu, "SinBackward0": torch.sin, "SincBackward0": torch.sinc, "SinhBackward0": torch.sinh,
    "SoftplusBackward0": F.softplus, "SqrtBackward0": torch.sqrt, "TanBackward0": torch.tan,
    "TanhBackward0": torch.tanh,
}  # fmt: skip
SETS = {
    "linear": operations.LINEAR,
    "pointwise": operations.POINTWISE,
    "products": frozenset({operations.MULTIPLY, operations.DIVIDE, *operations.MATRIX_PRODUCTS}),
    "weighted": operations.WEIGHTED,
    "softmax": operations.SOFTMAX | {operations.LOG_SOFTMAX},
    "norms": frozenset({operations.LAYER_NORM, operations.GROUP_NORM}),
    "applied": operations.APPLIED,
    "slopes": frozenset(operations.SLOPES),
}


def leaf(*shape: int) -> Tensor:
    return torch.linspace(0.2, 0.7, torch.Size(shape).numel()).reshape(shape).requires_grad_()


@pytest.mark.parametrize("name", CURVED)
def test_pointwise_operations_are_recorded_under_their_names_and_are_curved(name: str) -> None:
    x = leaf(6)
    out = CURVED[name](x)
    assert nodes.name_of(out.grad_fn) == name
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    assert slope.requires_grad


@pytest.mark.parametrize(
    ("name", "function"),
    [
        (operations.TANH_SLOPE, torch.tanh),
        (operations.SIGMOID_SLOPE, torch.sigmoid),
        (operations.SOFTPLUS_SLOPE, F.softplus),
        (operations.GELU_SLOPE, F.gelu),
    ],
)
def test_slopes_are_recorded_under_their_names_with_what_they_keep(name: str, function: Callable[..., Tensor]) -> None:
    x = leaf(6)
    (slope,) = torch.autograd.grad((3 * function(x)).sum(), x, create_graph=True)
    assert nodes.name_of(slope.grad_fn) == name
    kept = function(x) if operations.SLOPES[name] == "output" else x
    assert torch.equal(nodes.kept(slope.grad_fn, operations.SLOPES[name]), kept.detach())
    assert torch.equal(nodes.kept(slope.grad_fn, "grad_output"), torch.full((6,), 3.0))


def test_every_pointwise_operation_is_tried_and_no_name_stands_in_two_sets() -> None:
    assert set(CURVED) == operations.POINTWISE
    names = [name for group in SETS.values() for name in group]
    assert len(names) == len(set(names))
    assert operations.ENTRYWISE_LINEAR <= operations.LINEAR
    assert operations.CARRIERS <= operations.LINEAR


def test_products_softmax_and_norms_are_recorded_under_their_names() -> None:
    recorded = {
        operations.DIVIDE: leaf(2) / leaf(2),
        "BmmBackward0": torch.bmm(leaf(1, 2, 2), leaf(1, 2, 2)),
        "BaddbmmBackward0": torch.baddbmm(leaf(1, 2, 2), leaf(1, 2, 2), leaf(1, 2, 2)),
        "SoftmaxBackward0": leaf(2, 2).softmax(-1),
        operations.LOG_SOFTMAX: leaf(2, 2).log_softmax(-1),
        operations.LAYER_NORM: F.layer_norm(leaf(2, 3), (3,)),
        operations.GROUP_NORM: F.group_norm(leaf(2, 4), 2),
        operations.EMBEDDING: F.embedding(torch.tensor([0, 1]), leaf(3, 2)),
        "LogsumexpBackward0": leaf(3).logsumexp(0),
        "StdBackward0": leaf(3).std(0),
    }
    assert {name: nodes.name_of(out.grad_fn) for name, out in recorded.items()} == {name: name for name in recorded}
