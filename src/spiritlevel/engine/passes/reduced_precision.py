"""Gauss–Newton sums in coarser arithmetic, where what it does to them is measured and far below the tolerance.

In every batch one random combination of the factor's columns, u = Σ_c ε_c S_c with signs of every sample's own, goes
back in float32, and what came back of the columns coarsely is combined by the same signs.  E‖Jᵀu‖² = Σ_c ‖JᵀS_c‖², and
so for every sum that is taken of them: the difference of the two is an unbiased estimate of what the coarse arithmetic
does to that sum, of every sample and every layer.  No part of the data goes unlooked at: a first batch that is benign
proves nothing for the others.

Coarse are the products on the way back, and for bfloat16 the forward pass it goes through; the squares that are summed
are of float32 products of what arrives at the layers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spiritlevel.engine.passes.accumulating import (
    Accumulators,
    CurvatureSums,
    ParameterSums,
    Portion,
    moments_over_data,
    stderr_over_data,
)
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.passes.rules import Rules
from spiritlevel.engine.passes.stages import Stages
from spiritlevel.engine.passes.way_back import Mixture, WayBack
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.losses import Factor
from spiritlevel.inputs.losses.signs import index_signs
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.precision import has_tf32

# The error may be this share of the tolerance: it adds to whatever else there is.
SHARE = 0.1
# Samples below which the spread of the differences tells too little.
FEWEST = 16
# Columns below which nothing is gained, and below which two combinations are looked at: of few columns one combination
# of a sample's may happen to be small where they are not.
FEWEST_COLUMNS, MANY_COLUMNS = 4, 16
# What is stated, as a multiple of what was measured: most of it comes from few samples (a rectifier that flips), of
# which one or two combinations tell the size and not more.
STATED = 2.0
_SEED = 0x5F3759DF  # apart from the draws of the sketch, which begin with the same seed


class TooCoarse(Exception):
    """The error of the coarse arithmetic is too large, or not known; the message says why float32 is kept."""


@dataclass(frozen=True)
class Rounding:
    """What coarse arithmetic does to the sums of a sweep, as measured."""

    precision: str
    gaps: CurvatureSums  # coarse sums less those in float32, both of one random column
    network: float  # standard error of the trace
    relative: dict[str, float]  # of the trace of each parameter's layer, as a share of it

    def error(self, sums: CurvatureSums, factors: Mapping[str, float], form: str) -> float:
        """Return the error of a sum over parameters, each with its factor."""
        if form == "trace" and factors.keys() == self.relative.keys() and set(factors.values()) == {1.0}:
            return STATED * self.network
        gap = sum(factor * _total(self.gaps.parameters[name], form) for name, factor in factors.items())
        shares = (
            self.relative[name] * factor * _total(sums.parameters[name], form) for name, factor in factors.items()
        )
        return STATED * math.hypot(gap, sum(map(abs, shares)))

    def errors(self, full: str, kind: str, value: Tensor) -> Tensor:
        """Return the errors of the entries (rows, columns) of a parameter's sums, whose values are given."""
        own = self.gaps.parameters[full]
        gap = own.diagonal if kind == "entries" else getattr(own, kind)
        gap = (own.trace if gap is None else gap).mean(0).cpu().reshape(value.shape)
        size = value.norm()
        share = float(gap.norm() / size) if size > 0 else 0.0
        return STATED * torch.hypot(gap, max(share, self.relative[full]) * value.abs())

    def sample_errors(self, traces: Tensor) -> Tensor:
        """Return the error of each sample's trace: one draw of it, and the share that all of them have."""
        gap = self.gaps.sample_traces
        size = traces.norm()
        return STATED * torch.hypot(gap, (float(gap.norm() / size) if size > 0 else 0.0) * traces.abs())

    def words(self) -> str:
        """Say in a sentence what was done and what it does to the numbers."""
        off = max(self.relative.values(), default=0.0)
        return (
            f"Gauss–Newton sums are in {self.precision}, which changes no layer's trace by more than {100 * off:.2g}% "
            "(measured on every sample, part of the errors); products with H are in float32."
        )

    @property
    def said(self) -> dict[str, object]:
        """What a value made of these sums says of them."""
        return {"precision": self.precision, "rounding": max(self.relative.values(), default=0.0)}


class ReducedPrecision:
    """One sweep's sums in coarse arithmetic, and its check."""

    def __init__(self, problem: OpenProblem, wants: frozenset[str], rules: Rules, allowed: float, seed: int) -> None:
        self.problem, self.rules, self.allowed, self.seed = problem, rules, allowed, seed
        self.gap = Accumulators(problem, wants - {"mean"}, rules)
        self.column_count = 0  # beyond those of the sweep itself

    def take(
        self, sweep: Accumulators, batch: Batch, weights: Tensor, outputs: Tensor, recorder: Recorder, factor: Factor
    ) -> None:
        """Add one batch to the sums and to what is known of their error."""
        fine = sweep.way_back(outputs, recorder)
        if len(factor.columns) < FEWEST_COLUMNS:
            raise TooCoarse(f"{len(factor.columns)} backward passes are too few to gain by it")
        mixture, of_sign = self._mixture(batch, factor)
        coarse = replace(fine, mixture=mixture)
        ways = [coarse]
        if self.problem.precision == "bfloat16":
            coarse = self._in_bfloat16(batch, coarse)
            names = [name for name in fine.names if name not in coarse.names]
            ways = [coarse, replace(fine, names=names, stages=Stages())]
            fine = replace(fine, names=coarse.names, stages=Stages())
        sweep.take(batch, weights, factor, ways)
        if not self.gap.sums:
            self.gap.begin(replace(factor, columns=factor.columns[:1], exact=True, draws=1))
        parts = len(mixture.signs)
        self.column_count = parts
        mixed = torch.stack([_combined(factor.columns, signs) for signs in mixture.signs])
        whole, signs = slice(0, 1), weights.new_tensor(of_sign)[:, None].expand(-1, batch.count)

        def portions() -> Iterator[Portion]:
            for full, gradients in coarse.mixed_gradients():
                yield whole, signs, full, slice(0, batch.count), gradients
            for full, gradients in fine.gradients(mixed, list(range(parts))):
                yield whole, -signs, full, slice(0, batch.count), gradients

        self.gap.add(batch, weights, portions(), draws=factor.draws * (parts if factor.psd else parts // 2))

    def _in_bfloat16(self, batch: Batch, fine: WayBack) -> WayBack:
        """Run the batch in bfloat16: the way back to those layers that are recorded there as in float32."""
        problem, known = self.problem, fine.recorder
        with Recorder(problem) as low, problem.watch.coarse_forward(problem.device):
            outputs = problem.outputs(batch.content)
        same = [
            name
            for name in fine.names
            if name in low.edges and name not in known.uses and low.shapes[name] == known.shapes[name]
        ]
        low.inputs = known.inputs
        return replace(fine, outputs=outputs, recorder=low, names=same, stages=Stages())

    def _mixture(self, batch: Batch, factor: Factor) -> tuple[Mixture, list[int]]:
        """Draw signs for the columns, those of either sign apart where there are both; return which sign each has."""
        columns, signs = factor.columns, factor.signs
        drawn = index_signs(self.seed ^ _SEED, 1, batch.indices.to(columns.device), len(columns), dtype=columns.dtype)
        draws = [drawn[0].T]  # (K, B)
        if len(columns) < MANY_COLUMNS:
            alternating = columns.new_tensor([1, -1]).repeat(len(columns))[: len(columns), None]
            draws.append(draws[0] * alternating)  # which are small together for fewer gradients than two at random
        if factor.psd:
            return Mixture(torch.stack(draws)), [1] * len(draws)
        return Mixture(torch.stack([d * (s * signs > 0) for d in draws for s in (1, -1)])), [1, -1] * len(draws)

    def judge(self, sweep: Accumulators) -> None:
        """Raise where the batches so far show that the error is too large."""
        if len(sweep.weights) >= FEWEST:
            weights = sweep.weights.whole()
            self._measured(sweep.sums, self.gap.sums, float(weights.sum()), self.gap.moments, weights)

    def rounding(self, sums: CurvatureSums, weights: Tensor) -> Rounding:
        """Return the error of the finished sums; raise where it is too large, or was measured on too few samples."""
        if len(weights) < FEWEST:
            raise TooCoarse(f"{len(weights)} samples are too few to measure its error on")
        moments = self.gap.moments
        gaps = self.gap.result(None)
        network, relative = self._measured(sums.parameters, gaps.parameters, 1.0, moments, weights)
        return Rounding(self.problem.precision, gaps, network, relative)

    def _measured(
        self,
        sums: dict[str, ParameterSums],
        gaps: dict[str, ParameterSums],
        total: float,
        moments: Tensor,
        weights: Tensor,
    ) -> tuple[float, dict[str, float]]:
        """Return the error of the trace and each layer's share of its own, or raise; sums are divided by ``total``."""
        traces = self.gap.sample_traces.whole()
        spread = stderr_over_data(moments_over_data(traces, weights), weights)
        spreads = stderr_over_data(moments, weights)
        if spread is None or spreads is None:
            raise TooCoarse("one sample counts, too few to measure its error on")
        values, differences = ({name: _total(own[name], "trace") / total for name in own} for own in (sums, gaps))
        value, gap = sum(values.values()), sum(differences.values())
        network = math.hypot(gap, float(spread))
        self._refuse("the trace", network, value, value)
        relative: dict[str, float] = {}
        for place, (name, layer) in enumerate(self.problem.layers.items()):
            own = [full for full in layer.parameters.values() if full in values]
            size, gap = sum(values[full] for full in own), sum(differences[full] for full in own)
            error = math.hypot(gap, float(spreads[place]))
            self._refuse(f"the trace of {name}", error, size, value)
            relative.update(dict.fromkeys(own, abs(error / size) if size else 0.0))
        for kind in ("rows", "columns", "whole", "transposed"):
            found = {name: _total(one, kind) / total for name, one in sums.items() if getattr(one, kind) is not None}
            for name, size in found.items():
                self._refuse(f"{name} ({kind})", _total(gaps[name], kind) / total, size, sum(found.values()))
        return network, relative

    def _refuse(self, what: str, error: float, value: float, whole: float) -> None:
        """Raise where an error is too large beside its value, unless it is nothing beside the whole network's."""
        if abs(error) <= self.allowed * max(abs(value), self.allowed * abs(whole)):
            return
        share = f"{100 * abs(error / value):.2g}%" if value else "any amount"
        raise TooCoarse(
            f"it changes {what} by {share}, and {100 * self.allowed:.2g}% is allowed (a tenth of the tolerance)"
        )


def _combined(columns: Tensor, signs: Tensor) -> Tensor:
    """Return the sum of the columns (K, B, ...), with a sign for each sample (K, B)."""
    total = torch.zeros_like(columns[0])
    for column, own in zip(columns, signs):
        total += own.reshape(-1, *[1] * (column.ndim - 1)) * column
    return total


def _total(sums: ParameterSums, kind: str) -> float:
    """Return the sum of one kind over a parameter, mean over folds."""
    return float(getattr(sums, kind).mean(0).sum())


def reduces(problem: OpenProblem, allowed: float) -> bool:
    """Whether a sweep whose sums may have such an error goes in coarser arithmetic than float32."""
    if problem.precision == "float32" or problem.dtype != torch.float32 or not allowed:
        return False
    if problem.precision == "tf32" and not has_tf32(problem.device):
        keep_float32(problem, f"{problem.device} has no arithmetic in TF32")
        return False
    return True


def keep_float32(problem: OpenProblem, why: str) -> None:
    """Stay with float32 from here on, and say so."""
    problem.note(f"Gauss–Newton sums stay in float32, not in {problem.precision}: {why}.")
    problem.precision = "float32"
