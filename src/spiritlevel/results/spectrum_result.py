"""The spectrum of a matrix as it was found: every probe's nodes and weights, certified extremes, sums with errors."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from spiritlevel.results import Report, levels
from spiritlevel.results.base import ResultBase
from spiritlevel.results.header import Headed, Header
from spiritlevel.results.numerals import plain
from spiritlevel.results.quadrature import Band, Quadrature, SpectralSum, log_volume
from spiritlevel.results.records import SCHEMA_VERSION, as_json, estimate_record, read_estimate
from spiritlevel.results.wording import matrix_words
from spiritlevel.values.cleaning import Cleaned
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import ANYWHERE, Estimate, at_least_rounding, not_applicable

if TYPE_CHECKING:
    from rich.console import RenderableType

# An eigenvalue stands apart from the bulk where the next one is smaller by this factor.
SMALLEST_GAP = 1.5
OUTLIER_SHARE = 0.01  # of the largest eigenvalue, below which none is an outlier
TITLES = {
    "eigenvalue_max": "Largest eigenvalue",
    "eigenvalue_min": "Smallest eigenvalue",
    "trace": "Trace",
    "frobenius_squared": "Squared Frobenius norm",
    "negative_mass": "Share of negative eigenvalues",
    "effective_dimension": "Effective dimension at z = 1",
}
_ESTIMATES = ("eigenvalue_max", "eigenvalue_min", "trace", "frobenius_squared")
_TENSORS = ("nodes", "weights", "residuals", "top_values", "top_residuals")
_OF_A_COMMAND = ("weights", "data", "split", "trained", "wall_time")
_COUNTED = ("counted_nodes", "counted_weights")


@dataclass(frozen=True)
class Outliers:
    """How many positive eigenvalues stand apart from the bulk, beside the number of classes they are compared with.

    For each probe the widest gap, as a ratio, between a converged Ritz value and the next one ends the outliers; the
    count is the middle one of all probes'.
    """

    count: int
    classes: int | None
    gap: float  # ratio of the last outlier to the next eigenvalue, of the probe with the middle count
    counts: tuple[int, ...]  # every probe's


@dataclass(frozen=True, kw_only=True, repr=False)
class Spectrum(Headed, ResultBase):
    """The spectrum of one matrix: extremes with certificates, spectral sums with errors, quadrature of every probe."""

    kind: ClassVar[str] = "spectrum"
    main_figure: ClassVar[str] = "density"
    levels = levels.SPECTRUM
    operator: str
    size: int  # order P of the matrix
    eigenvalue_max: Estimate
    eigenvalue_min: Estimate
    trace: Estimate
    frobenius_squared: Estimate
    nodes: Tensor  # (K, m) Ritz values of each probe, ascending
    weights: Tensor  # (K, m) quadrature weights, each row sums to 1
    residuals: Tensor  # (K, m) certificates of the Ritz values
    top_values: Tensor  # (n,) largest eigenvalues that converged, descending
    top_residuals: Tensor  # (n,)
    rounding: float
    classes: int | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    header: Header = field(default_factory=Header)
    # (K, m + d) nodes and weights with d outliers counted instead of sampled, some weights negative: the density's.
    counted_nodes: Tensor | None = None
    counted_weights: Tensor | None = None

    @property
    def quadrature(self) -> Quadrature:
        """Nodes and weights as a quadrature of functions of the matrix."""
        return self._quadrature(self.nodes, self.weights)

    @property
    def counted(self) -> Quadrature:
        """The same with the outliers counted instead of sampled."""
        if self.counted_nodes is None or self.counted_weights is None:
            return self.quadrature
        return self._quadrature(self.counted_nodes, self.counted_weights)

    def _quadrature(self, nodes: Tensor, weights: Tensor) -> Quadrature:
        mass = torch.full((len(nodes),), float(self.size), dtype=torch.float64)  # squared length of random signs
        return Quadrature(nodes, weights, mass, self.rounding)

    @property
    def path(self) -> str:
        """How the products were made."""
        return str(self.plan.get("path", ""))

    @property
    def ok(self) -> bool:
        """Whether every number met its tolerance."""
        return all(estimate.ok for estimate in self._estimates().values())

    def density(self, grid: Tensor | None = None, *, width: float = 0.01, points: int = 1001) -> Band:
        """Return the spectral density with its band over probes; ``width`` is the kernel's, relative to the range."""
        return self.counted.density(grid, width=width, points=points)

    def cumulative(self, grid: Tensor) -> Band:
        """Return the share of eigenvalues at or below each grid point, unsmoothed."""
        return self.counted.cumulative(grid)

    @property
    def negative_mass(self) -> Estimate:
        """The share of eigenvalues below zero; its ``bounds`` in the details are what so few nodes leave of it.

        A Gauss quadrature's weights bound each probe's share from both sides (Chebyshev–Markov–Stieltjes): without the
        last node below zero it is too small, with the first one above zero too large.
        """
        zero = self.rounding * float(self.nodes.abs().max())
        below = (self.nodes < -zero).sum(1)
        sums = torch.cat([torch.zeros(len(self.nodes), 1, dtype=torch.float64), self.weights.cumsum(1)], dim=1)
        steps = self.nodes.shape[1]
        low = sums.gather(1, (below - 1).clamp_min(0)[:, None]).mean()
        high = sums.gather(1, (below + 1).clamp_max(steps)[:, None]).mean()
        found = self._estimate(self.quadrature.negative_mass())
        if steps == self.size:  # the nodes are the eigenvalues
            return found
        return replace(found, details={**found.details, "bounds": [float(low), min(float(high), 1.0)]})

    def effective_dimension(self, z: float = 1.0) -> Estimate:
        """Return Σ λ / (λ + z) over positive eigenvalues: the number of directions curved more than ``z``."""
        return self._estimate(self.quadrature.effective_dimension(z))

    def log_volume(self, k: int = 10) -> Estimate:
        """Return the sum of the logarithms of the k largest eigenvalues, with the interval their residuals leave."""
        if not 1 <= k <= self.size:
            raise UsageError(f"k must lie between 1 and the order of the matrix, {self.size:,}; found {k}")
        if len(self.top_values) < k:
            return not_applicable(
                f"only {len(self.top_values)} of the {k} largest eigenvalues converged in {self.nodes.shape[1]} steps; "
                "take more steps, or a smaller k"
            )
        values, residuals = self.top_values[:k], self.top_residuals[:k]
        if float(values[-1]) <= 0:
            positive = int((values > 0).sum())
            return not_applicable(f"only {positive} of the {k} largest eigenvalues are positive; choose a smaller k")
        total, interval = log_volume(values, residuals)
        above = int((self.nodes > float(values[-1] + residuals[-1])).sum(1).max())
        skipped = above > k - 1
        return Estimate(
            total,
            interval=interval,  # without a lower end where a residual reaches to 0
            how="estimated",
            status="budget_spent" if skipped else "ok",
            reason="an eigenvalue that has not converged lies among them; take more steps" if skipped else "",
            samples=self.eigenvalue_max.samples,
            details={"eigenvalues": values.tolist(), "residuals": residuals.tolist()},
        )

    @property
    def outliers(self) -> Outliers:
        """Positive eigenvalues that stand apart from the bulk, counted by every probe."""
        found = sorted(self._outliers_of(probe) for probe in range(len(self.nodes)))
        count, gap = found[len(found) // 2]
        return Outliers(count, self.classes, gap, tuple(number for number, _ in found))

    def _outliers_of(self, probe: int) -> tuple[int, float]:
        values, residuals = self.nodes[probe].flip(0), self.residuals[probe].flip(0)
        limit = 2 * self.classes + 10 if self.classes else 50
        best, widest = 0, SMALLEST_GAP
        top = float(values[0])
        for place in range(min(limit, len(values) - 1)):
            # Gaps deep in the bulk, where values cross zero, are none: what lies below a thousandth counts as one.
            value, following = float(values[place]), max(float(values[place + 1]), 1e-3 * top)
            if value <= OUTLIER_SHARE * top or value <= 0 or float(residuals[place]) > 0.01 * value:
                break
            if value / following > widest:
                best, widest = place + 1, value / following
        return best, widest if best else 1.0

    def _estimate(self, found: SpectralSum) -> Estimate:
        return Estimate(
            found.value,
            at_least_rounding(found.stderr, found.value),
            interval=None if math.isfinite(found.stderr) else ANYWHERE,
            how="estimated",
            samples=self.eigenvalue_max.samples,
            details={"draws": list(found.samples)},
        )

    # --- showing and keeping --------------------------------------------------------------------------------------

    def _estimates(self) -> dict[str, Estimate]:
        return {name: getattr(self, name) for name in _ESTIMATES}

    def report(self) -> Report:
        """Return the numbers as a report: a row each, with its error or certificate."""
        rows = self._estimates()
        rows["negative_mass"] = self.negative_mass
        rows["effective_dimension"] = self.effective_dimension()
        return Report(
            estimates=rows, per_layer={}, per_neuron={}, per_sample={}, header=self.header, settings={}, titles=TITLES
        )

    @property
    def in_short(self) -> str:
        """The matrix and the ends of its spectrum."""
        ends = " to ".join(plain(each.value) for each in (self.eigenvalue_min, self.eigenvalue_max))
        model = self.header.model or "a network"
        return f"the {matrix_words(self.operator)} of {model}, {self.size:,} parameters: {ends}"

    def table(self, *, notes: bool = True) -> RenderableType:
        """Return the table a terminal shows."""
        from rich.console import Group
        from rich.text import Text

        return Cleaned(Group(self.report().table(layers=False, notes=notes), *map(Text, self.sentences)))

    @property
    def sentences(self) -> list[str]:
        """What a reader must know beside the numbers, a sentence each."""
        found = self.outliers
        against = f"; there are {found.classes} classes" if found.classes else ""
        bounds = self.negative_mass.details.get("bounds")
        unsure = []
        if bounds is not None:
            unsure = [
                f"So few nodes leave the share of negative eigenvalues between {bounds[0]:.2g} and {bounds[1]:.2g}."
            ]
        return [
            *unsure,
            f"Positive eigenvalues that stand apart from the bulk: {found.count}{against}.",
            f"{len(self.nodes)} probes of {self.nodes.shape[1]} steps; products by {self.path}.",
        ]

    def figure(self, name: str | os.PathLike[str] = "") -> Any:
        """Return one of the page's figures as an Altair chart, "density" or "ritz_values".

        The name of a file ending in .png, .pdf or .svg is written instead, with both in one image by matplotlib.
        """
        if Path(name).suffix:
            from spiritlevel.page.spectrum_figure import write_figure

            return write_figure(self, name)
        return super().figure(os.fspath(name))

    def record(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.kind,
            "operator": self.operator,
            "size": self.size,
            "classes": self.classes,
            "rounding": self.rounding,
            "estimates": {name: estimate_record(estimate) for name, estimate in self._estimates().items()},
            "negative_mass": estimate_record(self.negative_mass),
            "effective_dimension": estimate_record(self.effective_dimension()),
            "outliers": as_json(vars(self.outliers)),
            **{name: as_json(getattr(self, name)) for name in (*_TENSORS, *_COUNTED)},
            "settings": as_json(self.settings),
            "plan": as_json(self.plan),
            "header": self._header_record(),
        }

    def _header_record(self) -> dict[str, Any]:
        """Return the header without what only a command knows, where none was given, and without a time."""
        unknown = ("wall_time",) if self.header.data is not None else _OF_A_COMMAND
        return {name: value for name, value in self.header.record().items() if value is not None or name not in unknown}

    @classmethod
    def _read(cls, record: dict[str, Any], source: str) -> Self:
        plain = ("operator", "size", "classes", "rounding", "settings", "plan")
        parts: dict[str, Any] = {name: record[name] for name in plain}
        parts["header"] = Header.of(record["header"])
        parts.update({name: read_estimate(record["estimates"][name]) for name in _ESTIMATES})
        parts.update({name: torch.tensor(record[name], dtype=torch.float64) for name in _TENSORS})
        known = [name for name in _COUNTED if record.get(name) is not None]
        parts.update({name: torch.tensor(record[name], dtype=torch.float64) for name in known})
        return cls(**parts)
