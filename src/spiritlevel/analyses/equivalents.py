"""The same problem with its network written down differently: rescaled, permuted, or with its outputs scaled."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.analyses.parameter_maps import ParameterMap, Permutation, Rescaling
from spiritlevel.analyses.symmetries import (
    Symmetries,
    permute_neurons,
    rescale_layers,
    rescale_neurons,
    scale_output,
)
from spiritlevel.analyses.symmetries.factors import entry_factors
from spiritlevel.analyses.symmetries.permuting import permuted_copy
from spiritlevel.analyses.symmetries.search import find_in_copy
from spiritlevel.inputs.contents import slice_batch
from spiritlevel.inputs.model_forward import Forward, arguments_of, default_forward
from spiritlevel.inputs.open_problem import Measurable, OpenProblem, open_problem
from spiritlevel.values.errors import SpiritlevelError

NetworkChange = Callable[[nn.Module, Any, Symmetries], nn.Module]
EXAMPLE_SAMPLES = 64  # outputs are proven equal on so many samples, and the mean loss then on all of them
# Relative change of the mean loss and of its largest samples that rounding explains, by dtype.
LOSS_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}


class Equivalents:
    """A problem and its symmetries; every method returns the problem on a changed copy of the network.

    With ``dtype`` the network is first copied to that precision: a change that rounding makes could otherwise not be
    told from one that the symmetry makes.
    """

    def __init__(self, problem: Measurable, dtype: torch.dtype | None = torch.float64) -> None:
        problem = open_problem(problem)
        self._original = problem.model
        self.problem = problem if dtype in (None, problem.dtype) else problem.on_network(_copied(problem, dtype))
        self._forward = self.problem.forward_function
        self._wrapped = self._forward is not default_forward

    @cached_property
    def example(self) -> Any:
        """Inputs of the first samples, on which outputs are compared."""
        with self.problem.session():
            content = next(iter(self.problem.batches())).content
        first = slice_batch(content, 0, EXAMPLE_SAMPLES)
        if self._wrapped:
            return (first,)
        arguments, keywords = arguments_of(first)
        return keywords or arguments

    @cached_property
    def network(self) -> nn.Module:
        """What is traced: the model, or the user's forward with the model inside."""
        return Forward(self.problem.model, self._forward) if self._wrapped else self.problem.model

    @cached_property
    def found(self) -> Symmetries:
        """The symmetries of the network."""
        return find_in_copy(self.network, self.example, mode=self.problem.mode, original=self._original)

    def names(self, kind: str) -> list[str]:
        """Return the names of the exact symmetries of a kind: "layers" or "neurons"."""
        return [each.name for each in self.found.of_kind(kind)]

    def shown(self, layer: str) -> str:
        """Return a layer's name as the user knows it."""
        return layer.removeprefix("model.") if self._wrapped else layer

    def layers_rescaled(self, factors: Mapping[str, float]) -> OpenProblem:
        """Return the problem with whole layers rescaled and the function kept."""
        return self.changed(lambda net, x, found: rescale_layers(net, x, factors, found=found))

    def neurons_rescaled(
        self,
        *,
        seed: int = 0,
        low: float = 0.2,
        high: float = 5.0,
        factors: Mapping[str, Tensor] | None = None,
    ) -> OpenProblem:
        """Return the problem with single neurons rescaled, at random or as given, and the function kept."""
        return self.changed(
            lambda net, x, found: rescale_neurons(net, x, seed=seed, low=low, high=high, factors=factors, found=found)
        )

    def rescaling(
        self, *, layers: Mapping[str, float] | None = None, neurons: Mapping[str, Tensor] | None = None
    ) -> Rescaling:
        """Return by what a rescaling multiplies each of the problem's parameters."""
        found = {
            self.shown(name): factor
            for name, factor in entry_factors(self.found, layers=layers, neurons=neurons).items()
        }
        return Rescaling({name: factor for name, factor in found.items() if name in self.problem.chosen_parameters})

    def with_weights(self, change: ParameterMap) -> OpenProblem:
        """Return the problem with changed parameters and nothing else changed: for their own sake, not to be run."""
        changed = copy.deepcopy(self.problem.model)
        own = {name: dict(changed.named_parameters())[name] for name in self.problem.parameters}
        with torch.no_grad():
            for name, part in change.vector({name: tensor.double() for name, tensor in own.items()}).items():
                own[name].copy_(part.to(own[name].dtype))
        return self.problem.on_network(changed)

    def permuted(self, seed: int = 0) -> OpenProblem:
        """Return the problem with hidden units in another order."""
        return self.changed(lambda net, x, found: permute_neurons(net, x, seed=seed, found=found))

    def permutation(self, seed: int = 0) -> Permutation:
        """Return how ``permuted`` moves entries of the parameters, and of whatever else has their shapes."""

        def move(parts: dict[str, Tensor]) -> dict[str, Tensor]:
            carrier = copy.deepcopy(self.network).double()
            own = {self.shown(name): tensor for name, tensor in carrier.named_parameters()}
            with torch.no_grad():
                for name, part in parts.items():
                    own[name].copy_(part)
            moved = permuted_copy(carrier, self.found, seed).named_parameters()
            after = {self.shown(name): tensor.detach() for name, tensor in moved}
            return {name: after[name].to(part) for name, part in parts.items()}

        return Permutation(move)

    def outputs_scaled(self, alpha: float) -> OpenProblem:
        """Return the problem with all outputs multiplied by α through the last layer (T_α)."""
        return self.changed_anyhow(lambda net, x, found: scale_output(net, x, alpha, found=found))

    def changed(self, change: NetworkChange) -> OpenProblem:
        """Return the problem after a change that keeps the function, proven by every sample's loss."""
        result = self.changed_anyhow(change)
        _prove_loss(self.problem, result)
        return result

    def changed_anyhow(self, change: NetworkChange) -> OpenProblem:
        """Return the problem on what ``change`` makes of the network, the example and the symmetries found."""
        changed = change(self.network, self.example, self.found)
        inner = changed.model if self._wrapped else changed
        assert isinstance(inner, nn.Module)
        return self.problem.on_network(inner)


def _copied(problem: OpenProblem, dtype: torch.dtype | None) -> nn.Module:
    try:
        return copy.deepcopy(problem.model).to(dtype=dtype)
    except Exception as error:
        raise SpiritlevelError(
            f"the model cannot be copied to {str(dtype).removeprefix('torch.')} ({type(error).__name__}: {error}); "
            "convert it yourself, or pass dtype=None to work in its own precision"
        ) from error


def _prove_loss(before: OpenProblem, after: OpenProblem) -> None:
    """Refuse a map that kept the outputs on the example but not the loss of every sample of the data."""
    expected, found = before.survey.losses, after.survey.losses
    scale = float(expected.abs().max()) + 1.0
    worst = float((expected - found).abs().max()) / scale if len(expected) == len(found) else math.inf
    allowed = LOSS_TOLERANCE.get(before.dtype, 1e-3)
    if worst > allowed:
        raise SpiritlevelError(
            f"a rescaling proven on the first samples changes the loss of another one by {worst:.1e}, so it does not "
            "keep the function on this data; nothing can be said about invariance"
        )
