"""Nodes of autograd's graph: the names they are recorded under, and what they keep of their operation.

torch's public API gives a node's name and the nodes behind it.  Which names there are, and what a node keeps, may
change with any release: an operation under another name is not recognised, and what is kept under another name is None
here.  Whoever asks must take both for "unknown", never for a proof.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

ADAPTIVE_AVERAGE_POOL_2D = "AdaptiveAvgPool2DBackward0"
ADD = "AddBackward0"
ADDMM = "AddmmBackward0"
AVERAGE_POOL_2D = "AvgPool2DBackward0"
CATENATE = "CatBackward0"
CLONE = "CloneBackward0"
CONVOLUTION = "ConvolutionBackward0"
CUDNN_BATCH_NORM = "CudnnBatchNormBackward0"
EXPAND = "ExpandBackward0"
HARDTANH = "HardtanhBackward0"
LEAKY_RELU = "LeakyReluBackward0"
MATRIX_TRANSPOSE = "TBackward0"
MAX_POOL_2D = "MaxPool2DWithIndicesBackward0"
MAX_POOL_3D = "MaxPool3DWithIndicesBackward0"
MEAN = "MeanBackward0"
MEAN_ALONG = "MeanBackward1"
MM = "MmBackward0"
MULTIPLY = "MulBackward0"
NATIVE_BATCH_NORM = "NativeBatchNormBackward0"
NEGATE = "NegBackward0"
PAD = "ConstantPadNdBackward0"
PARAMETER = "torch::autograd::AccumulateGrad"
PERMUTE = "PermuteBackward0"
RELU = "ReluBackward0"
RESHAPE_ALIAS = "ReshapeAliasBackward0"
SELECT = "SelectBackward0"
SLICE = "SliceBackward0"
SQUEEZE = "SqueezeBackward0"
SQUEEZE_ALONG = "SqueezeBackward1"
STACK = "StackBackward0"
SUBTRACT = "SubBackward0"
SUM = "SumBackward0"
SUM_ALONG = "SumBackward1"
TRANSPOSE = "TransposeBackward0"
UNSAFE_VIEW = "UnsafeViewBackward0"
UNSQUEEZE = "UnsqueezeBackward0"
VIEW = "ViewBackward0"

BATCH_NORMS = frozenset({NATIVE_BATCH_NORM, CUDNN_BATCH_NORM})
MAX_POOLS = frozenset({MAX_POOL_2D, MAX_POOL_3D})

_SAVED = "_saved_"
_SHAPES = "_input_metadata"
_VARIABLE = "variable"
_FUNCTION = "_forward_cls"


def name_of(node: Any) -> str:
    """Return the name a node is recorded under: one of the constants here where its operation is known."""
    found: str = node.name()
    return found


def saved(node: Any, name: str) -> Any:
    """Return what a node keeps of its operation by torch's name for it, None where it keeps nothing by that name.

    torch raises RuntimeError for a tensor that was written to since.
    """
    return getattr(node, _SAVED + name, None)


def kept(node: Any, name: str) -> Any:
    """Return what a node keeps by that name, a tensor without its graph; RuntimeError where it keeps nothing so."""
    found = saved(node, name)
    if found is None:
        raise RuntimeError(f"{name_of(node)} keeps nothing by the name {name}")
    return found.detach() if isinstance(found, torch.Tensor) else found


def shape_of(node: Any, place: int) -> tuple[int, ...]:
    """Return the shape of one of the results a node gave, an empty one where torch does not tell."""
    results = getattr(node, _SHAPES, None)
    return () if results is None else tuple(results[place].shape)


def parameter_of(node: Any) -> torch.Tensor | None:
    """Return the leaf that a node collects gradients for, None where it is no such node or torch does not tell."""
    found: torch.Tensor | None = getattr(node, _VARIABLE, None)
    return found


def parameters_are_told() -> bool:
    """Whether the nodes of leaves say which leaf they stand for; without it nobody knows how often one is used."""
    leaf = _some_leaf()
    return parameter_of(get_gradient_edge(leaf).node) is leaf


@functools.cache
def _some_leaf() -> torch.Tensor:
    return torch.zeros((), requires_grad=True)


def written_in_python(node: Any) -> bool:
    """Whether a node is an autograd function written in Python."""
    return isinstance(node, torch.autograd.function.FunctionCtx)


def module_of(node: Any) -> str:
    """Return the Python module that wrote a node's function; one of torch's own where it does not tell."""
    return str(getattr(node, _FUNCTION, type(node)).__module__)
