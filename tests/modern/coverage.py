"""How often a network's sampled values lie within 1.96 of their stated errors of the truth, over many seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import spiritlevel as sl
from tests.modern.measured import WITH_SAMPLES, traces_of
from tests.modern.network import ModernNetwork
from tests.modern.truth import truth_of
from tests.modern.verdict import COVERED, ERRORS, judge, layer_errors, sample_errors

SAMPLES = 24
MEASURES = ("hessian_trace", "kappa_tau_sum", "rho_sum", "normalized_sharpness")
LAYERS, TRACES = "layers' traces", "samples' traces"


@dataclass(frozen=True)
class Coverage:
    """Errors in units of those stated, by measure; what was exact has none, and of bounds one side alone counts."""

    name: str
    errors: dict[str, list[float]] = field(default_factory=dict)

    def share(self, measure: str, within: float = COVERED) -> float:
        """The share of the errors of one measure that are within so many of those stated."""
        errors = self.errors[measure]
        return sum(abs(z) <= within for z in errors) / len(errors)

    @property
    def summary(self) -> dict[str, dict[str, float]]:
        """For the record: how many there are, and which share lies within 1.96 and 3."""
        return {
            name: {"count": len(errors), "covered": self.share(name), "within_3": self.share(name, ERRORS)}
            for name, errors in self.errors.items()
            if errors
        }


def coverage(network: ModernNetwork, seeds: int, samples: int = SAMPLES, cache: Path | None = None) -> Coverage:
    """Measure one network with many seeds."""
    trained = network.train()
    truth, problem = truth_of(trained, samples, cache), trained.problem(samples)
    found: dict[str, list[float]] = {name: [] for name in (*MEASURES, LAYERS, TRACES)}
    for seed in range(seeds):
        report = sl.measure(problem, list(MEASURES), seed=seed, settings=WITH_SAMPLES)
        for name in MEASURES:
            verdict = judge(name, report[name], truth.values.get(name))
            if verdict.z is not None:
                found[name].append(_one_sided(verdict.z, verdict.how))
        found[LAYERS] += [z for z in layer_errors(report, truth.layers).values() if z != 0.0]
        found[TRACES] += [z for z in sample_errors(*traces_of(report), truth.samples) if z != 0.0]
    return Coverage(network.name, found)


def _one_sided(z: float, how: str) -> float:
    return min(z, 0.0) if how == "upper_bound" else max(z, 0.0) if how == "lower_bound" else z
