"""Curvature sums of a network whose parameters changed and whose function stayed, without a pass over the data.

With θ' = Dθ and L'(Dθ) = L(θ) for all θ near the network's, H' = D⁻¹HD⁻¹: a diagonal entry is divided by the square of
its factor, and quadratic forms wᵀHw over a weight's rows, columns or all of it stay what they are.  Where entries only
change places, so do those of the diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from spiritlevel.engine.passes.accumulating import CurvatureSums, ParameterSums
from spiritlevel.values.errors import SpiritlevelError


def rescaled_sums(sums: CurvatureSums, factors: Mapping[str, Tensor]) -> CurvatureSums:
    """Return the sums after parameters were multiplied by their factors; one that is not named keeps its entries.

    What does not follow from the sums alone is left out: relative flatness of weights whose entries have different
    factors, and what every sample gives, which is not a number.
    """
    return _without_samples(sums, {name: _rescaled(own, factors.get(name)) for name, own in sums.parameters.items()})


def permuted_sums(sums: CurvatureSums, diagonals: Mapping[str, Tensor]) -> CurvatureSums:
    """Return the sums after entries changed places, from the diagonal in its new order; rows stay in the old one."""
    found = {
        name: own if own.diagonal is None else replace(own, diagonal=diagonals[name][None])
        for name, own in sums.parameters.items()
    }
    return _without_samples(sums, found)


def _without_samples(sums: CurvatureSums, parameters: dict[str, ParameterSums]) -> CurvatureSums:
    return replace(
        sums,
        parameters=parameters,
        layer_stderr=dict.fromkeys(sums.layer_stderr),
        sample_traces=torch.full_like(sums.sample_traces, torch.nan),
        beside=None,
        mean=None,
    )


def _rescaled(own: ParameterSums, factor: Tensor | None) -> ParameterSums:
    if factor is None:
        return own
    if own.diagonal is None:
        raise SpiritlevelError("the trace of a rescaled network follows from the diagonal, which was not computed")
    diagonal = own.diagonal / factor.to(own.diagonal).square()
    alike = bool((factor == factor.flatten()[0]).all())
    return replace(
        own, trace=diagonal.flatten(1).sum(1), diagonal=diagonal, transposed=own.transposed if alike else None
    )
