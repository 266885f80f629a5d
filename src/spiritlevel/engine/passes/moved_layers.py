"""A forward pass in which every sample moves along directions of its own, one in each parameter, by steps of zero."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from spiritlevel.engine.layers.directions import SampleDirections
from spiritlevel.engine.layers.rules import STANDARDISED
from spiritlevel.engine.layers.tangents import TangentRule, tangent_rule
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import pick_samples
from spiritlevel.inputs.open_problem import OpenProblem


@dataclass(frozen=True)
class MovableModule:
    """A module whose tangents are known: its chosen parameters' full names by its own, and its input's rows a sample.

    Of rows there are none where all samples share the input, as positions are.
    """

    module: nn.Module
    rule: TangentRule
    names: dict[str, str]
    rows: int = 1

    def among(self, names: dict[str, int]) -> MovableModule:
        """Return the same with some of its parameters alone."""
        own = {local: full for local, full in self.names.items() if full in names}
        return MovableModule(self.module, self.rule, own, self.rows)

    def draw(self, directions: SampleDirections) -> None:
        """Draw its parameters' directions."""
        for local, full in self.names.items():
            shape = self.module.get_parameter(local).shape
            if len(shape) == 1 or type(self.module) in STANDARDISED:
                directions.vector(full, shape.numel())
            else:
                directions.matrix(full, shape[0], shape[1:].numel())

    def by_sample(self, inputs: Tensor, samples: int) -> Tensor:
        """Return an input with its samples first, (B, …)."""
        if self.rows == 0:
            spread = inputs if len(inputs) == 1 and inputs.ndim > 1 else inputs[None]
            return spread.expand(samples, *spread.shape[1:])
        if len(inputs) != samples * self.rows:
            raise ValueError("the first dimension does not count samples")
        return inputs if self.rows == 1 else inputs.unflatten(0, (samples, self.rows))

    def as_called(self, tangent: Tensor) -> Tensor:
        """Return a tangent (B, …) with its first dimensions as the module's output has them."""
        if self.rows <= 1:
            return tangent
        return tangent.expand(-1, self.rows, *tangent.shape[2:]).flatten(0, 1)


def movable_modules(problem: OpenProblem, batch: Batch) -> list[MovableModule]:
    """Return the modules whose tangents are known, by how their inputs grow with the samples of a batch."""
    names = {id(tensor): full for full, tensor in problem.chosen_parameters.items()}
    found = []
    for module in problem.model.modules():
        own = {
            local: names[id(tensor)]
            for local, tensor in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(tensor) in names
        }
        rule = tangent_rule(module) if own else None
        if rule is not None:
            found.append(MovableModule(module, rule, own))
    two, three = (_lengths(problem, batch, [one.module for one in found], count) for count in (2, 3))
    return [
        MovableModule(one.module, one.rule, one.names, rows)
        for one, few, more in zip(found, two, three)
        if (rows := _rows(few, more)) is not None
    ]


def _lengths(problem: OpenProblem, batch: Batch, modules: list[nn.Module], count: int) -> list[set[int]]:
    """Return of each module the lengths of its inputs' first dimensions, on so many samples."""
    lengths: list[set[int]] = [set() for _ in modules]

    def watched(place: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            lengths[place].add(len(args[0]) if args and isinstance(args[0], Tensor) and args[0].ndim else -1)

        return hook

    handles = [module.register_forward_pre_hook(watched(place)) for place, module in enumerate(modules)]
    try:
        few = torch.arange(count, device="cpu").clamp(max=batch.count - 1)
        with torch.no_grad():
            problem.outputs(pick_samples(batch.content, few))
    finally:
        for handle in handles:
            handle.remove()
    return lengths


def _rows(of_two: set[int], of_three: set[int]) -> int | None:
    """Return the rows a sample by the lengths for two samples and for three; None where neither tells."""
    if len(of_two) != 1 or len(of_three) != 1:
        return None
    two, three = next(iter(of_two)), next(iter(of_three))
    rows = three - two
    return rows if two > 0 and (rows == 0 or two == 2 * rows) else None


class MovedLayers:
    """Layers' outputs, moved by their tangents times ``steps`` (parameters, samples), all zero.

    The second derivative of a sample's loss in its steps is then vᵀHv, for each pair of parameters.
    """

    def __init__(self, modules: list[MovableModule], names: list[str], directions: SampleDirections) -> None:
        self.places = {full: place for place, full in enumerate(names)}
        self.modules = [own for one in modules if (own := one.among(self.places)).names]
        self.directions = directions
        # One leaf for all passes, by which their graphs are told apart; steps are what is differentiated by.
        leaf = _leaf(directions.indices.device, directions.dtype)
        self.steps = leaf.expand(len(names), directions.samples).clone()
        self.failed: set[str] = set()  # parameters of modules that were called in a way the rule does not fit
        self.numbers = 0  # in all outputs that were moved

    @contextlib.contextmanager
    def moving(self) -> Iterator[None]:
        """Move the layers' outputs meanwhile."""
        for one in self.modules:
            one.draw(self.directions)  # now, as whatever is called in a forward pass is watched
        handles = [one.module.register_forward_hook(self._hook(one)) for one in self.modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, one: MovableModule) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            try:
                inputs = one.by_sample(args[0], self.directions.samples)
                moved = output
                for full, tangent in one.rule(module, inputs, one.names, self.directions).items():
                    steps = self.steps[self.places[full]].reshape(-1, *[1] * (tangent.ndim - 1))
                    moved = moved + one.as_called(steps * tangent)
                if one.rows and moved.shape != output.shape:
                    raise ValueError("the tangent has another shape than the output")
            except (RuntimeError, ValueError, IndexError, AttributeError, TypeError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self.failed.update(one.names.values())
                return None
            self.numbers += math.prod(moved.shape)
            return moved

        return hook


_leaves: dict[tuple[torch.device, torch.dtype], Tensor] = {}


def _leaf(device: torch.device, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return _leaves.setdefault((device, dtype), torch.zeros((), device=device, dtype=dtype, requires_grad=True))
