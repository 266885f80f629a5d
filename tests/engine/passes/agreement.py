"""Agreement of exact curvature with the dense reference."""

from __future__ import annotations

from typing import Any

import torch

ALL = frozenset({"diagonal", "rows", "columns", "whole", "transposed"})


def close(found: Any, expected: Any, tolerance: float = 1e-8) -> None:
    found, expected = (torch.as_tensor(value, dtype=torch.float64) for value in (found, expected))
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) <= tolerance * scale + 1e-14, (found, expected)
