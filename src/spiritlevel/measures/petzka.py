"""Flatness made invariant by the weights' own size: κ and ρ of Petzka et al. (2019), relative flatness (2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from spiritlevel.engine.blocks import Blocks
from spiritlevel.engine.passes.remainder import Kind
from spiritlevel.engine.tensor_estimate import TensorEstimate
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.measures.costs import Cost
from spiritlevel.measures.declaration import Measure, declare
from spiritlevel.measures.reference import curvature as reference
from spiritlevel.values.estimate import Estimate, Result, not_applicable

Layers = dict[str, Estimate]
_NO_WEIGHT = "no chosen parameter has two or more dimensions, so there is no weight matrix to measure"


def _combined(
    layers: Layers, reduce: str, samples: int, error_of_sum: Callable[[float], float] | None = None
) -> Estimate:
    """Take the last layer, the largest, or the sum, with the errors that go with it.

    Layers may share their probes: unless someone knows the sum's own error, theirs are added up in full.
    """
    if not layers:
        return not_applicable(_NO_WEIGHT)
    estimates = list(layers.values())
    bad = next((e for e in estimates if e.status == "not_finite"), None)
    if bad is not None:
        return bad
    if reduce == "last":
        return Estimate(**{**vars(estimates[-1]), "samples": samples})
    if reduce == "max":
        name, top = max(layers.items(), key=lambda item: item[1].value)
        if any(e.stderr > 0 for e in estimates):
            # The largest of noisy values is too large on average: an honest label, not a corrected number.
            return replace(top, how="upper_bound", verified=False, samples=samples, details={"layer": name})
        return Estimate(**{**vars(top), "samples": samples, "details": {"layer": name}})
    value = sum(e.value for e in estimates)
    intervals = [e.interval for e in estimates]
    interval = None
    if any(part is not None for part in intervals):
        ends = [part if part is not None else (e.value, e.value) for e, part in zip(estimates, intervals)]
        interval = (sum(low for low, _ in ends), sum(high for _, high in ends))
    spent = next((e for e in estimates if e.status == "budget_spent"), None)
    return Estimate(
        value,
        sum(e.stderr for e in estimates) if error_of_sum is None else error_of_sum(value),
        interval=interval,
        how="exact" if all(e.how == "exact" for e in estimates) else "estimated",
        verified=all(e.verified for e in estimates),
        status="budget_spent" if spent else "ok",
        reason=spent.reason if spent else "",
        samples=samples,
    )


def _norms(problem: OpenProblem, per_numel: bool) -> dict[str, float]:
    """Return each weight's squared norm, or that by entry."""
    weights = {layer: problem.chosen_parameters[full].detach().double() for layer, full in problem.weights.items()}
    return {layer: float(w.square().sum()) / (w.numel() if per_numel else 1) for layer, w in weights.items()}


def _kappa(reduce: str) -> Callable[..., Result]:
    def kappa(problem: OpenProblem, layer_eigen: Layers, *, per_numel: bool = False) -> Result:
        norms = _norms(problem, per_numel)
        layers = {layer: estimate.scaled(norms[layer]) for layer, estimate in layer_eigen.items()}
        return Result(_combined(layers, reduce, problem.survey.count), {"kappa": layers})

    return kappa


def _kappa_tau(reduce: str) -> Callable[..., Result]:
    def kappa_tau(problem: OpenProblem, blocks: Blocks, *, per_numel: bool = False) -> Result:
        norms = _norms(problem, per_numel)
        layers = {layer: blocks.weight_trace(layer).scaled(norm) for layer, norm in norms.items()}
        own_error = partial(blocks.error_of_sum, "entries", norms)
        return Result(_combined(layers, reduce, problem.survey.count, own_error), {"kappa_tau": layers})

    return kappa_tau


_OVER = {"last": "last layer", "max": "largest layer", "sum": "summed over layers"}


def _declare_kappa(reduce: str, trace: bool) -> Measure:
    function = (_kappa_tau if trace else _kappa)(reduce)
    symbol, curvature = (r"\kappa_\tau", r"\operatorname{Tr}") if trace else (r"\kappa", r"\lambda_{\max}")
    over = {"last": r"l=L:\ ", "max": r"\max_l\ ", "sum": r"\sum_l\ "}[reduce]
    what = "the trace" if trace else "the largest eigenvalue"
    function.__doc__ = f"Squared weight norm times {what} of a layer's own block of the Hessian, {_OVER[reduce]}."
    return declare(
        name=f"kappa_{'tau_' if trace else ''}{reduce}",
        title=f"{'κτ' if trace else 'κ'}, {_OVER[reduce]}",
        formula=rf"{symbol}:\ {over}\|w_l\|^2\,{curvature}(H_{{ll}})",
        citation="Petzka et al. 2019, table 1",
        cost=Cost(forward=1, column="outputs - 1") if trace else Cost(forward=1, product="layers × Lanczos steps"),
        invariant=("layer_rescaling", "permutation"),
        not_invariant=("neuron_rescaling", "output_scaling"),
        layer_quantities=("kappa_tau" if trace else "kappa",),
        layer_titles={"kappa_tau": "κτ"} if trace else {"kappa": "κ"},
        surrogate=f"kappa_{reduce}" if trace else "",
        reference=partial(reference.kappa, reduce=reduce, trace=trace),
    )(function)


kappa_last, kappa_max, kappa_sum = (_declare_kappa(reduce, False) for reduce in ("last", "max", "sum"))
kappa_tau_last, kappa_tau_max, kappa_tau_sum = (_declare_kappa(reduce, True) for reduce in ("last", "max", "sum"))

_NEURON: dict[str, Kind] = {"in": "rows", "out": "columns"}


def _largest(parts: dict[str, TensorEstimate]) -> Estimate:
    """Return the largest entry over all layers; where entries were sampled, a lower bound."""
    several = list(parts.values())
    sampled = any(part.sampled for part in several)
    halves = [part.halves if part.halves is not None else part.value.expand(2, -1) for part in several]
    spent = next((part for part in several if part.status != "ok"), None)
    place, largest = TensorEstimate(
        torch.cat([part.value for part in several]),
        torch.cat([part.stderr for part in several]),
        how="estimated" if sampled else "exact",
        verified=all(part.verified for part in several),
        status=spent.status if spent else "ok",
        reason=spent.reason if spent else "",
        halves=torch.cat(halves, dim=1) if sampled else None,
    ).largest()
    names = [name for name, part in parts.items() for _ in range(len(part.value))]
    return replace(largest, details={"layer": names[place]})


def _rho(reduce: str) -> Callable[..., Result]:
    def rho(problem: OpenProblem, blocks: Blocks, *, neuron: str = "in") -> Result:
        if not problem.weights:
            return Result(not_applicable(_NO_WEIGHT))
        whole = {layer: blocks.whole(layer) for layer in problem.weights}
        if neuron == "layer":
            value = _combined(whole, reduce, problem.survey.count)
            return Result(value, {"rho": whole, "rho_sum": whole, "rho_max": whole})
        parts = {layer: blocks.rows(layer) if neuron == "in" else blocks.columns(layer) for layer in problem.weights}
        sums = {layer: blocks.row_sum(layer, _NEURON[neuron]) for layer in parts}
        layers = {"rho": whole, "rho_sum": sums, "rho_max": {name: _largest({name: p}) for name, p in parts.items()}}
        neurons = {"rho": {layer: part.value.tolist() for layer, part in parts.items()}}
        if reduce == "sum":
            own_error = partial(blocks.error_of_sum, _NEURON[neuron], dict.fromkeys(sums, 1.0))
            return Result(_combined(sums, "sum", problem.survey.count, own_error), layers, neurons)
        return Result(replace(_largest(parts), samples=problem.survey.count), layers, neurons)

    return rho


def _declare_rho(reduce: str) -> Measure:
    function = _rho(reduce)
    over = "the largest of all neurons" if reduce == "max" else "summed over neurons and layers"
    function.__doc__ = f"Curvature along each neuron's own weights, {over}: unchanged by any rescaling of neurons."
    return declare(
        name=f"rho_{reduce}",
        title="ρ, largest neuron" if reduce == "max" else "ρ, summed over layers",
        formula=("\\max" if reduce == "max" else "\\sum") + r"_{l,j}\ w_l(j)^\top H_{w_l(j)}\, w_l(j)",
        citation="Petzka et al. 2019, appendix B",
        cost=Cost(forward=1, column="outputs - 1"),
        invariant=("layer_rescaling", "neuron_rescaling", "permutation"),
        not_invariant=("output_scaling",),
        wants=("whole",),
        wants_by={"neuron": {"in": ("rows",), "out": ("columns",), "layer": ()}},
        layer_quantities=("rho", "rho_max", "rho_sum"),
        layer_titles={"rho": "ρ, whole layer"},
        choices={"neuron": ("in", "out", "layer")},
        reference=partial(reference.rho, reduce=reduce),
    )(function)


rho_max, rho_sum = _declare_rho("max"), _declare_rho("sum")


@declare(
    title="Relative flatness (2021)",
    formula=r"\sum_{s,s'}\langle w_s,w_{s'}\rangle\,\operatorname{Tr}H_{ss'}",
    citation="Petzka et al. 2021, definition 3",
    cost=Cost(forward=1, column="outputs - 1"),
    invariant=("layer_rescaling", "permutation"),
    not_invariant=("neuron_rescaling", "output_scaling"),
    wants=("transposed",),
    layer_quantities=("relative_flatness",),
    choices={"layer": ("last", "sum", "max")},
    reference=reference.relative_flatness,
)
def relative_flatness(problem: OpenProblem, blocks: Blocks, *, layer: str = "last") -> Result:
    """Curvature under rotations of a layer's features; unlike κτ it weighs neurons by their weights' overlap."""
    layers = {name: blocks.transposed(name) for name in problem.weights}
    own_error = partial(blocks.error_of_sum, "transposed", dict.fromkeys(layers, 1.0))
    return Result(_combined(layers, layer, problem.survey.count, own_error), {"relative_flatness": layers})
