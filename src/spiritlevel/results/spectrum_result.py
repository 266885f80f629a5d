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
from spiritlevel.results.outliers import Outliers, outliers_of
from spiritlevel.results.quadrature import Band, Quadrature, SpectralSum, log_volume
from spiritlevel.results.records import SCHEMA_VERSION, as_json, estimate_record, read_estimate
from spiritlevel.results.wording import matrix_words
from spiritlevel.values.cleaning import Cleaned
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import ANYWHERE, Estimate, at_least_rounding, not_applicable

if TYPE_CHECKING:
    from rich.console import RenderableType

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


@dataclass(frozen=True, kw_only=True, repr=False)
class Spectrum(Headed, ResultBase):
    """The spectrum of one matrix: extremes with certificates, spectral sums with errors, quadrature of every probe.

    Attributes
    ----------
    operator : str
        The matrix: "hessian", "ggn", "batch_variance", a layer or a parameter.
    size : int
        The order P of the matrix.
    eigenvalue_max, eigenvalue_min : Estimate
        The largest and the smallest eigenvalue, with the intervals their residuals leave.
    trace : Estimate
        The sum of all eigenvalues.
    frobenius_squared : Estimate
        The sum of their squares.
    nodes : Tensor
        The Ritz values (K, m) of each probe, ascending.
    weights : Tensor
        Their quadrature weights (K, m); each row sums to 1.
    residuals : Tensor
        Their certificates (K, m).
    top_values, top_residuals : Tensor
        The largest eigenvalues (n,) that converged, descending, and their certificates.
    rounding : float
        The relative rounding of the products.
    classes : int
        The number of classes that outliers are compared with; None where there are none.
    settings, plan : dict
        How it was asked for; what the run was planned to take, and how the products were made.
    header : Header
        What was measured.
    counted_nodes, counted_weights : Tensor
        Nodes (K, m + d) with d outliers counted instead of sampled, some weights negative: the density's.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> found = sl.spectrum(problem, probes=8, steps=20)
    >>> round(found.eigenvalue_max.value, 2), found.outliers.count
    (0.34, 0)
    >>> round(found.effective_dimension(0.1).value), "of", found.size
    (114, 'of', 3466)
    >>> band = found.density()
    >>> tuple(band.grid.shape), tuple(band.mean.shape)
    ((1001,), (1001,))
    """

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
        """Return the spectral density with its band over probes; ``width`` is the kernel's, relative to the range.

        Parameters
        ----------
        grid : Tensor
            Where to evaluate it; by default four widths beyond the outermost nodes.
        width : float
            The kernel's standard deviation relative to the range of the nodes.
        points : int
            Points of the default grid.

        Returns
        -------
        Band
            The density on the grid, with its standard error over probes.
        """
        return self.counted.density(grid, width=width, points=points)

    def cumulative(self, grid: Tensor) -> Band:
        """Return the share of eigenvalues at or below each grid point, unsmoothed.

        Parameters
        ----------
        grid : Tensor
            Where to evaluate it.

        Returns
        -------
        Band
            The share on the grid, with its standard error over probes.
        """
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
        """Return Σ λ / (λ + z) over positive eigenvalues: the number of directions curved more than ``z``.

        Parameters
        ----------
        z : float
            The curvature from which a direction counts; positive.

        Returns
        -------
        Estimate
            The number, with its error over probes.

        Raises
        ------
        UsageError
            ``z`` is zero or negative.
        """
        return self._estimate(self.quadrature.effective_dimension(z))

    def log_volume(self, k: int = 10) -> Estimate:
        """Return the sum of the logarithms of the k largest eigenvalues, with the interval their residuals leave.

        Parameters
        ----------
        k : int
            How many.

        Returns
        -------
        Estimate
            The sum; not applicable where fewer converged or one of them is zero or negative.

        Raises
        ------
        UsageError
            ``k`` is below 1 or above the order of the matrix.
        """
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
        return outliers_of(self.nodes, self.residuals, self.classes)

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
        """Return the numbers as a report: a row each, with its error or certificate.

        Returns
        -------
        Report
            The report.
        """
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
        """Return the table a terminal shows.

        Parameters
        ----------
        notes : bool
            Whether to show the notes below it.

        Returns
        -------
        rich renderable
            What a terminal shows.
        """
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

        Parameters
        ----------
        name : str or path
            The figure, or the image to write.

        Returns
        -------
        altair.Chart or None
            The chart; None where an image was written.

        Raises
        ------
        UsageError
            There is no such figure.
        SpiritlevelError
            The extra ``page`` is not installed.
        """
        if Path(name).suffix:
            from spiritlevel.page.spectrum_figure import write_figure

            return write_figure(self, name)
        return super().figure(os.fspath(name))

    def record(self) -> dict[str, Any]:
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
