"""Spiritlevel measures how flat a trained network's minimum is, and which of those numbers survive rescaling."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from spiritlevel.values.version import __version__

# Public names and the modules that hold them; importing the package itself loads none of them.
_PUBLIC = {
    "Problem": "spiritlevel.engine.problem",
    "Estimate": "spiritlevel.values.estimate",
    "Result": "spiritlevel.values.estimate",
    "Report": "spiritlevel.results",
    "collect": "spiritlevel.results",
    "load_reports": "spiritlevel.results",
    "SpiritlevelError": "spiritlevel.values.errors",
    "UsageError": "spiritlevel.values.errors",
    "load_weights": "spiritlevel.inputs.weights.checkpoints",
    "declare": "spiritlevel.measures.declaration",
    "Measure": "spiritlevel.measures.declaration",
    "Cost": "spiritlevel.measures.costs",
    "measure": "spiritlevel.analyses.measuring",
    "MeasuringInterrupted": "spiritlevel.analyses.measuring",
    "plan": "spiritlevel.analyses.planning",
    "Plan": "spiritlevel.analyses.planning",
    "audit": "spiritlevel.analyses.auditing",
    "compare": "spiritlevel.analyses.comparison",
    "Audit": "spiritlevel.results.audits",
    "Comparison": "spiritlevel.results.compared",
    "curvature": "spiritlevel.analyses.diagonal_blocks",
    "CurvatureView": "spiritlevel.analyses.diagonal_blocks",
    "over_ranks": "spiritlevel.inputs.process.joining",
    "per_sample": "spiritlevel.analyses.measuring",
    "eigenvalues": "spiritlevel.analyses.eigenvalue_search",
    "Eigenvalues": "spiritlevel.results.eigenpairs",
    "spectrum": "spiritlevel.analyses.spectra",
    "Spectrum": "spiritlevel.results.spectrum_result",
}
# Public modules and where they stand in the flow.
_MODULES = {
    "losses": "spiritlevel.inputs.losses",
    "operators": "spiritlevel.engine.operators",
    "measures": "spiritlevel.measures",
    "results": "spiritlevel.results",
    "reference": "spiritlevel.measures.reference",
    "symmetries": "spiritlevel.analyses.symmetries",
    "nets": "spiritlevel.lab.nets",
    "datasets": "spiritlevel.lab.datasets",
    "training": "spiritlevel.lab.training",
}

__all__ = [
    "Audit",
    "Comparison",
    "Cost",
    "CurvatureView",
    "Eigenvalues",
    "Estimate",
    "Measure",
    "MeasuringInterrupted",
    "Plan",
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
    "load_reports",
    "load_weights",
    "losses",
    "measure",
    "measures",
    "nets",
    "operators",
    "over_ranks",
    "per_sample",
    "plan",
    "reference",
    "results",
    "spectrum",
    "symmetries",
    "training",
]

if TYPE_CHECKING:
    from spiritlevel import measures, results
    from spiritlevel.analyses import symmetries
    from spiritlevel.analyses.auditing import audit
    from spiritlevel.analyses.comparison import compare
    from spiritlevel.analyses.diagonal_blocks import CurvatureView, curvature
    from spiritlevel.analyses.eigenvalue_search import eigenvalues
    from spiritlevel.analyses.measuring import MeasuringInterrupted, measure, per_sample
    from spiritlevel.analyses.planning import Plan, plan
    from spiritlevel.analyses.spectra import spectrum
    from spiritlevel.engine import operators
    from spiritlevel.engine.problem import Problem
    from spiritlevel.inputs import losses
    from spiritlevel.inputs.process.joining import over_ranks
    from spiritlevel.inputs.weights.checkpoints import load_weights
    from spiritlevel.lab import datasets, nets, training
    from spiritlevel.measures import reference
    from spiritlevel.measures.costs import Cost
    from spiritlevel.measures.declaration import Measure, declare
    from spiritlevel.results import Report, collect, load_reports
    from spiritlevel.results.audits import Audit
    from spiritlevel.results.compared import Comparison
    from spiritlevel.results.eigenpairs import Eigenvalues
    from spiritlevel.results.spectrum_result import Spectrum
    from spiritlevel.values.errors import SpiritlevelError, UsageError
    from spiritlevel.values.estimate import Estimate, Result


class _PublicModules:
    """Finds ``import spiritlevel.losses`` where that module stands; both names give one and the same module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        package, _, last = name.rpartition(".")
        aliased = package == __name__ and _MODULES.get(last, name) != name
        return ModuleSpec(name, self) if aliased else None  # type: ignore[arg-type]  # a loader by its methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self._own = import_module(_MODULES[spec.name.rpartition(".")[2]])
        self._spec = self._own.__spec__
        return self._own

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import of another name would leave that one's


sys.meta_path.append(_PublicModules())


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'spiritlevel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
