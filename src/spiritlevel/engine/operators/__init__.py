"""Implicit matrices: the Hessian, the Gauss–Newton matrix, blocks of layers, the variance over batches."""

from __future__ import annotations

from spiritlevel.engine.operators.matrices import GGNOperator, HessianOperator, LayerBlock, VarianceOperator
from spiritlevel.engine.operators.operator import Operator

__all__ = ["GGNOperator", "HessianOperator", "LayerBlock", "Operator", "VarianceOperator"]
