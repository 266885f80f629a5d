"""Brute force for small problems: dense float64 matrices by plain differentiation, sharing no code with the passes."""

from __future__ import annotations

from spiritlevel.measures.reference.dense import Dense

__all__ = ["Dense"]
