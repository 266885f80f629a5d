"""Spectral sums from Lanczos: quadrature nodes and weights per probe, and what follows from them with its error.

For a probe z with independent random signs, z^T f(A) z has mean tr f(A), and m steps of Lanczos from z give it as
|z|^2 sum_i w_i f(theta_i): nodes are Ritz values, weights squared first components (stochastic Lanczos quadrature;
Golub and Meurant 1994; Ubaru, Chen and Saad 2017).  Polynomials up to degree 2 m - 1 are exact per probe, so trace
and squared Frobenius norm carry only the error over probes.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from spiritlevel.engine.estimators.lanczos import Lanczos, length, orthogonalised
from spiritlevel.results.quadrature import Quadrature, SpectralSum, spectral_sum
from spiritlevel.values.errors import UsageError


def quadrature_of(result: Lanczos) -> Quadrature:
    """Read nodes and weights off a Lanczos run."""
    eps = torch.finfo(result.basis.dtype).eps
    return Quadrature(result.ritz_values, result.weights, result.start_norms.square(), 4 * eps)


def counted_quadrature(result: Lanczos, deflate: int = 10) -> Quadrature:
    """Return the same with the outliers counted instead of sampled: the more even picture of the two.

    Of an eigenvector y found by other probes than z, the share (y . z)^2 / P that z happens to have of it is
    replaced by the 1 / P it has on average.  The rest keeps its shape and fills up to 1.
    """
    plain = quadrature_of(result)
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
    return Quadrature(
        torch.cat([plain.nodes, nodes], 1),
        torch.cat([plain.weights * scale, weights], 1),
        plain.mass,
        plain.rounding,
    )


def lanczos_trace(
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
    return spectral_sum(samples, 4 * torch.finfo(result.basis.dtype).eps * floor)


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
    return spectral_sum(samples, 8 * torch.finfo(result.basis.dtype).eps * floor)


def extreme_ritz(result: Lanczos, which: Literal["largest", "smallest"]) -> tuple[float, float]:
    """Return the outermost Ritz value over all probes and the radius within which an eigenvalue lies for certain.

    A Ritz value never lies outside the spectrum by more than rounding: the largest is a lower bound of the largest
    eigenvalue, the smallest an upper bound of the smallest.
    """
    values = result.ritz_values.flatten()
    at = int(values.argmax() if which == "largest" else values.argmin())
    return float(values[at]), float(result.residual_bounds.flatten()[at])


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
