"""Sums of traces over parameters: by the Gauss–Newton part and the remainder, or by probes of samples' own Hessians."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from spiritlevel.engine.trace_probes import TraceProbes

if TYPE_CHECKING:
    from spiritlevel.engine.blocks import Blocks

TRIED_FROM = 12.0  # gradients' worth of sampling that a value still asks for, below which no other way is tried


class BlockTraces:
    """What is known of the traces of some blocks."""

    def __init__(self, blocks: Blocks, probes: TraceProbes) -> None:
        self.blocks, self.probes = blocks, probes

    def known_otherwise(self, factors: Mapping[str, float]) -> tuple[float, float]:
        """Return a sum of traces over parameters with factors, and its error, by G and the remainder."""
        value, error = self.gauss_newton(factors), self.blocks.sketch_error(factors)
        sampled = {full: factor for full, factor in factors.items() if full in self.blocks.sampled_names}
        form = self.blocks.form("entries", "traces") if sampled else None
        if form is not None:
            value += sum(factor * float(form.sums[full].mean) for full, factor in sampled.items())
            error = math.hypot(error, math.sqrt(form.joint.variance(sampled)))
        return value, error

    def gauss_newton(self, factors: Mapping[str, float]) -> float:
        """Return the Gauss–Newton part of a sum of traces."""
        if self.blocks.sums is None or not factors:
            return 0.0
        folds = [factor * self.blocks.sums.parameters[full].trace.cpu() for full, factor in factors.items()]
        return float(torch.stack(folds).sum(0).mean())

    def sum(self, factors: Mapping[str, float]) -> tuple[float, float]:
        """Return a sum of traces with its error: by probes of samples over the parameters for which these lead."""
        form = self.probes.form
        inexact = self.blocks.sums is None or not self.blocks.sums.exact_columns
        probed = {
            full: factor
            for full, factor in factors.items()
            if form is not None and full in form.sums and (inexact or full in self.blocks.sampled_names)
        }
        value, error = self.known_otherwise({full: one for full, one in factors.items() if full not in probed})
        if form is not None and probed:
            self.blocks.asked.add("traces")
            value += sum(factor * float(form.sums[full].mean) for full, factor in probed.items())
            error = math.hypot(error, math.sqrt(form.joint.variance(probed)))
        return value, error

    def improve(self, ratio: float) -> bool:
        """Probe samples' own Hessians where that is the better way to traces; False where it is not, or no more."""
        remainder = self.blocks.remainder
        probes, others = self.probes, remainder.spent + self.blocks.sketching
        # Draws serve rows and columns too: where these are wanted, only what draws cannot reach is probed.
        enough = remainder.room() if remainder.wants else TRIED_FROM
        if probes.open and remainder.cost_of(ratio) > enough:
            # What autograd says of the operations was held against what they are, for these.
            trusted = set(remainder.operations.names)
            probes.try_them(lambda names: self.known_otherwise(dict.fromkeys(names, 1.0)), others, trusted)
            if probes.form is not None:
                return True
        form = probes.form
        if form is None:
            return False
        rest = dict.fromkeys(set(self.blocks.problem.parameters).difference(form.sums), 1.0)
        if self.known_otherwise(rest)[1] > float(form.network.stderr):
            return False
        return probes.more(ratio, remainder.room() - self.blocks.sketching - probes.spent)
