"""Finding the symmetries of a network in the graph of its operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from spiritlevel.analyses.symmetries.found import Analysis, Symmetries, Symmetry
from spiritlevel.analyses.symmetries.operations import RULES
from spiritlevel.analyses.symmetries.proof import outputs
from spiritlevel.analyses.symmetries.scales import Classes, Conflict, Epsilon, Labels
from spiritlevel.analyses.symmetries.tracing import as_call, copied, in_mode, traced_once, unwrapped
from spiritlevel.analyses.symmetries.unit_rules import UnitWalk, exchangeable
from spiritlevel.analyses.symmetries.walking import Walk, follow
from spiritlevel.values.errors import UsageError


def find(model: nn.Module, example: Any, *, mode: str = "eval") -> Symmetries:
    """Find where a network's weights can be rescaled or permuted without changing the function it computes.

    The graph of the eval-mode network is traced on the example and every channel gets a scale; operations say which
    scales are equal, which are fixed, and what is left is free (Dinh et al. 2017; Tsuzuku et al. 2019, eq. 15-16;
    Petzka et al. 2019, Theorems 2 and 3). A network that cannot be traced has nothing found, with the reason.

    Parameters
    ----------
    model : torch.nn.Module
        The network; it is not changed.
    example : tensor, or a tuple or dict of tensors
        A batch of inputs: a tensor, a tuple of positional inputs or a dict of keyword inputs.
    mode : str
        "eval", or "train", in which BatchNorm uses batch statistics.

    Returns
    -------
    Symmetries
        What was found, and what leaves no freedom.

    Raises
    ------
    UsageError
        The model is no network, or it fails on the example.

    Examples
    --------
    >>> import torch
    >>> import spiritlevel as sl
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> print(sl.symmetries.find(model, torch.zeros(2, 1, 8, 8)))
    whole layers, one factor each:
      1: 1 factor, exact
      3: 1 factor, exact
    single neurons or channels:
      1: 32 factors, exact
      3: 32 factors, exact
    scale of the outputs (T_α):
      5: 1 factor, exact
    permutations of hidden units:
      1: 32 units, exact
      3: 32 units, exact
    """
    return find_in_copy(model, example, mode=mode, original=model)


def found_before(model: nn.Module, example: Any, mode: str, found: Symmetries | None) -> Symmetries:
    """Return what an earlier search found, or what one finds now.

    Parameters
    ----------
    model : torch.nn.Module
        The network; it is not changed.
    example : tensor, or a tuple or dict of tensors
        A batch of inputs, on which the copy is proven to compute the same.
    mode : str
        "eval" or "train".
    found : Symmetries
        The result of an earlier `find` on the same model, to save its time; its mode is then used.
    """
    return found if found is not None else find(model, example, mode=mode)


def find_in_copy(model: nn.Module, example: Any, *, mode: str, original: nn.Module) -> Symmetries:
    """Do the same for a copy in another precision, whose graph is known for as long as the original lives."""
    if not isinstance(model, nn.Module):
        raise UsageError(f"model is a {type(model).__name__}; give a torch.nn.Module")
    as_call(example)
    runnable = in_mode(copied(unwrapped(model)), mode)
    try:
        traced = traced_once(original, runnable, example)
    except Exception as error:
        _check_runs(model, example, mode)
        return Symmetries((), (), f"the network cannot be traced ({_in_short(error)})", mode)
    state, units = follow(traced, Walk(RULES)), follow(traced, UnitWalk())
    exact, loose = settled(state), settled(state, "ignored")
    found = [*_rescalings(state, exact, loose), *_output_scale(state, exact), *_permutations(units)]
    return Symmetries(tuple(found), tuple(state.left_alone), "", mode, Analysis(state, exact, loose, units))


def _check_runs(model: nn.Module, example: Any, mode: str) -> None:
    """Refuse an example that the network itself cannot take."""
    try:
        outputs(unwrapped(model), example, mode)
    except Exception as error:
        raise UsageError(f"the model fails on the example ({_in_short(error)}); give a batch of its inputs") from error


def _in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}".rstrip(": ")


def settled(state: Walk, epsilon: Epsilon = "kept") -> Classes:
    """Gather the scales of a walk into classes, without those of entries that nothing reads."""
    classes = state.equations.settled(epsilon)
    read = {classes.fixed, classes.output}.union(*classes.rows)
    for labels in state.equations.read:
        read.update(np.unique(classes.of_label[labels]).tolist())
    unread = np.setdiff1d(np.unique(classes.of_label), np.array(sorted(read)))
    return replace(classes, of_label=np.where(np.isin(classes.of_label, unread), classes.fixed, classes.of_label))


def layer_labels(state: Walk, layer: str) -> Labels:
    """Return the labels of everything a layer's parameters produce."""
    return np.concatenate(state.produced[layer])


def groups(state: Walk, classes: Classes) -> dict[str, tuple[tuple[str, ...], list[int]]]:
    """Gather layers whose outputs share scales (a residual stream), with the independent classes of each group.

    A group is named by its first layer.
    """
    order = {layer: i for i, layer in enumerate(state.produced)}
    of_class: dict[int, str] = {}
    members: dict[str, list[str]] = {}
    home: dict[str, str] = {}
    for layer in state.produced:
        movable = classes.movable(layer_labels(state, layer))
        if not movable:
            continue
        names = {home[of_class[each]] for each in movable if each in of_class} or {layer}
        name, *others = sorted(names, key=order.__getitem__)
        members.setdefault(name, []).append(layer)
        home[layer] = name
        for other in others:
            for moved in members.pop(other):
                home[moved] = name
                members[name].append(moved)
        of_class.update((each, layer) for each in movable if each not in of_class)
    dependent = classes.dependent()
    independent: dict[str, list[int]] = {name: [] for name in members}
    for each, layer in of_class.items():
        if each not in dependent:
            independent[home[layer]].append(each)
    return {name: (tuple(sorted(layers, key=order.__getitem__)), independent[name]) for name, layers in members.items()}


def _rescalings(state: Walk, exact: Classes, loose: Classes) -> list[Symmetry]:
    layers: list[Symmetry] = []
    neurons: list[Symmetry] = []
    for classes, is_exact in ((exact, True), (loose, False)):
        for name, (members, independent) in groups(state, classes).items():
            reason = ""
            if not is_exact:
                already = [each for each in neurons if each.exact and set(each.layers) & set(members)]
                if sum(each.factors for each in already) >= len(independent):
                    continue
                reason = _why_approximate(state, loose, independent)
            together = set().union(*(classes.movable(layer_labels(state, layer)) for layer in members))
            if not independent:
                continue
            if _can_move(state, classes, members, together) and (
                is_exact or not any(each.exact and set(each.layers) & set(members) for each in layers)
            ):
                layers.append(Symmetry("layers", name, members, 1, is_exact, reason))
            neurons.append(Symmetry("neurons", name, members, len(independent), is_exact, reason))
    return layers + neurons


def _can_move(state: Walk, classes: Classes, members: tuple[str, ...], together: set[int]) -> bool:
    """Whether every output of these layers can take one common factor."""
    everything = np.concatenate([layer_labels(state, layer) for layer in members])
    if {classes.fixed, classes.output} & set(classes.of_label[everything].tolist()):
        return False
    try:
        classes.solve(dict.fromkeys(together, 2.0))
    except Conflict:
        return False
    return True


def _why_approximate(state: Walk, loose: Classes, independent: list[int]) -> str:
    reasons = [
        reason
        for labels, reason in state.equations.approximate
        if set(loose.of_label[labels].tolist()) & set(independent)
    ]
    return "; ".join(dict.fromkeys(reasons)) or "a normalisation's ε"


def _output_scale(state: Walk, classes: Classes) -> list[Symmetry]:
    """T_α (Lengyel et al. 2021, Prop. 5.1): the layers that produce the outputs, with their biases."""
    if classes.output == classes.fixed:
        return []
    try:
        classes.solve({classes.output: 2.0})
    except Conflict:
        return []
    layers = [name for name in state.produced if classes.output in classes.of_label[layer_labels(state, name)]]
    return [Symmetry("output_scale", "outputs", tuple(layers), 1)] if layers else []


def _permutations(units: Walk) -> list[Symmetry]:
    classes = units.equations.settled()
    found = []
    for alike in exchangeable(units, classes):
        layers = [
            name for name in units.produced if set(classes.of_label[layer_labels(units, name)].tolist()) & set(alike)
        ]
        if layers:
            found.append(Symmetry("permutation", layers[0], tuple(layers), len(alike)))
    return found
