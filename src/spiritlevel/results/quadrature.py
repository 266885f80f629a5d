"""Nodes and weights of a spectrum, probe by probe, and the sums, densities and shares that follow with their errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.values.draws import Samples, student_quantile
from spiritlevel.values.errors import SpiritlevelError, UsageError
from spiritlevel.values.estimate import at_least_rounding


@dataclass(frozen=True)
class SpectralSum:
    """A sum over the eigenvalues estimated by probes: mean, standard error, and the draws it was made from.

    Attributes
    ----------
    value, stderr : float
        The mean, and its standard error over probes, never below the rounding of the products.
    samples : tuple of float
        The draws.
    """

    value: float
    stderr: float  # over probes, never below the rounding of the products
    samples: tuple[float, ...]

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the Student-t interval: with few probes a normal one would be too short."""
        half = student_quantile(len(self.samples) - 1, confidence) * self.stderr
        return self.value - half, self.value + half


@dataclass(frozen=True)
class Band:
    """A function on a grid averaged over probes, with its standard error and the kernel it was smoothed with.

    Attributes
    ----------
    grid, mean, stderr : Tensor
        The grid (n,), the function on it, and its standard error, infinite with a single probe.
    kernel_width : float
        The standard deviation of the Gaussian in units of the eigenvalues; 0 where it is not smoothed.
    kernel_share : float
        The same relative to the range of the nodes.
    """

    grid: Tensor  # (n,)
    mean: Tensor  # (n,)
    stderr: Tensor  # (n,), infinite with a single probe
    kernel_width: float  # standard deviation of the Gaussian in units of the eigenvalues; 0 = not smoothed
    kernel_share: float  # the same relative to the range of the nodes


@dataclass(frozen=True)
class Quadrature:
    """Nodes and weights of every probe: A's spectral density as each probe sees it.

    Attributes
    ----------
    nodes, weights : Tensor
        Ritz values and their weights (K, m) in float64; each row of weights sums to 1.
    mass : Tensor
        The squared length (K,) of each probe: the order P of the matrix for random signs.
    rounding : float
        The relative rounding of the products.
    """

    nodes: Tensor  # (K, m) float64
    weights: Tensor  # (K, m) float64, each row sums to 1
    mass: Tensor  # (K,) float64: squared length of each probe, the order P of the matrix for random signs
    rounding: float  # relative rounding of the products

    def sum_of(self, function: Callable[[Tensor], Tensor]) -> SpectralSum:
        """Estimate the sum of ``function`` over all eigenvalues."""
        terms = self.weights * function(self.nodes)
        samples = self.mass * terms.sum(dim=1)
        floor = self.rounding * float((self.mass * terms.abs().sum(dim=1)).mean())
        return spectral_sum(samples, floor)

    def negative_mass(self) -> SpectralSum:
        """Estimate the share of eigenvalues below zero, further than rounding reaches."""
        zero = self.rounding * float(self.nodes.abs().max())
        share = (self.weights * (self.nodes < -zero)).sum(dim=1)
        found = spectral_sum(share, 0.0)
        # Where all probes agree, the rounding of their weights is left, which sum to one.
        return replace(found, stderr=at_least_rounding(found.stderr, 1.0, self.rounding))

    def effective_dimension(self, z: float) -> SpectralSum:
        """Estimate sum lambda / (lambda + z): directions curved more than ``z``; negative eigenvalues count as 0."""
        if not z > 0:
            raise UsageError(f"the effective dimension needs a positive z; found {z}.")
        return self.sum_of(lambda nodes: nodes.clamp_min(0) / (nodes.clamp_min(0) + z))

    def density(self, grid: Tensor | None = None, *, width: float = 0.01, points: int = 1001) -> Band:
        """Return the spectral density (integral 1) smoothed by a Gaussian, with a band over probes.

        ``width`` is the kernel's standard deviation relative to the range of the nodes, so that a small spectrum shows
        the same picture as a large one; the default grid reaches four widths beyond the outermost nodes.
        """
        if not width > 0:
            raise UsageError(f"the kernel width must be positive, relative to the range of nodes; found {width}.")
        low, high = float(self.nodes.min()), float(self.nodes.max())
        extent, size = high - low, max(abs(low), abs(high))
        if extent <= 100 * self.rounding * size:  # a multiple of the identity has no range of its own
            extent = size or 1.0
        sigma = width * extent
        if grid is None:
            grid = torch.linspace(low - 4 * sigma, high + 4 * sigma, points, dtype=torch.float64)
        grid = grid.detach().cpu().double()
        curves = []
        for nodes, weights in zip(self.nodes, self.weights, strict=True):
            bumps = torch.exp(-0.5 * ((grid[:, None] - nodes) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
            curves.append(bumps @ weights)
        mean, stderr = _over_probes(torch.stack(curves))
        return Band(grid, mean, stderr, sigma, width)

    def cumulative(self, grid: Tensor) -> Band:
        """Return the share of eigenvalues at or below each grid point, unsmoothed, with its error over probes."""
        grid = grid.detach().cpu().double()
        below = (self.nodes[:, None, :] <= grid[None, :, None]) * self.weights[:, None, :]
        mean, stderr = _over_probes(below.sum(dim=2))
        return Band(grid, mean, stderr, 0.0, 0.0)


def log_volume(values: Tensor, residuals: Tensor) -> tuple[float, tuple[float, float]]:
    """Return the sum of the logarithms of given eigenvalues and the interval their residuals leave it in."""
    values, residuals = values.detach().cpu().double(), residuals.detach().cpu().double()
    if bool((values <= 0).any()):
        place = int((values <= 0).nonzero()[0])
        raise SpiritlevelError(
            f"eigenvalue {place + 1} of {len(values)} is {float(values[place]):.3g}, not positive, so the log-volume "
            f"of the top {len(values)} does not exist; ask for at most {place}."
        )
    low = (values - residuals).clamp_min(0).log().sum()
    return float(values.log().sum()), (float(low), float((values + residuals).log().sum()))


def spectral_sum(samples: Tensor, floor: float) -> SpectralSum:
    """Return the mean over probes; ``floor`` is the rounding of the products."""
    kept = Samples(samples.tolist())
    return SpectralSum(kept.mean, math.hypot(kept.stderr, floor), tuple(kept.values))


def _over_probes(curves: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard error over the first axis."""
    count = curves.shape[0]
    if count < 2:
        return curves.mean(dim=0), torch.full_like(curves[0], math.inf)
    return curves.mean(dim=0), curves.std(dim=0) / math.sqrt(count)
