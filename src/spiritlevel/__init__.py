"""Spiritlevel measures how flat a trained network's minimum is, and which of those numbers survive rescaling."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public names and the modules that hold them; importing the package itself loads none of them.
_PUBLIC = {
    "Problem": "spiritlevel.problem",
    "Estimate": "spiritlevel.estimate",
    "Result": "spiritlevel.estimate",
    "Report": "spiritlevel.results",
    "collect": "spiritlevel.results",
    "SpiritlevelError": "spiritlevel.errors",
    "UsageError": "spiritlevel.errors",
    "load_weights": "spiritlevel.checkpoints",
    "declare": "spiritlevel.measures.declaration",
    "Cost": "spiritlevel.measures.declaration",
    "measure": "spiritlevel.measuring",
    "plan": "spiritlevel.planning",
    "audit": "spiritlevel.auditing",
    "compare": "spiritlevel.comparison",
    "curvature": "spiritlevel.measuring",
    "per_sample": "spiritlevel.measuring",
    "eigenvalues": "spiritlevel.spectra",
    "spectrum": "spiritlevel.spectra",
    "Spectrum": "spiritlevel.spectrum_result",
}
_MODULES = ("losses", "symmetries", "nets", "datasets", "training", "measures", "operators", "reference")

__all__ = [
    "Cost",
    "Estimate",
    "Problem",
    "Report",
    "Result",
    "Spectrum",
    "SpiritlevelError",
    "UsageError",
    "__version__",
    "audit",
    "collect",
    "compare",
    "curvature",
    "datasets",
    "declare",
    "eigenvalues",
    "load_weights",
    "losses",
    "measure",
    "measures",
    "nets",
    "operators",
    "per_sample",
    "plan",
    "reference",
    "spectrum",
    "symmetries",
    "training",
]

if TYPE_CHECKING:
    from spiritlevel import datasets, losses, measures, nets, operators, reference, symmetries, training
    from spiritlevel.auditing import audit
    from spiritlevel.checkpoints import load_weights
    from spiritlevel.comparison import compare
    from spiritlevel.errors import SpiritlevelError, UsageError
    from spiritlevel.estimate import Estimate, Result
    from spiritlevel.measures.declaration import Cost, declare
    from spiritlevel.measuring import curvature, measure, per_sample
    from spiritlevel.planning import plan
    from spiritlevel.problem import Problem
    from spiritlevel.results import Report, collect
    from spiritlevel.spectra import eigenvalues, spectrum
    from spiritlevel.spectrum_result import Spectrum


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name in _MODULES:
        return import_module(f"spiritlevel.{name}")
    raise AttributeError(f"module 'spiritlevel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
