"""The smallest rescaling that reverses an ordering: found from the network's own curvature, confirmed by measuring.

Where a parameter is multiplied by c, its entry of the Hessian's diagonal is divided by c².  So the diagonal alone says
what a rescaling does to every trace, exactly, and about what it does to an eigenvalue; that one follows from products
with the network's own Hessian.  The factor reported is always one at which the rescaled network itself was measured and
came out on the other side; where what followed did not hold there, every step of the search is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from spiritlevel.analyses.changed_copies import uncertainty
from spiritlevel.analyses.changed_workbench import SearchWorkbench
from spiritlevel.analyses.rescaling_directions import Array, Direction, Side
from spiritlevel.analyses.surrogates import Surrogate, form_of
from spiritlevel.engine.estimators.scaled_eigenvalues import FEWEST, MOST
from spiritlevel.measures.declaration import Measure
from spiritlevel.results.reversals import Reversal
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Estimate

LARGEST_FACTOR = 1000.0
PRECISION = 0.02  # of the factor, relative, where the diagonal alone does not say it
EIGENVALUES = 0.005  # how closely they are searched for: a factor to 1% has them to 2%
NEAR = 1.2  # a guess that is so far from crossing is not looked at again
MOST_MEASUREMENTS = 24  # of one network and one kind of rescaling
MOST_PROBES, PROBE_FACTOR = 12, 1.5  # directions measured once to see where they lead, and how far
BEYOND = (0.0, 0.005, 0.02, 0.05)  # how much further the rescaled network itself is measured, of the factor
STEEPEST = 2  # directions in which an eigenvalue is looked at
TURNS = 4  # times the signs of the neurons' factors are chosen anew at the factor reached


def find_reversal(own: Measure, sides: tuple[Side, Side], kinds: tuple[str, ...]) -> Reversal | None:
    """Return the smallest rescaling found, of either network, after which the measure orders them the other way.

    ``kinds`` says what may be rescaled: whole layers, one group at a time, or single neurons.  None where no factor up
    to 1000 does it.
    """
    able = [side for side in sides if side.equivalents.found.analysis is not None]
    others = {side.label: other for side, other in zip(sides, reversed(sides))}
    following = {side.label: side.copies.rescaler.follows for side in able}
    while True:
        found: FoundReversal | None = None
        for side in able:
            search = _ReversalSearch(own, side, others[side.label], following[side.label])
            for kind in kinds:
                found = search.run(kind, found)
        if found is None:
            return None
        search, best, direction = found
        confirmed = search.confirmed(best, direction)
        if confirmed is not None or not following[best.network]:
            return confirmed
        following[best.network] = False


class _ReversalSearch:
    """The search in one network against a fixed value of the other."""

    def __init__(self, own: Measure, side: Side, other: Side, following: bool) -> None:
        self.own, self.side = own, side
        self.value, self.other = side.copies.base[own.name], other.copies.base[own.name]
        self.following = following  # whether values on the way follow from the network's own, or are measured
        self.rising = self.value.value < self.other.value  # whether the value has to go up
        self.spent = 0
        self._looked = False  # whether eigenvalues were asked for before, so that products are there to share
        self._near: Tensor | None = None  # the eigenvectors that were found last
        tolerance = side.copies.settings_for([own], closely=True)[own.name].get("tolerance", 0.0)
        self._settings = side.copies.settings_for([own])
        if side.copies.coarse(own):
            self._settings[own.name]["tolerance"] = max(EIGENVALUES, tolerance)

    def run(self, kind: str, best: FoundReversal | None) -> FoundReversal | None:
        """Return what was found before, or a smaller rescaling of this kind."""
        given = self.side.copies.settings_for([self.own], closely=True)[self.own.name]
        surrogate = Surrogate(self.side, form_of(self.own, given, kind))
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
            chosen = [i for _, i in proposals[:MOST_PROBES]]
            if self.following and "eigen" in self.own.needs:
                chosen = self._steepest(directions)
                self.side.copies.rescaler.prepare([directions[i].map(math.log(PROBE_FACTOR)) for i in chosen])
            proposals = self._probed(directions, chosen)
        for size, i in proposals:
            limit = math.log(best[1].factor) if best is not None else math.log(LARGEST_FACTOR)
            if size is None or (surrogate.exact and size >= limit) or self.spent >= MOST_MEASUREMENTS:
                continue
            if surrogate.exact:
                reached = self._just_beyond(directions[i], size, limit)
            else:
                reached = self._narrowed(directions[i], size, limit, first=best is None)
            if reached is not None:
                best = self, self._reversal(kind, directions[i], *reached), directions[i]
        return best

    def _reversal(self, kind: str, direction: Direction, t: float, after: float) -> Reversal:
        shown = self.side.equivalents.shown
        return Reversal(
            network=self.side.label,
            kind=kind,
            layers=direction.layers,
            factor=math.exp(t),
            before=self.value.value,
            after=after,
            other=self.other.value,
            factors={shown(name): values for name, values in direction.factors(t).items()},
            measurements=self.spent,
        )

    def confirmed(self, found: Reversal, direction: Direction) -> Reversal | None:
        """Return the reversal with the value measured on the rescaled network, a little further where that takes it."""
        if not self.following:
            return found  # it was measured
        for step in BEYOND:
            t = math.log(found.factor) + step
            after = self._measured(direction, t)
            if after is not None and self._beyond(after):
                return self._reversal(found.kind, direction, t, after.value)
        return None

    def _steepest(self, directions: list[Direction]) -> list[int]:
        """Return the directions along which the top eigenvalue goes fastest where it has to go.

        With u its eigenvector and exp(tk) the factors, its logarithm changes by -2 Σ k u² with t.
        """
        top = self.side.copies.rescaler.bench.top_vectors
        if top is None:
            return list(range(len(directions)))[:MOST_PROBES]
        problem = self.side.equivalents.problem
        sizes = [tensor.numel() for tensor in problem.tensors]
        parts = dict(zip(problem.parameters, top[:, 0].double().square().cpu().split(sizes)))
        slopes = [
            -2 * sum(float(parts[name] @ torch.from_numpy(k.ravel().copy())) for name, k in each.exponents.items())
            for each in directions
        ]
        slopes = [slope if self.rising else -slope for slope in slopes]
        return sorted((i for i, slope in enumerate(slopes) if slope > 0), key=lambda i: -slopes[i])[:STEEPEST]

    def _probed(self, directions: list[Direction], chosen: list[int]) -> list[tuple[float | None, int]]:
        """Measure each direction once and return those that lead the right way, with the size where they would cross.

        The logarithm of the value is taken to go on as it began.
        """
        step = math.log(PROBE_FACTOR)
        found: list[tuple[float | None, int]] = []
        gap = self.other.value - self.value.value
        for i in chosen:
            after = self._guessed(directions[i], step)
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

    def _just_beyond(self, direction: Direction, size: float, limit: float) -> tuple[float, float] | None:
        """Measure a little beyond a crossing that is known exactly, itself a tie; None where the order stays."""
        for step in (1e-4, 1e-3, 1e-2):
            if size + step < limit:
                after = self._flipped(direction, size + step)
                if after is not None:
                    return size + step, after
        return None

    def _narrowed(self, direction: Direction, size: float, limit: float, *, first: bool) -> tuple[float, float] | None:
        """Measure until the ordering is seen to flip, then narrow the size down; None where it never flips."""
        low = 0.0
        high = min(1.02 * (size or math.log(2.0)), limit) if first else (1 - PRECISION) * limit
        if not first and self._far(direction, high):
            return None
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

    def _far(self, direction: Direction, t: float) -> bool:
        """Whether a guess leaves the value far on this network's own side of the other's."""
        guess = self._guessed(direction, t)
        if guess is None or min(guess.value, self.other.value) <= 0:
            return guess is None
        apart = guess.value / self.other.value
        return apart < 1 / NEAR if self.rising else apart > NEAR

    def _flipped(self, direction: Direction, t: float) -> float | None:
        """Return the rescaled network's value where it lies clearly beyond the other's."""
        after = self._looked_at(direction, t)
        return after.value if after is not None and self._beyond(after) else None

    def _beyond(self, after: Estimate) -> bool:
        gap = after.value - self.other.value
        return abs(gap) > uncertainty(after, self.other) and (gap > 0) == self.rising

    def _looked_at(self, direction: Direction, t: float) -> Estimate | None:
        """Return the value on the rescaled network, as it follows or as it is measured; None where there is none."""
        self.spent += 1
        if not self.following:
            return self._measured(direction, t)
        least = 0 if self._looked else FEWEST
        self._looked = True
        found = self._follows(direction, t, least, MOST)
        return self._measured(direction, t) if found is None else found

    def _guessed(self, direction: Direction, t: float) -> Estimate | None:
        """Return about the value on the rescaled network, to choose directions by: no new product is made for it."""
        found = self._follows(direction, t, 0, 0) if self.following else None
        return self._looked_at(direction, t) if found is None else found

    def _follows(self, direction: Direction, t: float, least: int, most: int) -> Estimate | None:
        copies, map = self.side.copies, direction.map(t)
        bench = SearchWorkbench(copies.rescaler, self.side.equivalents.with_weights(map), map, least, most)
        found = copies.rescaler.values(bench, [self.own], self._settings).get(self.own.name)
        if bench.searched is not None:
            self._near = bench.searched.vectors
        return found

    def _measured(self, direction: Direction, t: float) -> Estimate | None:
        """Measure the rescaled network, None where it cannot be."""
        copies = self.side.copies
        try:
            problem = direction.apply(t)
            after = copies.measured(problem, [self.own], self._settings, self._near)[0][self.own.name]
        except SpiritlevelError:  # a factor at which rounding would show, or no time
            return None
        return after if after.status in ("ok", "budget_spent") else None


FoundReversal = tuple[_ReversalSearch, Reversal, Direction]
