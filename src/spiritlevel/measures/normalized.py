"""Normalised flat minima (Tsuzuku et al. 2019): sharpness with the scale of each weight, or each neuron, taken out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spiritlevel.engine.blocks import OTHER_SIDE, Blocks
from spiritlevel.engine.estimators.balancing import Balance, balance, balance_icml
from spiritlevel.engine.tensor_estimate import TensorEstimate
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.weight_matrices import as_matrix
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import declare
from spiritlevel.measures.reference import normalized as reference
from spiritlevel.values.estimate import Estimate, How, Result, at_least_rounding, not_applicable

_CLIPS = ("zero", "abs", "none")
# How closely scales are balanced that were chosen by a sampled diagonal: far below its error.
OF_SAMPLED = 1e-6


def clipped(h: Tensor, clip: str) -> Tensor:
    """Return the diagonal with negative entries set to zero, to their size, or left alone."""
    return {"zero": h.clamp(min=0), "abs": h.abs(), "none": h}[clip]


def _share_clipped(h: Tensor) -> tuple[int, float]:
    """Return the number of negative entries and their share of the diagonal's mass."""
    negative = h[h < 0]
    mass = float(h.abs().sum())
    return len(negative), float(-negative.sum() / mass) if mass > 0 else 0.0


@declare(
    title="Matrix-normalised sharpness",
    formula=r"\sum_l\sqrt{\|W_l\|_F^2\,\sum_{ij}h^{(l)}_{ij}}",
    citation="Tsuzuku et al. 2019, eq. (13)",
    cost=Cost(forward=1, column="outputs - 1"),
    invariant=("layer_rescaling", "permutation"),
    not_invariant=("neuron_rescaling", "output_scaling"),
    wants=("diagonal",),
    layer_quantities=("matrix_normalized_sharpness",),
    surrogate="root",
    choices={"clip": _CLIPS},
    reference=reference.matrix_normalized_sharpness,
)
def matrix_normalized_sharpness(
    problem: OpenProblem, blocks: Blocks, *, include_biases: bool = True, clip: str = "zero"
) -> Result:
    """Sharpness with one noise scale for each weight matrix, chosen best: unchanged by rescaling whole layers."""
    layers: dict[str, Estimate] = {}
    negative_entries, worst = 0, None
    other_side = 0.0
    for name, layer in problem.layers.items():
        value = variance = 0.0
        how: How = "exact"
        verified = True
        used = False
        for full in layer.parameters.values():
            weight = problem.chosen_parameters[full].detach().double()
            if weight.ndim < 2 and not include_biases:
                continue
            used = True
            h = blocks.diagonal(full)
            norm = float(weight.square().sum())
            negative_entries += _share_clipped(h.value)[0]
            if h.sampled:
                term, error = _cross_fitted_sum(h, clip)
                # Without clipping the sum is linear in the diagonal, and so no bound.
                how, verified = "estimated" if clip == "none" else "lower_bound", False
            else:
                term, error, verified = float(clipped(h.value, clip).sum()), 0.0, verified and h.verified
            worst = h if h.status != "ok" else worst
            other_side += math.sqrt(norm * max(float(clipped(h.value, clip).sum()), 0.0))
            if term < 0:
                return Result(not_applicable(f"the diagonal over {full} sums to a negative number; use clip='zero'"))
            value += math.sqrt(norm * term)
            variance += (math.sqrt(norm / term) / 2 * error) ** 2 if term > 0 else 0.0
        if used:
            error = math.sqrt(variance)
            if how == "estimated":
                error = at_least_rounding(error, value, torch.finfo(problem.dtype).eps)
            layers[name] = Estimate(value, error, how=how, verified=verified)
    # Not clipping what the noise alone made positive is at most the value, clipping it is at least that, on average.
    details = {"negative_entries": negative_entries, OTHER_SIDE: other_side}
    return _summed(problem, layers, "matrix_normalized_sharpness", worst, details)


def _cross_fitted_sum(h: TensorEstimate, clip: str) -> tuple[float, float]:
    """Sum the clipped diagonal without the noise's own bias: which entries count is decided on the other half.

    Clipping takes the largest of all sums over a choice of entries (or signs), so a choice made without knowledge of
    the noise is at most that, on average.  Entries of one probe are correlated by at most their own variances again.
    """
    assert h.halves is not None
    error = math.sqrt(2) * float(h.stderr.norm())
    if clip == "none":
        return float(h.value.sum()), error
    chosen = [(half > 0).double() if clip == "zero" else half.sign() for half in h.halves]
    total = 0.5 * sum(float((h.halves[1 - s] * chosen[s]).sum()) for s in (0, 1))
    return max(total, 0.0), error


@declare(
    title="Normalised sharpness",
    formula=r"\sum_l\min_{\sigma,\sigma'}\sum_{ij}\Big(h_{ij}(\sigma_i\sigma'_j)^2+\frac{W_{ij}^2}{2\lambda(\sigma_i\sigma'_j)^2}\Big)",
    citation="Tsuzuku et al. 2019, eq. (17)",
    cost=Cost(forward=1, column="outputs - 1"),
    invariant=("layer_rescaling", "neuron_rescaling", "permutation"),
    not_invariant=("output_scaling",),
    wants=("diagonal",),
    layer_quantities=("normalized_sharpness",),
    choices={"clip": ("zero", "abs"), "variant": ("arxiv", "icml")},
    reference=reference.normalized_sharpness,
)
def normalized_sharpness(
    problem: OpenProblem, blocks: Blocks, *, lam: float = 0.5, clip: str = "zero", variant: str = "arxiv"
) -> Result:
    """Sharpness with the best noise scale for each row and column of a weight: unchanged by rescaling neurons."""
    layers: dict[str, Estimate] = {}
    details: dict[str, float] = {
        "negative_entries": 0, "largest_residual": 0.0, "lower": 0.0, "upper": 0.0, OTHER_SIDE: 0.0,
    }  # fmt: skip
    worst: TensorEstimate | None = None
    factor = math.sqrt(0.5 / lam)  # the minimum scales with the root of λ
    for name, full in problem.weights.items():
        weight = problem.chosen_parameters[full].detach().double().cpu()
        module = next(layer.module for layer in problem.layers.values() if full in layer.parameters.values())
        h = blocks.diagonal(full)
        worst = h if h.status != "ok" else worst
        count, share = _share_clipped(h.value)
        details["negative_entries"] += count
        squared = as_matrix(module, weight.square(), weight).sum(-1)  # (G, O, I): kernel positions share their scales
        kept = as_matrix(module, clipped(h.value, clip), weight).sum(-1)
        if h.sampled and variant == "arxiv":
            layers[name] = _cross_fitted_minimum(h, squared, module, weight, clip).scaled(factor)
            # Scales chosen by all draws and judged by the same ones are flattered by the noise.
            flattered = sum(_with_finite_scales(*group).value for group in zip(kept, squared))
            details[OTHER_SIDE] += factor * flattered
            continue
        value = 0.0
        for h_group, w_group in zip(kept, squared):
            solved = balance(h_group, w_group) if variant == "arxiv" else balance_icml(h_group, w_group)
            value += solved.value
            details["largest_residual"] = max(details["largest_residual"], float(solved.residual))
            details["lower"] += factor * 2 * float((w_group * h_group).sqrt().sum())
            details["upper"] += factor * 2 * math.sqrt(float(w_group.sum() * h_group.sum()))
        details[OTHER_SIDE] += factor * value
        layers[name] = Estimate(
            factor * value,
            how="upper_bound" if h.sampled else "exact",
            verified=h.verified,
            details={"negative_entries": count, "negative_share": share},
        )
    return _summed(problem, layers, "normalized_sharpness", worst, details)


def _cross_fitted_minimum(
    h: TensorEstimate, squared: Tensor, module: torch.nn.Module, weight: Tensor, clip: str
) -> Estimate:
    """Choose the scales on one half of the probes and evaluate the objective, linear in h, on the other, both ways.

    Any scales give at least the minimum, so without the choosing half's noise the value is an upper bound on average;
    clipping the judging half's entries, as the definition clips the true ones, only adds to it.
    """
    assert h.halves is not None
    values, errors = [], []
    for chosen, other in ((0, 1), (1, 0)):
        choose = as_matrix(module, clipped(h.halves[chosen], clip), weight).sum(-1)
        judge = as_matrix(module, clipped(h.halves[other], clip), weight).sum(-1)
        noise = as_matrix(module, h.stderr.square(), weight).sum(-1)
        total = variance = 0.0
        for c_group, j_group, n_group, w_group in zip(choose, judge, noise, squared):
            solved = _with_finite_scales(c_group, w_group)
            product = solved.u[:, None] * solved.v[None, :]
            total += float((j_group * product + w_group / product).sum())
            variance += float((2 * n_group * product.square()).sum())
        values.append(total)
        errors.append(math.sqrt(variance))
    return Estimate(sum(values) / 2, max(errors), how="upper_bound", status=h.status, reason=h.reason, verified=False)


def _with_finite_scales(h: Tensor, w2: Tensor) -> Balance:
    """Balance with a floor under h, so that an entry the choosing half saw as zero gets no infinite scale."""
    floor = 1e-3 * float(h.mean()) if float(h.mean()) > 0 else 1.0
    return balance(h + floor, w2 + 1e-12 * float(w2.mean()) + 1e-300, tolerance=OF_SAMPLED)


def _summed(
    problem: OpenProblem,
    layers: dict[str, Estimate],
    name: str,
    worst: TensorEstimate | None,
    details: dict[str, float],
) -> Result:
    if not layers:
        return Result(
            not_applicable("no chosen parameter has two or more dimensions, so there is no weight to normalise")
        )
    sampled = [estimate.how for estimate in layers.values() if estimate.how != "exact"]
    value = Estimate(
        sum(estimate.value for estimate in layers.values()),
        sum(estimate.stderr for estimate in layers.values()),
        how=sampled[0] if sampled else "exact",
        verified=all(estimate.verified for estimate in layers.values()),
        status=worst.status if worst is not None else "ok",
        reason=worst.reason if worst is not None else "",
        samples=problem.survey.count,
        details=dict(details),
    )
    return Result(value, {name: layers})
