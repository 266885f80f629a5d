"""Rescaled copies of a network that compute the same function, or the same function times α."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from spiritlevel.analyses.symmetries.factors import (
    check_factor,
    free_neurons,
    given_layers,
    given_neurons,
    tensor_factors,
)
from spiritlevel.analyses.symmetries.found import Analysis, Symmetries
from spiritlevel.analyses.symmetries.proof import prove
from spiritlevel.analyses.symmetries.scales import Classes, Conflict
from spiritlevel.analyses.symmetries.search import found_before, groups, layer_labels
from spiritlevel.analyses.symmetries.tracing import copied, unwrapped
from spiritlevel.analyses.symmetries.walking import Walk
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names


@documented_like(found_before)
def rescale_layers(
    model: nn.Module,
    example: Any,
    factors: Mapping[str, float],
    *,
    mode: str = "eval",
    found: Symmetries | None = None,
) -> nn.Module:
    """Return a copy in which each named layer's outputs are multiplied by its factor and the function is the same.

    Weights and biases of the layer take the factor, whatever consumes its output is divided by it, and layers that
    share a sum with it (a residual stream) take it too (Petzka et al. 2019, Theorem 2, with biases carried along).

    Parameters
    ----------
    factors : mapping of str to float
        A positive factor for each layer, by its path.

    Returns
    -------
    torch.nn.Module
        The rescaled copy.

    Raises
    ------
    UsageError
        There is no such layer, its scale is not free, or a factor is not positive.
    SpiritlevelError
        The network cannot be traced, or the copy does not compute the same.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> x = sl.datasets.load("digits").x[:50]
    >>> copy = sl.symmetries.rescale_layers(model, x, {"1": 10.0})
    >>> bool(torch.allclose(copy(x), model(x), atol=1e-5))
    True
    >>> sizes = [(copy[at].weight.norm() / model[at].weight.norm()).item() for at in (1, 3, 5)]
    >>> [round(size, 3) for size in sizes]
    [10.0, 0.1, 1.0]
    """
    analysis, found = _analysed(model, example, mode, found)
    state, exact = analysis.walk, analysis.exact
    for layer, factor in factors.items():
        if layer not in state.produced:
            raise UsageError(
                f"there is no layer {layer!r} whose output can be scaled{near_names(layer, state.produced)}"
            )
        check_factor(factor, f"the factor of layer {layer!r}")
    scales, approximate = None, False
    for classes in (exact, analysis.loose):
        try:
            scales = classes.solve(given_layers(state, classes, factors))
            break
        except Conflict:
            approximate = True
    if scales is None:
        raise UsageError(_why_not(state, exact, factors, found))
    changed = _scaled(unwrapped(model), state, scales)
    advice = "the layer stands before a normalisation, whose ε makes its scale only approximately free"
    try:
        prove(unwrapped(model), changed, example, mode=found.mode, advice=advice if approximate else "")
    except SpiritlevelError as error:
        if approximate:
            raise UsageError(str(error)) from error
        raise
    return changed


@documented_like(found_before)
def rescale_neurons(
    model: nn.Module,
    example: Any,
    *,
    seed: int = 0,
    low: float = 0.2,
    high: float = 5.0,
    factors: Mapping[str, Tensor] | None = None,
    mode: str = "eval",
    found: Symmetries | None = None,
) -> nn.Module:
    """Return a copy in which every free neuron or channel is scaled by its own factor and the function is the same.

    Parameters
    ----------
    seed : int
        Seed of the factors.
    low : float
        The least factor: they are drawn log-uniformly (Tsuzuku et al. 2019, eq. 15-16).
    high : float
        The greatest one.
    factors : mapping of str to Tensor
        In place of drawn ones, for each name of a neuron symmetry in `find` a tensor with as many entries as it has
        factors; groups not named keep their scale.

    Returns
    -------
    torch.nn.Module
        The rescaled copy.

    Raises
    ------
    UsageError
        There is no such group, it has another number of factors, or a factor is not positive.
    SpiritlevelError
        The network cannot be traced, or the copy does not compute the same.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> x = sl.datasets.load("digits").x[:50]
    >>> copy = sl.symmetries.rescale_neurons(model, x, seed=1)
    >>> bool(torch.allclose(copy(x), model(x), atol=1e-5))
    True
    >>> ratios = copy[1].weight.norm(dim=1) / model[1].weight.norm(dim=1)
    >>> bool(ratios.min() > 0.2), bool(ratios.max() < 5.0)
    (True, True)
    """
    analysis, found = _analysed(model, example, mode, found)
    state, classes = analysis.walk, analysis.exact
    free = free_neurons(analysis)
    given: dict[int, float] = {}
    if factors is None:
        check_factor(low, "low")
        check_factor(high, "high")
        if low > high:
            raise UsageError(f"low is {low:g} and high is {high:g}; low must not exceed high")
        generator = torch.Generator().manual_seed(seed)
        for independent in free.values():
            uniform = torch.rand(len(independent), generator=generator, dtype=torch.float64)
            values = torch.exp(math.log(low) + (math.log(high) - math.log(low)) * uniform)
            given.update(zip(independent, values.tolist()))
    else:
        given = given_neurons(free, factors)
    changed = _scaled(unwrapped(model), state, classes.solve(given))
    prove(unwrapped(model), changed, example, mode=found.mode)
    return changed


@documented_like(found_before)
def scale_output(
    model: nn.Module,
    example: Any,
    alpha: float,
    *,
    where: str = "last",
    mode: str = "eval",
    found: Symmetries | None = None,
) -> nn.Module:
    """Return a copy whose outputs are α times the original's: T_α of Lengyel et al. 2021, Prop. 5.1.

    Parameters
    ----------
    example : tensor, or a tuple or dict of tensors
        A batch of inputs, on which the copy's outputs are proven to be α times the original's.
    alpha : float
        The factor, positive.
    where : str
        "last" scales the layers that produce the outputs, with their biases. "all" shares α over all layers as evenly
        as the graph allows: in a chain of L layers each weight takes c = α^(1/L) and the bias of layer l takes c^l; a
        residual block keeps its weights, because its input and output have one scale.

    Returns
    -------
    torch.nn.Module
        The copy.

    Raises
    ------
    UsageError
        The scale of the outputs is not free, or an argument has a value that the message names.
    SpiritlevelError
        The copy's outputs are not α times the original's.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> x = sl.datasets.load("digits").x[:50]
    >>> copy = sl.symmetries.scale_output(model, x, 3.0)
    >>> bool(torch.allclose(copy(x), 3 * model(x), atol=1e-5))
    True
    """
    if where not in ("last", "all"):
        raise UsageError(f"where is {where!r}; it is 'last' or 'all'")
    check_factor(alpha, "alpha")
    found = found_before(model, example, mode, found)
    if found.analysis is None:
        changed = _last_linear_scaled(unwrapped(model), example, alpha, found)
        prove(unwrapped(model), changed, example, alpha=alpha, mode=found.mode)
        return changed
    state, classes = found.analysis.walk, found.analysis.exact
    given = {classes.output: alpha}
    if not found.of_kind("output_scale"):
        raise UsageError(
            "the outputs cannot be scaled: what produces them is not a layer whose scale is free"
            + _listing(found, "; ")
        )
    if where == "all":
        given.update(_even_shares(state, classes, alpha, found))
    changed = _scaled(unwrapped(model), state, classes.solve(given))
    prove(unwrapped(model), changed, example, alpha=alpha, mode=found.mode)
    return changed


def _analysed(model: nn.Module, example: Any, mode: str, found: Symmetries | None) -> tuple[Analysis, Symmetries]:
    found = found_before(model, example, mode, found)
    if found.analysis is None:
        raise SpiritlevelError(f"nothing can be rescaled: {found.reason}")
    return found.analysis, found


def _why_not(state: Walk, classes: Classes, factors: Mapping[str, float], found: Symmetries) -> str:
    """Say which layer stands in the way of a request, and of what it is part."""
    seen: dict[int, str] = {}
    for layer, factor in factors.items():
        for each in set(classes.of_label[layer_labels(state, layer)].tolist()):
            if each == classes.output and factor != 1:
                return f"layer {layer!r} cannot be rescaled: it produces the outputs, so the function would change"
            if each == classes.fixed and factor != 1:
                return f"layer {layer!r} cannot be rescaled: its scale is fixed" + _listing(found, " by ")
            other = seen.setdefault(each, layer)
            if factors[other] != factor:
                return (
                    f"layers {other!r} and {layer!r} share one scale (they are added to one another), so they cannot "
                    f"take the factors {factors[other]:g} and {factor:g}; give them the same"
                )
    return f"the factors of {', '.join(map(repr, factors))} contradict one another: a product of them is fixed"


def _listing(found: Symmetries, before: str) -> str:
    """List the first operations that fix scales, for a message."""
    reasons = [f"{where} ({reason})" for where, reason in found.left_alone]
    reasons += dict.fromkeys(each.reason for each in found if each.reason)
    return before + ", ".join(reasons[:3]) + (", ..." if len(reasons) > 3 else "") if reasons else ""


def _scaled(model: nn.Module, state: Walk, scales: NDArray[np.float64]) -> nn.Module:
    """Return a copy of the model with every stored tensor multiplied by its factor."""
    changed = copied(model)
    tensors = {**dict(changed.named_parameters()), **dict(changed.named_buffers())}
    with torch.no_grad():
        for name, factor in tensor_factors(state, scales):
            tensor = tensors[name]
            # The product is formed in float64 and rounded once.
            tensor.copy_((tensor.double() * torch.tensor(factor, device=tensor.device)).to(tensor.dtype))
    return changed


def _even_shares(state: Walk, classes: Classes, alpha: float, found: Symmetries) -> dict[int, float]:
    """Return one scale per class so that the factors of all weights of two or more dimensions are as equal as can be.

    The factor of a weight is (scale out)/(scale in); the logarithms of all factors have the least sum of squares, with
    the outputs at α. Normalisations keep their γ and hand the scale on.
    """
    if classes.rows:
        raise UsageError("alpha cannot be shared over all layers: activations are multiplied; use where='last'")
    of_class = {classes.fixed: "", classes.output: "outputs"}  # one unknown for all classes of a group of layers
    for name, (members, _) in groups(state, classes).items():
        for layer in members:
            of_class.update(dict.fromkeys(classes.movable(layer_labels(state, layer)), f"layers {name}"))
    pairs: set[tuple[str, str]] = set()
    stuck: list[str] = []
    for name, terms in state.uses.items():
        sides = [{of_class.get(each, "") for each in np.unique(classes.of_label[labels])} for _, labels in terms]
        if max(labels.ndim for _, labels in terms) > 1:
            if sides[0] == {""}:
                stuck.append(repr(name.rpartition(".")[0] or name))
            below = sides[1] if len(sides) > 1 else {""}
            pairs.update((first, second) for first in sides[0] for second in below)
        elif len(sides) == 2:  # γ of a normalisation: one scale before and after it
            first, second = next(iter(sides[0])), next(iter(sides[1]))
            merged = max(first, second) if "" not in (first, second) else ""
            merged = "outputs" if "outputs" in (first, second) else merged
            of_class = {each: merged if group in (first, second) else group for each, group in of_class.items()}
            renamed = {first: merged, second: merged}
            pairs = {(renamed.get(one, one), renamed.get(other, other)) for one, other in pairs}
    if stuck:
        raise UsageError(
            f"alpha cannot be shared over all layers: the scale of {', '.join(dict.fromkeys(stuck))} is fixed"
            + _listing(found, " by ")
            + "; use where='last'"
        )
    columns = {group: i for i, group in enumerate(sorted({*of_class.values()} - {"", "outputs"}))}
    rows, targets = np.zeros((len(pairs), len(columns))), np.zeros(len(pairs))
    for i, pair in enumerate(sorted(pairs)):
        for sign, group in zip((1.0, -1.0), pair):
            if group in columns:
                rows[i, columns[group]] += sign
            elif group == "outputs":
                targets[i] -= sign * math.log(alpha)
    logs = dict(zip(columns, np.linalg.lstsq(rows, targets, rcond=None)[0].tolist()))
    return {each: math.exp(logs[group]) for each, group in of_class.items() if group in logs}


def _last_linear_scaled(model: nn.Module, example: Any, alpha: float, found: Symmetries) -> nn.Module:
    """Scale the last linear layer of a network that cannot be traced; the proof on the example decides."""
    changed = copied(model)
    linear = [module for module in changed.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise SpiritlevelError(f"the outputs cannot be scaled: {found.reason}, and it has no linear layer")
    with torch.no_grad():
        for parameter in linear[-1].parameters(recurse=False):
            parameter.mul_(alpha)
    return changed
