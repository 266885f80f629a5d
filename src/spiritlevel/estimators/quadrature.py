"""Spectral sums from Lanczos: quadrature nodes and weights per probe, and what follows from them with its error.

For a probe z with independent random signs, z^T f(A) z has mean tr f(A), and m steps of Lanczos from z give it as
|z|^2 sum_i w_i f(theta_i): nodes are Ritz values, weights squared first components (stochastic Lanczos quadrature;
Golub and Meurant 1994; Ubaru, Chen and Saad 2017).  Polynomials up to degree 2 m - 1 are exact per probe, so trace
and squared Frobenius norm carry only the error over probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from spiritlevel.errors import SpiritlevelError, UsageError
from spiritlevel.estimators.lanczos import Lanczos, length, orthogonalised
from spiritlevel.estimators.probes import Samples, student_quantile


@dataclass(frozen=True)
class SpectralSum:
    """A sum over the eigenvalues estimated by probes: mean, standard error, and the draws it was made from."""

    value: float
    stderr: float  # over probes, never below the rounding of the products
    samples: tuple[float, ...]

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the Student-t interval: with few probes a normal one would be too short."""
        half = student_quantile(len(self.samples) - 1, confidence) * self.stderr
        return self.value - half, self.value + half


@dataclass(frozen=True)
class Band:
    """A function on a grid averaged over probes, with its standard error and the kernel it was smoothed with."""

    grid: Tensor  # (n,)
    mean: Tensor  # (n,)
    stderr: Tensor  # (n,), infinite with a single probe
    kernel_width: float  # standard deviation of the Gaussian in units of the eigenvalues; 0 = not smoothed
    kernel_share: float  # the same relative to the range of the nodes


@dataclass(frozen=True)
class Quadrature:
    """Nodes and weights of every probe: A's spectral density as each probe sees it."""

    nodes: Tensor  # (K, m) float64
    weights: Tensor  # (K, m) float64, each row sums to 1
    mass: Tensor  # (K,) float64: squared length of each probe, the order P of the matrix for random signs
    rounding: float  # relative rounding of the products

    @classmethod
    def of(cls, result: Lanczos) -> Quadrature:
        """Read nodes and weights off a Lanczos run."""
        eps = torch.finfo(result.basis.dtype).eps
        return cls(result.ritz_values, result.weights, result.start_norms.square(), 4 * eps)

    @classmethod
    def counted(cls, result: Lanczos, deflate: int = 10) -> Quadrature:
        """Return the same with the outliers counted instead of sampled: the more even picture of the two.

        Of an eigenvector y found by other probes than z, the share (y . z)^2 / P that z happens to have of it is
        replaced by the 1 / P it has on average.  The rest keeps its shape and fills up to 1.
        """
        plain = cls.of(result)
        nodes = plain.nodes[:, -1:].repeat(1, deflate)  # where there are fewer pairs, with weight 0
        weights = torch.zeros_like(nodes)
        scale = torch.ones_like(nodes[:, :1])
        for probe, values, overlaps in _independent_pairs(result, deflate, None):
            count, mass = len(values), float(plain.mass[probe])
            left = 1 - float(overlaps.sum()) / mass
            if count == 0 or left < 0.5 or count > mass / 2:  # hardly anything would be left to be sampled
                continue
            scale[probe] = (1 - count / mass) / left
            nodes[probe, :count] = values
            weights[probe, :count] = (1 - scale[probe] * overlaps) / mass
        return cls(
            torch.cat([plain.nodes, nodes], 1),
            torch.cat([plain.weights * scale, weights], 1),
            plain.mass,
            plain.rounding,
        )

    def sum_of(self, function: Callable[[Tensor], Tensor]) -> SpectralSum:
        """Estimate the sum of ``function`` over all eigenvalues."""
        terms = self.weights * function(self.nodes)
        samples = self.mass * terms.sum(dim=1)
        floor = self.rounding * float((self.mass * terms.abs().sum(dim=1)).mean())
        return _spectral_sum(samples, floor)

    def negative_mass(self) -> SpectralSum:
        """Estimate the share of eigenvalues below zero, further than rounding reaches."""
        zero = self.rounding * float(self.nodes.abs().max())
        share = (self.weights * (self.nodes < -zero)).sum(dim=1)
        return _spectral_sum(share, 0.0)

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


def trace(
    result: Lanczos,
    *,
    control: tuple[float, Tensor] | None = None,
    deflate: int | None = None,
    pairs: tuple[Tensor, Tensor] | None = None,
) -> SpectralSum:
    """Estimate tr A from the probes' own z^T A z.

    ``control = (tr G, z_k^T G z_k)`` replaces A by A - G in the sampling and adds G's trace, known exactly: the closer
    G is to A, the less is left to chance.  ``deflate`` and ``pairs`` as in `frobenius_squared`; a control is not
    deflated unless asked, because A - G no longer has A's large eigenvalues.
    """
    if deflate is None:
        deflate = 20 if control is None else 0
    samples = result.start_norms.square() * result.alphas[0]
    floor = float(samples.abs().mean())
    if control is not None:
        known, forms = control
        forms = forms.detach().cpu().double()
        if forms.shape != samples.shape:
            raise UsageError(f"the control needs one quadratic form per probe, {len(samples)}; found {len(forms)}.")
        samples = samples - forms + known
    for probe, values, overlaps in _independent_pairs(result, deflate, pairs):
        samples[probe] -= (values * (overlaps - 1)).sum()
    return _spectral_sum(samples, 4 * torch.finfo(result.basis.dtype).eps * floor)


def frobenius_squared(result: Lanczos, *, deflate: int = 20, pairs: tuple[Tensor, Tensor] | None = None) -> SpectralSum:
    """Estimate ||A||_F^2, the sum of squared eigenvalues, from |A z|^2 with the top Ritz pairs deflated.

    With pairs (theta_i, y_i) found independently of z, |A z|^2 - sum theta_i^2 ((y_i . z)^2 - 1) has the same mean for
    any unit vectors y_i, since E (y . z)^2 = 1; for eigenvectors it is sum theta_i^2 plus |A z|^2 with z projected off
    them, so the few large eigenvalues, which carry most of the variance, are counted and not sampled.  ``pairs`` are
    values (k,) and orthonormal vectors (P, k) from elsewhere; without them each half of the probes is deflated by up to
    ``deflate`` Ritz pairs of the other half, never by its own: in a degenerate eigenspace a probe's own Ritz vector
    points along the probe, which would bias the result.
    """
    mass = result.start_norms.square()
    # |A z|^2 = |z|^2 (alpha_1^2 + beta_1^2), as A q_1 = alpha_1 q_1 + beta_1 q_2.
    samples = mass * (result.alphas[0].square() + result.betas[0].square())
    floor = float(samples.mean())
    for probe, values, overlaps in _independent_pairs(result, deflate, pairs):
        samples[probe] -= (values.square() * (overlaps - 1)).sum()
    return _spectral_sum(samples, 8 * torch.finfo(result.basis.dtype).eps * floor)


def extreme_ritz(result: Lanczos, which: Literal["largest", "smallest"]) -> tuple[float, float]:
    """Return the outermost Ritz value over all probes and the radius within which an eigenvalue lies for certain.

    A Ritz value never lies outside the spectrum by more than rounding: the largest is a lower bound of the largest
    eigenvalue, the smallest an upper bound of the smallest.
    """
    values = result.ritz_values.flatten()
    at = int(values.argmax() if which == "largest" else values.argmin())
    return float(values[at]), float(result.residual_bounds.flatten()[at])


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


def _independent_pairs(
    result: Lanczos, deflate: int, pairs: tuple[Tensor, Tensor] | None
) -> list[tuple[int, Tensor, Tensor]]:
    """Return for each probe z values theta_i and squared overlaps (y_i . z)^2 with pairs that do not depend on z."""
    half = result.probes // 2
    probes = range(result.probes)
    if pairs is not None:
        pools = [(probes, pairs[0].detach().cpu().double(), pairs[1].T)]
    elif deflate < 1 or half < 1:
        return []
    else:
        first, second = (pooled_pairs(result, part, deflate) for part in (probes[:half], probes[half:]))
        pools = [(probes[:half], second[0], second[2]), (probes[half:], first[0], first[2])]
    found = []
    for served, values, rows in pools:
        for probe in served:
            start = result.basis[probe, 0]
            overlaps = (rows.to(start) @ start).cpu().double() * result.start_norms[probe]
            found.append((probe, values, overlaps.square()))
    return found


def pooled_pairs(
    result: Lanczos, probes: range, count: int, which: Literal["largest", "magnitude"] = "magnitude"
) -> tuple[Tensor, Tensor, Tensor]:
    """Return at most ``count`` orthonormal Ritz pairs found by several probes together: values, residuals, rows.

    They come largest first, in magnitude or algebraically.

    One probe sees one vector of a degenerate eigenspace, several probes see as many as they are.  What two probes
    found alike is kept once.  A pair counts once its residual is a hundredth of its value: before that its vector still
    depends on its probe, which would tie the two halves' samples together and make the error look too small.
    """
    candidates = []
    for probe in probes:
        found = result.ritz_values[probe]
        sizes = found.abs() if which == "magnitude" else found
        places = sizes.argsort(descending=True)[:count]
        places = places[result.residual_bounds[probe, places] <= 0.01 * found[places].abs()]
        vectors = result.ritz_vectors(probe, places)
        candidates += [(float(sizes[place]), probe, int(place), row) for place, row in zip(places, vectors.T)]
    candidates.sort(key=lambda candidate: candidate[:3], reverse=True)
    values: list[float] = []
    residuals: list[float] = []
    rows = torch.zeros(count, result.size).to(result.basis)
    for _, probe, place, candidate in candidates:
        if len(values) == count:
            break
        if float((rows[: len(values)] @ candidate).square().sum()) > 0.95:
            continue  # another probe's find again
        row = orthogonalised(candidate, rows[: len(values)])
        left = length(row)
        if left > 0.3:  # otherwise another probe's find again, up to what neither has converged to
            rows[len(values)] = row / left
            values.append(float(result.ritz_values[probe, place]))
            residuals.append(float(result.residual_bounds[probe, place]))
    return torch.tensor(values, dtype=torch.float64), torch.tensor(residuals, dtype=torch.float64), rows[: len(values)]


def _spectral_sum(samples: Tensor, floor: float) -> SpectralSum:
    kept = Samples(samples.tolist())
    return SpectralSum(kept.mean, math.hypot(kept.stderr, floor), tuple(kept.values))


def _over_probes(curves: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard error over the first axis."""
    count = curves.shape[0]
    if count < 2:
        return curves.mean(dim=0), torch.full_like(curves[0], math.inf)
    return curves.mean(dim=0), curves.std(dim=0) / math.sqrt(count)
