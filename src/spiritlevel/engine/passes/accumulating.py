"""What a curvature sweep adds up, batch after batch: squares of linear functionals of each sample's gradients.

G = mean over samples of JᵀΛJ and Λ = Σ_k ± S_k S_kᵀ, so with M_k = Jᵀ S_k, the gradient of column k, every quantity is
a sum over samples and columns of squares of linear functionals of M_k: ‖M‖² the trace, M² the diagonal, ⟨w_j, M_j⟩² the
quadratic form of row j, ‖WᵀM‖² the relative flatness.  Nothing of size samples × parameters is ever held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spiritlevel.engine.layers.sample_gradients import DirectGradients, SampleGradients
from spiritlevel.engine.passes.gradient import GradientStats, GradientSums
from spiritlevel.engine.passes.linearity import Linearity
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.passes.rules import Rules
from spiritlevel.engine.passes.sample_spread import SampleSpread
from spiritlevel.engine.passes.way_back import WayBack
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.losses import Factor
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.row_buffer import RowBuffer
from spiritlevel.inputs.weight_matrices import WeightView

if TYPE_CHECKING:
    from spiritlevel.engine.passes.reduced_precision import Rounding

# Some folds, the signs of columns of theirs that lie side by side (K, B), a parameter, a slice of the batch, and the
# gradients of these columns there.
Portion = tuple[slice, Tensor, str, slice, SampleGradients]
WANTS = ("diagonal", "rows", "columns", "transposed", "mean")
# Sketches of too many columns are kept in this many independent folds; with a draw each, the spread of the draws within
# every sample is the standard error of a sum.
FOLDS = 8
# Numbers held at once to form each sample's gradient of a layer applied at several positions: about what a processor's
# cache holds, several times as fast as from memory.
CHUNK_NUMBERS = 1_200_000
# Numbers of output gradients, over all layers, held at once: columns are pulled back in groups of that size.
COLUMN_NUMBERS = 100_000_000


@dataclass
class ParameterSums:
    """Sums for one parameter, each with the folds first: one fold where the columns were exact."""

    trace: Tensor  # (F,)
    diagonal: Tensor | None = None  # (F, *shape)
    rows: Tensor | None = None  # (F, rows): quadratic form of each row's own block
    columns: Tensor | None = None  # (F, columns)
    whole: Tensor | None = None  # (F,): quadratic form of the whole weight
    transposed: Tensor | None = None  # (F,): relative flatness


def moments_over_data(values: Tensor, weights: Tensor) -> Tensor:
    """Return Σ w t, Σ w² t and Σ w² t² of values (..., B), stacked first: what batches add up."""
    squared = weights.square()
    return torch.stack([values @ weights, values @ squared, values.square() @ squared])


def stderr_over_data(moments: Tensor, weights: Tensor) -> Tensor | None:
    """Return the standard error of Σ w t / Σ w from the moments over all samples, None for fewer than two."""
    first, second, third = moments
    count, total = int((weights > 0).sum()), float(weights.sum())
    if count < 2 or total <= 0:
        return None
    mean = first / total
    spread = third - 2 * mean * second + mean.square() * float(weights.square().sum())
    stderr: Tensor = (spread.clamp(min=0) * count / (count - 1)).sqrt() / total
    return stderr


@dataclass
class CurvatureSums:
    """What one curvature sweep found."""

    wants: frozenset[str]
    parameters: dict[str, ParameterSums]
    layer_stderr: dict[str, float | None]  # of each layer's trace over the data
    sample_traces: Tensor  # (N,) float64
    sample_folds: Tensor | None  # (F, N): independent estimates of them, where the columns were sketched
    exact_columns: bool  # the factor's columns were used one by one
    columns: int  # backward passes spent on them
    exact_layers: dict[str, bool] = field(default_factory=dict)  # the block equals the Hessian's, verified
    fallback: tuple[str, ...] = ()  # parameters that went the general way
    by_rule: dict[str, bool] = field(default_factory=dict)  # rules that held in every batch, and how samples lie
    beside: CurvatureSums | None = None  # traces and diagonals of other columns, summed in the same sweep
    mean: GradientStats | None = None  # the one column itself, where it is the gradient of the loss
    spread: SampleSpread | None = None  # covariances of one draw, where folds are draws
    rounding: Rounding | None = None  # what coarser arithmetic did to them, where it was used

    @property
    def exact(self) -> bool:
        """Whether the sums are those of all columns, in the problem's own precision."""
        return self.exact_columns and self.rounding is None

    @property
    def draws(self) -> int:
        """How many draws of a sketch these are the sums of; 1 where nothing was sketched."""
        return 1 if self.sample_folds is None else len(self.sample_folds)

    def extend(self, others: CurvatureSums) -> None:
        """Take in another sweep's draws of the same sketch."""
        assert self.sample_folds is not None
        assert others.sample_folds is not None
        assert self.spread is not None
        assert others.spread is not None
        self.spread = self.spread.pooled(len(self.sample_folds) - 1, others.spread, len(others.sample_folds) - 1)
        for full, sums in self.parameters.items():
            for name, values in vars(sums).items():
                if values is not None:
                    setattr(sums, name, torch.cat([values, getattr(others.parameters[full], name)]))
        self.sample_folds = torch.cat([self.sample_folds, others.sample_folds])
        self.sample_traces = self.sample_folds.mean(0)
        self.columns += others.columns


class Accumulators:
    """The sums of one kind of columns over a sweep."""

    def __init__(self, problem: OpenProblem, wants: frozenset[str], rules: Rules) -> None:
        unknown = wants - set(WANTS)
        assert not unknown, unknown
        self.problem = problem
        self.rules = rules
        self.wants = wants - {"mean"}
        self.folds = 1
        self.column_count = 0
        self.exact_columns = True
        self.owner = {full: layer for layer in problem.layers.values() for full in layer.parameters.values()}
        self.places = {full: place for place, full in enumerate(self.owner)}
        self.views = {
            full: WeightView(self.owner[full].module, problem.chosen_parameters[full])
            for full in problem.weights.values()
        }
        self.chunk_numbers, self.column_numbers = CHUNK_NUMBERS, COLUMN_NUMBERS
        if rules.room_on_gpu is not None:
            self.chunk_numbers = self.column_numbers = rules.room_on_gpu
        self.sums: dict[str, ParameterSums] = {}
        # What follows stays where the work is done until the sweep ends, so that a GPU does not wait for it.  Sums are
        # divided by the samples' total weight only then: a first sweep does not know it before.
        self.layer_names = list(problem.layers)
        places = [self.layer_names.index(layer.name) for layer in self.owner.values()]
        self.layer_places = torch.tensor(places, dtype=torch.long).to(problem.device, non_blocking=True)
        self.traces = torch.zeros(0)  # (parameters, F): what every parameter's own sum is a row of
        self.moments = torch.zeros(3, len(self.layer_names), dtype=torch.float64, device=problem.device)
        self.places_taken = RowBuffer()  # of the samples that the following belong to
        self.weights, self.sample_traces = RowBuffer(), RowBuffer()
        self.sample_folds = RowBuffer()  # (B, F) a batch: each fold's estimate, where the columns are sketched
        self.mean = GradientSums(problem) if "mean" in wants else None
        self.spread: SampleSpread | None = None  # where folds are draws with signs of every sample's own

    def begin(self, factor: Factor) -> None:
        """Fix, on the first batch, the folds and the accumulators."""
        self.exact_columns = factor.exact
        self.folds = 1 if factor.exact else min(FOLDS, factor.draws)
        self.column_count = len(factor.columns)
        if self.folds > 1 and self.folds == factor.draws:
            self.spread = SampleSpread(self.owner)
        self.prepare(self.problem.parameters)

    def begin_draws(self, draws: int, names: Iterable[str]) -> None:
        """Fix the accumulators for draws that are each an estimate of their own, over some parameters."""
        self.exact_columns, self.folds = False, draws
        self.spread = SampleSpread(self.owner)
        self.prepare(names)

    def prepare(self, names: Iterable[str]) -> None:
        """Make room for the sums over some parameters."""
        self.traces = torch.zeros(len(self.places), self.folds, dtype=torch.float64, device=self.problem.device)
        self.sums = {name: self._empty(name) for name in names}

    def _empty(self, name: str) -> ParameterSums:
        tensor = self.problem.chosen_parameters[name]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros((self.folds, *shape), dtype=torch.float64, device=tensor.device)

        sums = ParameterSums(trace=self.traces[self.places[name]])
        if "diagonal" in self.wants:
            sums.diagonal = zeros(*tensor.shape)
        view = self.views.get(name)
        if view is not None:
            groups, outputs, inputs, _ = view.matrix.shape
            if "rows" in self.wants:
                sums.rows, sums.whole = zeros(groups * outputs), zeros()
            if "columns" in self.wants:
                sums.columns = zeros(groups * inputs)
            if "transposed" in self.wants:
                sums.transposed = zeros()
        return sums

    def way_back(self, outputs: Tensor, recorder: Recorder) -> WayBack:
        """Return the way back from a batch's outputs to the layers whose rules hold there."""
        names = [name for name in self.rules.covered if name in recorder.edges]
        return WayBack(outputs, recorder, names, self.rules.stages, self.problem.dtype)

    def take(self, batch: Batch, weights: Tensor, factor: Factor, ways: Sequence[WayBack]) -> None:
        """Add one batch to the sums; the ways lead to different layers, the last as any other sweep goes."""
        self.add(batch, weights, self.portions(batch, factor, ways), draws=factor.draws, alike=factor.psd)

    def add(
        self, batch: Batch, weights: Tensor, portions: Iterable[Portion], *, draws: int, alike: bool = False
    ) -> None:
        """Add one batch's gradients to the sums; ``alike`` where every column has the same sign."""
        totals = _Totals(self, batch.count, weights.double(), draws)
        if self.mean is not None:
            self.mean.begin(batch, totals.weights)
        if self.spread is not None:
            self.spread.begin(batch.count, self.folds)
        # Where nothing but traces is wanted and every column counts alike, they need not be told apart.
        alike = alike and self.folds == 1 and not self.wants and self.mean is None
        for some, signs, full, part, gradients in portions:
            totals.begin(some, signs, 1 if alike else len(signs))
            self._add(full, part, gradients, totals)
        totals.end()
        if self.mean is not None:
            self.mean.end()
        if self.spread is not None:
            self.spread.end()
        self.moments += moments_over_data(totals.traces, totals.weights)
        self.places_taken.add(batch.indices)
        self.weights.add(totals.weights)
        self.sample_traces.add(totals.traces.sum(0))
        self.sample_folds.add(totals.folds)

    def portions(self, batch: Batch, factor: Factor, ways: Sequence[WayBack]) -> Iterator[Portion]:
        """Yield (folds, signs of some columns, parameter, slice of the batch, gradients) until all are covered."""
        whole, fallback = slice(0, batch.count), self.rules.fallback
        for folds, chosen in self._column_groups(factor, ways[-1].outputs, ways[-1].recorder):
            columns, signs = factor.columns[chosen], factor.signs[chosen]
            for way in ways:
                for full, gradients in way.gradients(columns, chosen):
                    yield folds, signs, full, whole, gradients
            if fallback.names:
                for part, found in fallback.gradients(batch, ways[-1].outputs, columns):
                    for full, values in found.items():
                        yield folds, signs, full, part, DirectGradients(values.detach())

    def _column_groups(self, factor: Factor, outputs: Tensor, recorder: Recorder) -> Iterator[tuple[slice, list[int]]]:
        """Yield folds, and columns that are pulled back together, as many as the memory for their gradients allows."""
        width = max(1, self.column_numbers // max(recorder.numbers + outputs.numel(), 1))
        per_draw = len(factor.columns) // factor.draws
        if self.folds == factor.draws and width >= per_draw:  # whole draws lie side by side
            step = width // per_draw
            for first in range(0, self.folds, step):
                folds = slice(first, min(first + step, self.folds))
                yield folds, list(range(folds.start * per_draw, folds.stop * per_draw))
            return
        for fold in range(self.folds):
            own = [k for k in range(len(factor.columns)) if (k // per_draw) % self.folds == fold]
            for start in range(0, len(own), width):
                yield slice(fold, fold + 1), own[start : start + width]

    def _add(self, full: str, part: slice, gradients: SampleGradients, totals: _Totals) -> None:
        """Add the gradients of the present columns, of some of the batch's samples."""
        covered = 0
        for chunk, some in gradients.chunks(self.chunk_numbers):
            place = slice(part.start + chunk.start, part.start + chunk.start + some.samples)
            norms = totals.norms[self.places[full]]
            norms[:, place] += self._norms(some, len(norms))
            if self.wants:
                coefficients = totals.coefficients[:, place]
                for kind, values in self._add_forms(self.sums[full], full, totals.some, some, coefficients).items():
                    if self.spread is not None:
                        weighted = _by_fold(coefficients * values, totals.some)
                        self.spread.add(kind, full, totals.some, place, weighted)
            if self.mean is not None:
                self.mean.add(full, some, place.start)
            covered += some.samples
        assert covered == gradients.samples  # what no chunk wrote may not pass for a number

    def _norms(self, gradients: SampleGradients, count: int) -> Tensor:
        """Return ‖·‖² of so many columns, or in one row of all together."""
        if self.wants:  # which needs the gradients written out in any case
            return gradients.squared_norms()
        if self.spread is not None:
            return gradients.sampled_norms()
        return gradients.squared_norms() if count > 1 else gradients.total_norms()

    def _add_forms(
        self, sums: ParameterSums, full: str, folds: slice, gradients: SampleGradients, coefficients: Tensor
    ) -> dict[str, Tensor]:
        """Add what is wanted beside the trace; return each form summed over a sample's parts, (K, b).

        Coefficients (K, b) belong to each column, or (1, b) to all of them together.
        """
        if sums.diagonal is not None:
            gradients.add_squares(sums.diagonal[folds], coefficients.to(self.problem.dtype))
        view = self.views.get(full)
        if view is None:
            return {}
        forms: dict[str, Tensor] = {}

        count = folds.stop - folds.start
        weights_of_folds = coefficients.reshape(count, 1, -1)

        def total(kind: str, values: Tensor) -> Tensor:  # Σ_kb c_kb x_kb², (K, b, n) -> (F, n)
            squares = values.double().square()
            if self.spread is not None:
                forms[kind] = squares.sum(2)
            return (weights_of_folds @ squares.reshape(count, weights_of_folds.shape[2], -1))[:, 0]

        if sums.rows is not None and sums.whole is not None:
            products = gradients.row_products(view)
            sums.rows[folds] += total("rows", products)
            sums.whole[folds] += total("whole", products.double().sum(2, keepdim=True))[:, 0]
        if sums.columns is not None:
            sums.columns[folds] += total("columns", gradients.column_products(view))
        if sums.transposed is not None:
            forms["transposed"] = gradients.transposed_norms(view).double()
            sums.transposed[folds] += _by_fold(coefficients * forms["transposed"], folds).sum(1)
        return forms

    def result(self, linearity: Linearity | None, total_weight: float | None = None) -> CurvatureSums:
        """Return the finished sums, divided by the weight of all samples where these were some."""
        weights = self.weights.whole()
        total = weights.sum() if total_weight is None else total_weight
        for sums in self.sums.values():
            for values in vars(sums).values():
                if values is not None:
                    values /= total
        spread = stderr_over_data(self.moments, weights)
        stderr = [None] * len(self.layer_names) if spread is None else spread.tolist()
        return CurvatureSums(
            wants=self.wants,
            parameters=self.sums,
            layer_stderr=dict(zip(self.layer_names, stderr)),
            sample_traces=self.sample_traces.whole().cpu(),
            sample_folds=None if self.exact_columns else self.sample_folds.whole().T.cpu(),
            exact_columns=self.exact_columns,
            columns=self.column_count,
            exact_layers=dict(linearity.exact) if linearity is not None else {},
            fallback=self.rules.all_fallbacks,
            by_rule=dict(self.rules.always or {}),
            mean=None if self.mean is None else self.mean.result(float(total)),
            spread=None if self.spread is None else self.spread.scaled(float(total)),
        )


class _Totals:
    """What a batch's gradients add to the traces: ‖·‖² of all parameters at first, taken together group by group.

    One operation for all parameters, where each of them would take a dozen: a large model has hundreds.
    """

    def __init__(self, sums: Accumulators, count: int, weights: Tensor, draws: int) -> None:
        self.sums, self.weights, self.draws = sums, weights, draws
        self.traces = weights.new_zeros(len(sums.layer_names), count)
        self.folds = weights.new_zeros(0 if sums.exact_columns else count, sums.folds)
        self.some = slice(0, 0)  # the folds whose columns are being added
        self.norms = weights.new_zeros(0)  # ‖·‖² of these, (parameters, K, B)
        self.coefficients = weights.new_zeros(0)  # (K, B), or (1, B) for all together
        self._given: Tensor | None = None
        self._signs = weights.new_zeros(0)

    def begin(self, some: slice, signs: Tensor, rows: int) -> None:
        """Go on with these folds and their columns' signs, of which so many rows count."""
        if signs is self._given:
            return
        self.end()
        self.some, self._given, self._signs = some, signs, signs[:rows].double()
        # Each fold is an estimate of its own, from its share of the draws.
        self.coefficients = self._signs * self.weights * (self.sums.folds / self.draws)
        self.norms = self.weights.new_zeros(len(self.sums.places), *self._signs.shape)

    def end(self) -> None:
        """Take together what was added since these columns began."""
        if self._given is None:
            return
        sums, some = self.sums, self.some
        weighted = _by_fold(self.coefficients * self.norms, some, 1)  # (parameters, F, B)
        sums.traces[:, some] += weighted.sum(2)
        if sums.spread is not None:
            sums.spread.add_all("trace", some, weighted)
        own = _by_fold(self._signs * self.norms, some, 1) / self.draws
        self.traces.index_add_(0, sums.layer_places, own.sum(1))
        if not sums.exact_columns:
            self.folds[:, some] += sums.folds * own.sum(0).T
        self._given = None


def _by_fold(values: Tensor, folds: slice, dim: int = 0) -> Tensor:
    """Sum (K, b), or with K at another place, over each fold's own columns, (F, b)."""
    found: Tensor = values.unflatten(dim, (folds.stop - folds.start, -1)).sum(dim + 1)
    return found
