"""The Hessian's diagonal blocks as estimates: exact Gauss–Newton sums, plus a sampled remainder where needed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from spiritlevel.engine.block_traces import BlockTraces
from spiritlevel.engine.operators.derivative_check import path_of
from spiritlevel.engine.passes.accumulating import CurvatureSums, ParameterSums, moments_over_data, stderr_over_data
from spiritlevel.engine.passes.curvature import SKETCH_DRAWS, curvature_sweep, fisher_columns, sketch_more
from spiritlevel.engine.passes.recording import parameters_of
from spiritlevel.engine.passes.reduced_precision import SHARE
from spiritlevel.engine.passes.remainder import Kind, sample_trace_remainders
from spiritlevel.engine.passes.sampled_form import Sampled, SampledForm
from spiritlevel.engine.remainder import DRAW_COST, GROWTH, IGNORED, Remainder
from spiritlevel.engine.sum_errors import part_errors, sum_error
from spiritlevel.engine.tensor_estimate import TensorEstimate
from spiritlevel.engine.trace_probes import TraceProbes
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.weight_matrices import matrix_shape
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import NEGLIGIBLE, Estimate, How, Result, Status, at_least_rounding

TOLERANCE = 0.05
BUDGET = 68.0  # gradients' worth of sampling
Asked = Kind | Literal["traces"]  # kinds of forms, and sums over entries alone
OTHER_SIDE = "other_side"  # of a bound, among its details: a value that errs the other way on average
SAMPLE_PROBES = 32
FEWEST_SAMPLE_PROBES = 4  # where each sample's trace is wanted beside other values


class Blocks:
    """Diagonal blocks of the Hessian of a problem, layer by layer, computed once and asked many times."""

    def __init__(
        self,
        problem: OpenProblem,
        wants: frozenset[str] = frozenset(),
        *,
        seed: int = 0,
        tolerance: float = TOLERANCE,
        budget: float = BUDGET,
        sums: CurvatureSums | None = None,  # where they are known: no sweep is made then
    ) -> None:
        self.problem = problem
        self.wants = wants
        self.seed = seed
        self.tolerance = tolerance
        self.budget = budget
        sweep_wants = (wants - {"whole", "fisher"}) | ({"rows"} if "whole" in wants else set())
        # Samples that influence each other have no factor pass; everything about them is sampled.
        self._sweeps: dict[str, Any] = {"seed": seed, "rounding": SHARE * tolerance}
        beside = fisher_columns if "fisher" in wants else None
        self.sums = sums or curvature_sweep(problem, frozenset(sweep_wants), beside=beside, **self._sweeps)
        if self.sums is not None and self.sums.rounding is not None:
            problem.note(self.sums.rounding.words())
        self.coupled = problem.survey.coupled
        self.exact_layers = dict.fromkeys(problem.layers, False) if self.sums is None else self.sums.exact_layers
        self.sampled_names = [
            full
            for name, layer in problem.layers.items()
            if not self.exact_layers[name]
            for full in layer.parameters.values()
        ]
        self.sketching = 0.0  # gradients' worth of sketches beyond the first sweep's
        self.asked: set[Asked] = set()  # what was asked for since somebody last looked
        self._remainder: Remainder | None = None  # until it is first asked for
        self.traces = BlockTraces(self, TraceProbes(problem, seed, self._scores()))
        self._of_samples: dict[int, Sampled] = {}  # remainders of their traces by probes of parameters

    # --- pieces --------------------------------------------------------------------------------------------------

    @property
    def exact(self) -> bool:
        """Whether every layer's block is exact, to rounding."""
        return self.sums is not None and self.sums.exact and all(self.exact_layers.values())

    @property
    def remainder(self) -> Remainder:
        """What is left of the Hessian in the layers that are not exact."""
        if self._remainder is None:
            rules = {} if self.sums is None else self.sums.by_rule
            open_names = set(self.sampled_names)
            known = {
                name: second
                for name, second in rules.items()
                if open_names.issuperset(parameters_of(self.problem, name))
            }
            self._remainder = Remainder(
                self.problem,
                self.sampled_names,
                known,
                self.wants,
                seed=self.seed,
                budget=self.budget,
                scores=self._scores(),
            )
        return self._remainder

    def _scores(self) -> Tensor | None:
        """Return of each sample what goes with how far the draws of its remainder lie apart."""
        if self.sums is None:
            return None
        survey = self.problem.survey
        return self.sums.sample_traces.abs() * survey.losses.abs() * survey.weights

    def form(self, kind: Kind, asked: Asked | None = None) -> SampledForm | None:
        """Return the sampled remainder of a kind of form, sampling it on first use; None where nothing needs it."""
        names = self.sampled_names
        if kind != "entries":
            weights = set(self.problem.weights.values())
            names = [name for name in names if name in weights]
        if not names:
            return None
        self.asked.add(asked or kind)
        return self.remainder.form(kind)

    def improve(self, estimate: Estimate) -> bool:
        """Sample more for a value made of what was asked for since the last look; False where there is no need or way.

        The tolerance concerns this value alone: layers, entries and samples carry errors of their own.
        """
        asked, self.asked = self.asked, set()
        if estimate.how == "exact" or estimate.status not in ("ok", "budget_spent"):
            return False
        allowed = self.tolerance * abs(estimate.value)
        other = estimate.details.get(OTHER_SIDE, estimate.value)
        error = max(estimate.stderr, abs(estimate.value - other) / 2)
        if error <= max(allowed, NEGLIGIBLE):
            return False
        ratio = (error / allowed) ** 2 if allowed > 0 else math.inf
        if "traces" in asked and self.traces.improve(ratio):
            return True
        kinds: set[Kind] = {"entries" if one == "traces" else one for one in asked}
        share = self._share_of_sketch()
        sketched = share > IGNORED and self._sketch_more(ratio)
        sampled = share < 1 - IGNORED and bool(kinds) and self.remainder.improve(ratio, kinds)
        return sketched or sampled

    def _share_of_sketch(self) -> float:
        """Return how much of the trace's variance comes from sketching the loss's second derivative."""
        if self.sums is None or self.sums.exact_columns:
            return 0.0
        own = self.sketch_error(self.problem.parameters) ** 2
        form = self.remainder.form("entries") if self.sampled_names else None
        rest = 0.0 if form is None else float(form.network.stderr) ** 2
        return own / (own + rest) if own > 0 else 0.0

    def _sketch_more(self, ratio: float) -> bool:
        """Add draws of the sketch, one sweep after another, as many as the error asks for and may be spent."""
        assert self.sums is not None
        wanted = math.ceil(self.sums.draws * (min(1.1 * ratio, GROWTH) - 1) / SKETCH_DRAWS)
        cost = DRAW_COST / 2 * self.sums.columns / self.sums.draws * SKETCH_DRAWS
        most = int(min(wanted, (self.budget - self.sketching) / cost))
        sweeps = sketch_more(self.problem, self.sums, most, **self._sweeps)
        self.sketching += cost * sweeps
        return sweeps > 0

    def _base(self, full: str, kind: Kind) -> Tensor:
        """Return the Gauss–Newton part with its folds first, (F, ...)."""
        if self.sums is None:
            return torch.zeros((1, *self._shape(full, kind)), dtype=torch.float64)
        sums: ParameterSums = self.sums.parameters[full]
        found = {
            "entries": sums.diagonal if "diagonal" in self.wants else sums.trace,
            "rows": sums.rows,
            "columns": sums.columns,
            "whole": sums.whole,
            "transposed": sums.transposed,
        }[kind]
        if found is None:
            raise UsageError(
                f"the blocks were computed without {kind}; ask for them in the measure's declaration (wants)"
            )
        return found.cpu()

    def _shape(self, full: str, kind: Kind) -> tuple[int, ...]:
        tensor = self.problem.chosen_parameters[full]
        if kind == "entries":
            return tuple(tensor.shape) if "diagonal" in self.wants else ()
        module = self.problem.layers[self._layer_of(full)].module
        groups, outputs, inputs, _ = matrix_shape(module, tensor)
        return {"rows": (groups * outputs,), "columns": (groups * inputs,)}.get(kind, ())

    def _labels(self, names: list[str], kind: Kind) -> tuple[How, bool, Status, str]:
        """Say how a value over some parameters was obtained; whether its error is small enough, `judged` says."""
        exact_columns = self.sums is not None and self.sums.exact
        if exact_columns and set(names).isdisjoint(self.sampled_names):
            return "exact", True, "ok", ""
        if self._remainder is None or set(names).isdisjoint(self._remainder.others.names):
            return "estimated", False, "ok", ""
        path = path_of(self.problem)
        # The form of a whole weight is one product, which leaves nothing to sample.
        products_alone = kind == "whole" or self._remainder.others.written_out
        drawn = not set(names).isdisjoint(self._remainder.operations.names)
        nothing_sampled = products_alone and not drawn and (self.sums is None or exact_columns)
        return "exact" if nothing_sampled and not path.differences else "estimated", False, *path.verdict()

    def _error(self, how: How, value: float, error: float) -> float:
        """Return the error of a value so obtained, with that of differences; rounding where draws happened to agree."""
        if how == "exact":
            return error
        if self._remainder is not None and self._remainder.others.names:
            error = math.hypot(error, path_of(self.problem).disagreement * abs(value))
        return at_least_rounding(error, value, torch.finfo(self.problem.dtype).eps)

    def judged(self, estimate: Estimate) -> Estimate:
        """Return an estimate made of these blocks with the status that its own error gives it.

        Sampling stops by many numbers at once: that one of them is not known well enough says nothing of another.
        """
        if estimate.how == "exact" or estimate.status not in ("ok", "budget_spent"):
            return estimate
        if self.sums is not None and self.sums.rounding is not None:
            estimate = replace(estimate, details={**estimate.details, **self.sums.rounding.said})
        if estimate.stderr <= max(self.tolerance * abs(estimate.value), NEGLIGIBLE):
            return estimate
        probed = self.traces.probes.form
        draws = max(0 if self._remainder is None else self._remainder.most_draws, probed.probes if probed else 0)
        spent = f" after {draws} draws" if draws else ""
        shortfall = f"the standard error is above {100 * self.tolerance:.3g}% of the value{spent}"
        return replace(estimate, status="budget_spent", reason="; ".join(filter(None, (shortfall, estimate.reason))))

    def judged_result(self, result: Result) -> Result:
        """Return a measure's result with every value judged by its own error."""
        layers = {
            quantity: {layer: self.judged(value) for layer, value in values.items()}
            for quantity, values in result.layers.items()
        }
        return replace(result, value=self.judged(result.value), layers=layers)

    def _layer_of(self, full: str) -> str:
        return next(name for name, layer in self.problem.layers.items() if full in layer.parameters.values())

    # --- scalars -------------------------------------------------------------------------------------------------

    def network_trace(self) -> Estimate:
        """Return the trace of the Hessian over all chosen parameters."""
        found = self._sum_of_traces(self.problem.parameters)
        draws = self.traces.probes.form or (self.form("entries", "traces") if self.sampled_names else None)
        return replace(
            found,
            stderr_data=self._data_error() if found.verified else None,
            samples=self.problem.survey.count,
            details={"probes": draws.probes} if draws is not None else {},
        )

    def _data_error(self) -> float | None:
        assert self.sums is not None
        weights = self.problem.survey.weights
        spread = stderr_over_data(moments_over_data(self.sums.sample_traces, weights), weights)
        return None if spread is None or not math.isfinite(float(spread)) else float(spread)

    def sketch_error(self, names: Iterable[str] | Mapping[str, float], kind: Kind = "entries") -> float:
        """Return the error of a sum over parameters, with factors or without, by its sketch and coarse arithmetic."""
        factors = names if isinstance(names, Mapping) else dict.fromkeys(names, 1.0)
        return 0.0 if self.sums is None else sum_error(self.sums, factors, kind)

    def error_of_sum(self, kind: Kind, factors: Mapping[str, float], value: float) -> float:
        """Return the standard error of a sum, of this value, over weights' names with factors.

        Weights share their draws: added up, their own errors would be several times as large.
        """
        own = {self.problem.weights[layer]: factor for layer, factor in factors.items()}
        if kind == "entries":
            return self._error(self._labels(list(own), kind)[0], value, self.traces.sum(own)[1])
        form = self.form(kind) if any(full in self.sampled_names for full in own) else None
        drawn = 0.0 if form is None else form.joint.variance(own)
        error = math.sqrt(self.sketch_error(own, kind) ** 2 + drawn)
        return self._error(self._labels(list(own), kind)[0], value, error)

    def ggn_trace(self) -> Estimate:
        """Return the trace of the Gauss–Newton matrix."""
        if self.sums is None:
            raise UsageError("samples of a batch influence each other here, so there is no Gauss–Newton pass")
        exact = self.sums.exact
        how: How = "exact" if exact else "estimated"
        value = self.traces.gauss_newton(dict.fromkeys(self.problem.parameters, 1.0))
        error = self._error(how, value, self.sketch_error(self.problem.parameters))
        over_data = self._data_error() if exact else None
        return Estimate(value, error, over_data, how=how, samples=self.problem.survey.count)

    def layer_trace(self, layer: str) -> Estimate:
        """Return the trace of one layer's block, all of its parameters together."""
        found = self._sum_of_traces(list(self.problem.layers[layer].parameters.values()))
        exact = self.sums is not None and found.how == "exact"
        return replace(found, stderr_data=self.sums.layer_stderr[layer]) if self.sums and exact else found

    def weight_trace(self, layer: str) -> Estimate:
        """Return the trace of the block of one weight matrix, by its name in ``problem.weights``."""
        return self._sum_of_traces([self.problem.weights[layer]])

    def _sum_of_traces(self, names: list[str]) -> Estimate:
        """Return the trace over some parameters, whose draws are shared, so that their errors do not add up."""
        value, error = self.traces.sum(dict.fromkeys(names, 1.0))
        how, verified, status, reason = self._labels(names, "entries")
        error = self._error(how, value, error)
        return Estimate(value, error, None, how=how, verified=verified, status=status, reason=reason)

    def whole(self, layer: str) -> Estimate:
        """Return the quadratic form wᵀHw of one whole weight in its own block."""
        return self._scalar_form(layer, "whole")

    def transposed(self, layer: str) -> Estimate:
        """Return the relative flatness Σ⟨w_s, w_s'⟩Tr H_ss' of one weight."""
        return self._scalar_form(layer, "transposed")

    def _scalar_form(self, layer: str, kind: Kind) -> Estimate:
        found = self._parts(self.problem.weights[layer], kind)
        value, error = float(found.value), float(found.stderr)
        error, how = self._error(found.how, value, error), found.how
        return Estimate(value, error, None, how=how, verified=found.verified, status=found.status, reason=found.reason)

    # --- tensors -------------------------------------------------------------------------------------------------

    def diagonal(self, full: str) -> TensorEstimate:
        """Return the diagonal of the Hessian over one parameter, by its full name."""
        return self._parts(full, "entries")

    def rows(self, layer: str) -> TensorEstimate:
        """Return wᵀHw over each row of a weight (the weights into one neuron) in that row's own block."""
        return self._parts(self.problem.weights[layer], "rows")

    def columns(self, layer: str) -> TensorEstimate:
        """Return wᵀHw over each column of a weight (the weights out of one neuron)."""
        return self._parts(self.problem.weights[layer], "columns")

    def row_sum(self, layer: str, kind: Kind = "rows") -> Estimate:
        """Return the sum over rows (or columns), with its own standard error rather than the rows' added up."""
        full = self.problem.weights[layer]
        parts = self._parts(full, kind)
        how, verified, status, reason = self._labels([full], kind)
        value = float(parts.value.sum())
        error = self.error_of_sum(kind, {layer: 1.0}, value)
        return Estimate(value, error, None, how=how, verified=verified, status=status, reason=reason)

    def _parts(self, full: str, kind: Kind) -> TensorEstimate:
        base = self._base(full, kind)
        form = self.form(kind) if full in self.sampled_names else None
        how, verified, status, reason = self._labels([full], kind)
        value = base.mean(0)
        stderr, halves = part_errors(self.sums, full, kind, base)
        if form is not None:
            running = form.parts[full] if full in form.parts else form.sums[full]
            sampled = running.mean.cpu().reshape(value.shape)
            halves = (halves if halves is not None else value) + running.half_means.cpu().reshape(2, *value.shape)
            value = value + sampled
            stderr = (stderr.square() + running.stderr.cpu().reshape(value.shape).square()).sqrt()
        return TensorEstimate(value, stderr, how, verified, status, reason, halves)

    # --- samples -------------------------------------------------------------------------------------------------

    def sample_traces(self, probes: int = SAMPLE_PROBES) -> TensorEstimate:
        """Return the Hessian trace of each sample's own loss, in data order."""
        if self.sums is None:
            raise UsageError("samples of a batch influence each other, so no sample has its own trace; use mode='eval'")
        if not self.sums.exact_columns and self.sums.draws < probes:
            more = math.ceil((probes - self.sums.draws) / SKETCH_DRAWS)
            sketch_more(self.problem, self.sums, more, **self._sweeps)
        value = self.sums.sample_traces
        if self.exact:
            return TensorEstimate(value, torch.zeros_like(value), verified=True)
        stderr, halves = torch.zeros_like(value), value.expand(2, -1)
        folds = self.sums.sample_folds
        if self.sums.rounding is not None:
            stderr = self.sums.rounding.sample_errors(value)
        if folds is not None:
            stderr = torch.hypot(stderr, folds.std(0) / len(folds) ** 0.5)
            halves = torch.stack([folds[0::2].mean(0), folds[1::2].mean(0)])
        parts: list[Sampled] = []
        if self.sampled_names:
            by_operations = self.remainder.samples(probes)
            parts += [] if by_operations is None else [by_operations]
            others = self.remainder.others.names
            if others and probes not in self._of_samples:
                self._of_samples[probes] = sample_trace_remainders(self.problem, others, probes=probes, seed=self.seed)
            parts += [self._of_samples[probes]] if others else []
        for part in parts:
            value, stderr = value + part.mean, (stderr.square() + part.stderr.square()).sqrt()
            halves = halves + part.half_means
        return TensorEstimate(value, stderr, "estimated", halves=halves)
