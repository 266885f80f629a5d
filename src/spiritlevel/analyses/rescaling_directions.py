"""The ways in which a network can be rescaled, each with one size, and what its Hessian's diagonal says of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from spiritlevel.analyses.changed_copies import ChangedCopies
from spiritlevel.analyses.equivalents import Equivalents
from spiritlevel.analyses.parameter_maps import Rescaling
from spiritlevel.analyses.symmetries.search import groups
from spiritlevel.inputs.open_problem import OpenProblem

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Direction:
    """A way to rescale a network that has one size t: every factor is exp(t × its own exponent)."""

    kind: str
    layers: tuple[str, ...]
    apply: Callable[[float], OpenProblem]
    factors: Callable[[float], dict[str, list[float]]]
    exponents: Mapping[str, Array]  # by parameter, how often exp(t) multiplies each entry

    def map(self, t: float) -> Rescaling:
        """Return what it does to the parameters at a size."""
        moved = {name: part for name, part in self.exponents.items() if (part != 0).any()}
        return Rescaling({name: torch.from_numpy(np.exp(t * part)) for name, part in moved.items()})


@dataclass
class Side:
    """One network with its values and what a search needs of it, computed once for all measures."""

    label: str
    copies: ChangedCopies
    _squares: dict[str, tuple[Array, Array]] | None = field(default=None, repr=False)

    @property
    def equivalents(self) -> Equivalents:
        """The rescaled copies that can be made."""
        return self.copies.equivalents

    @property
    def exact_diagonal(self) -> bool:
        """Whether nothing of the Hessian's diagonal is sampled."""
        return self.copies.rescaler.bench.blocks.exact

    @property
    def squares(self) -> dict[str, tuple[Array, Array]]:
        """Squared weights and Hessian diagonal of every parameter."""
        if self._squares is None:
            problem, blocks = self.equivalents.problem, self.copies.rescaler.bench.blocks
            with problem.session():
                self._squares = {
                    name: (
                        tensor.detach().double().square().cpu().numpy(),
                        blocks.diagonal(name).value.cpu().numpy(),
                    )
                    for name, tensor in problem.chosen_parameters.items()
                }
        return self._squares

    def exponents(self, given: Mapping[int, float]) -> dict[str, Array]:
        """Return by parameter the exponent of every entry when classes of scales take the exponents given."""
        analysis = self.equivalents.found.analysis
        assert analysis is not None
        logs = np.log(analysis.exact.solve({each: math.exp(value) for each, value in given.items()}))
        found: dict[str, Array] = {}
        for name, terms in analysis.walk.uses.items():
            own = self.equivalents.shown(name)
            if own in self.squares:
                total = sum((float(sign) * logs[labels] for sign, labels in terms), np.zeros(()))
                found[own] = np.broadcast_to(np.asarray(total), self.squares[own][0].shape)
        return found

    def pulled_back(self, slopes: Mapping[str, Array]) -> dict[int, float]:
        """Return the slope along every class of scales from the slopes along every entry's own exponent."""
        analysis = self.equivalents.found.analysis
        assert analysis is not None
        classes = analysis.exact
        sums = np.zeros(int(classes.of_label.max()) + 1)
        for name, terms in analysis.walk.uses.items():
            own = self.equivalents.shown(name)
            if own not in slopes:
                continue
            for sign, labels in terms:
                of_entry = np.broadcast_to(classes.of_label[labels], slopes[own].shape)
                sums += float(sign) * np.bincount(of_entry.ravel(), slopes[own].ravel(), minlength=len(sums))
        return dict(enumerate(sums.tolist()))

    def layer_directions(self) -> Iterator[Direction]:
        """Give each group of layers in turn, up and down."""
        found = self.equivalents.found
        assert found.analysis is not None
        members = groups(found.analysis.walk, found.analysis.exact)
        for each in found.of_kind("layers"):
            for sign in (1.0, -1.0):
                classes = found.analysis.exact.movable(
                    np.concatenate(
                        [part for layer in members[each.name][0] for part in found.analysis.walk.produced[layer]]
                    )
                )
                exponents = self.exponents(dict.fromkeys(classes, sign))

                def factors(t: float, name: str = each.name, sign: float = sign) -> dict[str, list[float]]:
                    return {name: [math.exp(sign * t)]}

                def apply(t: float, factors: Callable[[float], dict[str, list[float]]] = factors) -> OpenProblem:
                    return self.equivalents.layers_rescaled({name: values[0] for name, values in factors(t).items()})

                yield Direction("layers", self._pair(exponents), apply, factors, exponents)

    def neuron_direction(self, signs: Mapping[int, float]) -> Direction:
        """Return the direction in which every neuron goes up or down by the same factor."""
        found = self.equivalents.found
        assert found.analysis is not None
        independent = {
            name: classes for name, (_, classes) in groups(found.analysis.walk, found.analysis.exact).items() if classes
        }
        chosen = {each: float(signs.get(each, 0.0)) for classes in independent.values() for each in classes}

        def factors(t: float) -> dict[str, list[float]]:
            return {name: [math.exp(t * chosen[each]) for each in classes] for name, classes in independent.items()}

        def apply(t: float) -> OpenProblem:
            given = {name: torch.tensor(values, dtype=torch.float64) for name, values in factors(t).items()}
            return self.equivalents.neurons_rescaled(factors=given)

        layers = tuple(self.equivalents.shown(name) for name in independent)
        return Direction("neurons", layers, apply, factors, self.exponents(chosen))

    def _pair(self, exponents: Mapping[str, Array]) -> tuple[str, ...]:
        """Return the layers whose weights a factor meets: those that take it and those that take its inverse."""
        owners = self.equivalents.problem.weights.items()
        touched = [layer for layer, full in owners if full in exponents and bool((exponents[full] != 0).any())]
        return tuple(touched)
