"""Convolutions whose output goes through max-pooling and nothing else but a ReLU before it, found in the graph.

Gradients are then pulled back to the pooled output only: the steps before it would spread a quarter of the numbers, or
less, over all positions, once a column, where the pooling's own indices tell where each belongs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from spiritlevel.engine.layers.sample_gradients import Pooling
from spiritlevel.engine.passes.graph import Graph
from spiritlevel.inputs.torch_internals import nodes


@dataclass(frozen=True)
class Stop:
    """The pooled output of a layer: what the pooling chose, and what a ReLU before it lets through of a gradient."""

    edge: GradientEdge
    pooling: Pooling
    gate: Tensor | None  # 1 or 0, in the shape of the pooled output


def pooled(module: nn.Module, edge: GradientEdge, shape: torch.Size, graph: Graph) -> Stop | None:
    """Return the pooled output of a layer whose own output has ``shape``, None where there is no such pooling."""
    if not isinstance(module, (nn.Conv2d, nn.Conv3d)):
        return None
    rectified: Tensor | None = None
    node: Any = _only_consumer(edge.node, graph)
    if node is not None and nodes.name_of(node) == nodes.RELU:
        rectified = nodes.saved(node, "result")
        if rectified is None:
            return None
        node = _only_consumer(node, graph)
    if node is None or nodes.name_of(node) not in nodes.MAX_POOLS:
        return None
    chosen = nodes.saved(node, "result1")  # torch keeps the indices among the flattened positions of a channel
    if chosen is None or chosen.ndim != len(shape) or chosen.shape[:2] != shape[:2]:
        return None
    positions = chosen.flatten(2)
    gate = None
    if rectified is not None:
        if rectified.shape != shape:
            return None
        gate = rectified.detach().flatten(2).gather(2, positions).sign_().reshape(chosen.shape)
    return Stop(GradientEdge(node, 0), Pooling(positions, math.prod(shape[2:])), gate)


def _only_consumer(node: Any, graph: Graph) -> Any | None:
    consumers = graph.consumers.get(node, [])
    return consumers[0] if len(consumers) == 1 else None
