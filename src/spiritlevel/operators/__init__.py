"""Implicit matrices: products with the Hessian, the Gauss–Newton matrix and the blocks of layers."""

from __future__ import annotations

from spiritlevel.operators.matrices import GGNOperator, HessianOperator, LayerBlock

__all__ = ["GGNOperator", "HessianOperator", "LayerBlock"]
