"""The smallest rescaling that reverses an ordering: proposed from the Hessian's diagonal, found by measuring.

Where a parameter is multiplied by c, its entry of the Hessian's diagonal is divided by c².  So the diagonal alone says
what a rescaling does to every trace, exactly, and about what it does to an eigenvalue.  The factor reported is always
one at which the rescaled network was measured and came out on the other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spiritlevel.auditing import uncertainty
from spiritlevel.equivalents import Equivalents
from spiritlevel.errors import SpiritlevelError
from spiritlevel.estimate import Estimate
from spiritlevel.measures.declaration import Measure
from spiritlevel.measuring import Settings, curvature, measure
from spiritlevel.problem import Problem
from spiritlevel.results.numerals import at_least
from spiritlevel.symmetries.search import groups

LARGEST_FACTOR = 1000.0
PRECISION = 0.02  # of the factor, relative, where the diagonal alone does not say it
MOST_MEASUREMENTS = 24  # of one network and one kind of rescaling
MOST_PROBES, PROBE_FACTOR = 12, 1.5  # directions measured once to see where they lead, and how far
TURNS = 4  # times the signs of the neurons' factors are chosen anew at the factor reached

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Reversal:
    """A rescaling of one network, by factors between 1/factor and factor, that puts it on the other side."""

    network: str
    kind: str  # "layers" or "neurons"
    layers: tuple[str, ...]
    factor: float
    before: float
    after: float
    other: float
    factors: dict[str, list[float]] = field(default_factory=dict)  # by symmetry, one for all or one a neuron
    measurements: int = 0

    @property
    def words(self) -> str:
        """The rescaling in words."""
        size = f"×{at_least(self.factor, 3)}"
        if self.kind == "layers":
            shown = [*self.layers[:2], f"… ({len(self.layers)} layers)"] if len(self.layers) > 4 else self.layers
            return f"a {size} rescaling of {'/'.join(shown)} reverses it"
        return f"rescaling neurons by at most {size} reverses it"


@dataclass(frozen=True)
class Direction:
    """A way to rescale a network that has one size t: every factor is exp(t × its own exponent)."""

    kind: str
    layers: tuple[str, ...]
    apply: Callable[[float], Problem]
    factors: Callable[[float], dict[str, list[float]]]
    exponents: Mapping[str, Array]  # by parameter, how often exp(t) multiplies each entry


@dataclass
class Side:
    """One network with what the search needs of it, computed once for all measures."""

    label: str
    equivalents: Equivalents
    seed: int = 0
    exact_diagonal: bool = False  # known once the squares are
    _squares: dict[str, tuple[Array, Array]] | None = field(default=None, repr=False)

    @property
    def squares(self) -> dict[str, tuple[Array, Array]]:
        """Squared weights and Hessian diagonal of every parameter."""
        if self._squares is None:
            problem = self.equivalents.problem
            found = curvature(problem, seed=self.seed)
            self.exact_diagonal = found.exact
            self._squares = {
                name: (tensor.detach().double().square().cpu().numpy(), found.diagonal[name].cpu().numpy())
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

                def apply(t: float, factors: Callable[[float], dict[str, list[float]]] = factors) -> Problem:
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

        def apply(t: float) -> Problem:
            given = {name: torch.tensor(values, dtype=torch.float64) for name, values in factors(t).items()}
            return self.equivalents.neurons_rescaled(factors=given)

        layers = tuple(self.equivalents.shown(name) for name in independent)
        return Direction("neurons", layers, apply, factors, self.exponents(chosen))

    def _pair(self, exponents: Mapping[str, Array]) -> tuple[str, ...]:
        """Return the layers whose weights a factor meets: those that take it and those that take its inverse."""
        owners = self.equivalents.problem.weights.items()
        touched = [layer for layer, full in owners if full in exponents and bool((exponents[full] != 0).any())]
        return tuple(touched)


class Surrogate:
    """What the diagonal says a measure becomes: a trace, or squared norms times traces summed over weights."""

    def __init__(self, side: Side, form: str) -> None:
        self.squares = side.squares
        self.form = form
        # Whether the measure is this very function of a diagonal that is known exactly.
        self.exact = side.exact_diagonal and form not in ("like_trace", "like_kappa")
        weights = side.equivalents.problem.weights
        self.names = list(weights.values()) if form.startswith("kappa") else list(self.squares)
        if form == "kappa_last" and weights:
            self.names = self.names[-1:]

    def along(self, direction: Direction) -> Callable[[float], float]:
        """Return the surrogate as a function of the direction's size t."""
        # Entries of one exponent move together, so few sums are enough for every t.
        sums = []
        for name in self.names:
            w2, h = self.squares[name]
            exponents = direction.exponents.get(name, np.zeros(w2.shape))
            values, index = np.unique(np.round(exponents, 9), return_inverse=True)
            flat = index.ravel()
            sums.append((values, np.bincount(flat, w2.ravel()), np.bincount(flat, h.ravel())))

        def value(t: float) -> float:
            parts = [
                (float((np.exp(2 * t * k) * w2).sum()), float((np.exp(-2 * t * k) * h).sum())) for k, w2, h in sums
            ]
            return self._reduced(parts)

        return value

    def _reduced(self, parts: list[tuple[float, float]]) -> float:
        if self.form in ("trace", "like_trace"):
            return sum(h for _, h in parts)
        if self.form == "root":
            return sum(math.sqrt(max(w2 * h, 0.0)) for w2, h in parts)
        products = [w2 * h for w2, h in parts] or [0.0]
        return max(products) if self.form == "kappa_max" else sum(products)

    def slopes(self, exponents: Mapping[str, Array], t: float) -> dict[str, Array]:
        """Return the slope of the surrogate along every entry's own exponent, at size t of a direction."""
        found: dict[str, Array] = {}
        moved = {}
        for name in self.names:
            w2, h = self.squares[name]
            k = exponents.get(name, np.zeros(w2.shape))
            moved[name] = np.exp(2 * t * k) * w2, np.exp(-2 * t * k) * h
        products = {name: float(w2.sum()) * float(h.sum()) for name, (w2, h) in moved.items()}
        for name, (w2, h) in moved.items():
            if self.form in ("trace", "like_trace"):
                found[name] = -2 * h
            elif self.form != "kappa_max" or products[name] == max(products.values()):
                root = 2 * math.sqrt(max(products[name], 1e-300)) if self.form == "root" else 1.0
                found[name] = 2 * (w2 * float(h.sum()) - float(w2.sum()) * h) / root
        return found


_FORMS = {
    "hessian_trace": "trace",
    "kappa_tau_sum": "kappa_sum",
    "kappa_tau_max": "kappa_max",
    "kappa_tau_last": "kappa_last",
    "matrix_normalized_sharpness": "root",
}


def form_of(own: Measure, settings: Settings, kind: str) -> str:
    """Return which function of the diagonal stands for a measure; one that only resembles it has "like" in its name."""
    plain = all(settings.get(f"{own.name}.{key}", value) == value for key, value in own.settings.items())
    like = "like_trace" if kind == "layers" else "like_kappa"
    return _FORMS.get(own.name, like) if own.builtin and plain else like


def find_reversal(
    own: Measure,
    sides: tuple[Side, Side],
    values: tuple[Estimate, Estimate],
    kinds: tuple[str, ...],
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
) -> Reversal | None:
    """Return the smallest rescaling found, of either network, after which the measure orders them the other way.

    ``kinds`` says what may be rescaled: whole layers, one group at a time, or single neurons.  None where no factor up
    to 1000 does it.  ``settings`` go by "measure.option".
    """
    given = dict(settings or {})
    best: Reversal | None = None
    for mine, theirs in ((0, 1), (1, 0)):
        side = sides[mine]
        if side.equivalents.found.analysis is None:
            continue
        search = _Search(own, side, values[mine], values[theirs], given, seed, tolerance)
        for kind in kinds:
            best = search.run(kind, best)
    return best


class _Search:
    """The search in one network against a fixed value of the other."""

    def __init__(
        self,
        own: Measure,
        side: Side,
        value: Estimate,
        other: Estimate,
        settings: dict[str, Any],
        seed: int,
        tolerance: float | None,
    ) -> None:
        self.own, self.side, self.value, self.other = own, side, value, other
        self.settings, self.seed, self.tolerance = settings, seed, tolerance
        self.rising = value.value < other.value  # whether the value has to go up
        self.spent = 0

    def run(self, kind: str, best: Reversal | None) -> Reversal | None:
        surrogate = Surrogate(self.side, form_of(self.own, self.settings, kind))
        if kind == "layers":
            directions = list(self.side.layer_directions())
        else:
            directions = self._neuron_directions(surrogate) if self.side.equivalents.names("neurons") else []
        proposals = sorted(
            ((self._crossing(surrogate.along(direction)), i) for i, direction in enumerate(directions)),
            key=lambda pair: pair[0] if pair[0] is not None else math.inf,
        )
        self.spent = 0
        if not surrogate.exact:
            proposals = self._probed(directions, [i for _, i in proposals[:MOST_PROBES]])
        for size, i in proposals:
            limit = math.log(best.factor) if best is not None else math.log(LARGEST_FACTOR)
            if size is None or (surrogate.exact and size >= limit) or self.spent >= MOST_MEASUREMENTS:
                continue
            reached = self._confirmed(directions[i], size, limit, surrogate.exact, first=best is None)
            if reached is not None:
                t, after = reached
                best = Reversal(
                    self.side.label,
                    kind,
                    directions[i].layers,
                    math.exp(t),
                    self.value.value,
                    after,
                    self.other.value,
                    {self.side.equivalents.shown(name): values for name, values in directions[i].factors(t).items()},
                    self.spent,
                )
        return best

    def _probed(self, directions: list[Direction], chosen: list[int]) -> list[tuple[float | None, int]]:
        """Measure each direction once and return those that lead the right way, with the size where they would cross.

        The logarithm of the value is taken to go on as it began.
        """
        step = math.log(PROBE_FACTOR)
        found: list[tuple[float | None, int]] = []
        gap = self.other.value - self.value.value
        for i in chosen:
            after = self._measured(directions[i], step)
            moved = 0.0 if after is None else after.value - self.value.value
            if moved * gap <= 0 or after is None:
                continue
            share = gap / moved
            if min(self.value.value, self.other.value, after.value) > 0:
                share = math.log(self.other.value / self.value.value) / math.log(after.value / self.value.value)
            found.append((step * share, i))
        return sorted(found, key=lambda pair: pair[0] or 0.0)

    def _neuron_directions(self, surrogate: Surrogate) -> list[Direction]:
        """Choose every neuron's sign by the slope, and again at the size reached.

        Sums of products of powers are convex in the logarithms of the factors, so the maximum over all factors in
        [1/f, f] has each of them at an end.
        """
        sign = 1.0 if self.rising else -1.0
        exponents: Mapping[str, Array] = {}
        size = 0.0
        found: list[Direction] = []
        tried: list[dict[int, float]] = []
        for _ in range(TURNS):
            pulled = self.side.pulled_back(surrogate.slopes(exponents, size))
            signs = {each: sign * float(np.sign(v)) for each, v in pulled.items()}
            if signs in tried:
                break
            tried.append(signs)
            direction = self.side.neuron_direction(signs)
            found.append(direction)
            crossing = self._crossing(surrogate.along(direction))
            exponents, size = direction.exponents, (math.log(4.0) if crossing is None else crossing)
        return found

    def _crossing(self, surrogate: Callable[[float], float]) -> float | None:
        """Return the smallest size at which the surrogate, scaled to the value here, reaches the other network's."""
        start = surrogate(0.0)
        if start == 0 or self.value.value == 0 or self.other.value / self.value.value <= 0:
            return None
        target = start * self.other.value / self.value.value

        def beyond(t: float) -> bool:
            return surrogate(t) > target if self.rising else surrogate(t) < target

        grid = np.linspace(0.0, math.log(LARGEST_FACTOR), 200)
        high = next((float(t) for t in grid[1:] if beyond(float(t))), None)
        if high is None:
            return None
        low = high - float(grid[1])
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if beyond(middle) else (middle, high)
        return high

    def _confirmed(
        self, direction: Direction, size: float | None, limit: float, exact: bool, *, first: bool
    ) -> tuple[float, float] | None:
        """Measure until the ordering is seen to flip, then narrow the size down; None where it never flips."""
        if exact and size is not None:
            # The crossing itself is a tie: a little further the order is reversed.
            for step in (1e-4, 1e-3, 1e-2):
                if size + step < limit:
                    after = self._flipped(direction, size + step)
                    if after is not None:
                        return size + step, after
            return None
        low = 0.0
        high = min(1.02 * (size or math.log(2.0)), limit) if first else (1 - PRECISION) * limit
        after = self._flipped(direction, high)
        while after is None and first and high < limit and self.spent < MOST_MEASUREMENTS:
            low, high = high, min(1.3 * high, limit)
            after = self._flipped(direction, high)
        if after is None:
            return None
        while high - low > PRECISION and self.spent < MOST_MEASUREMENTS:
            middle = (low + high) / 2
            there = self._flipped(direction, middle)
            if there is None:
                low = middle
            else:
                high, after = middle, there
        return high, after

    def _flipped(self, direction: Direction, t: float) -> float | None:
        """Return the rescaled network's value where it lies clearly beyond the other's."""
        after = self._measured(direction, t)
        if after is None:
            return None
        gap = after.value - self.other.value
        clear = abs(gap) > uncertainty(after, self.other)
        return after.value if clear and (gap > 0) == self.rising else None

    def _measured(self, direction: Direction, t: float) -> Estimate | None:
        """Measure the rescaled network, None where it cannot be."""
        self.spent += 1
        try:
            problem = direction.apply(t)
        except SpiritlevelError:  # a factor at which rounding would show
            return None
        report = measure(
            problem,
            measures=[self.own],
            settings={k: v for k, v in self.settings.items() if k.partition(".")[0] == self.own.name},
            seed=self.seed,
            tolerance=self.tolerance,
        )
        after = report[self.own.name]
        return after if after.status in ("ok", "budget_spent") else None
