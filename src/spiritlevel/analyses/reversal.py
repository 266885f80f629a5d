"""The smallest rescaling that reverses an ordering: proposed from the Hessian's diagonal, found by measuring.

Where a parameter is multiplied by c, its entry of the Hessian's diagonal is divided by c².  So the diagonal alone says
what a rescaling does to every trace, exactly, and about what it does to an eigenvalue.  The factor reported is always
one at which the rescaled network was measured and came out on the other side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from spiritlevel.analyses.auditing import uncertainty
from spiritlevel.analyses.measuring import measure
from spiritlevel.analyses.rescaling_directions import Array, Direction, Side
from spiritlevel.analyses.surrogates import Surrogate, form_of
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.measures.declaration import Measure
from spiritlevel.results.reversals import Reversal
from spiritlevel.values.errors import SpiritlevelError
from spiritlevel.values.estimate import Estimate

LARGEST_FACTOR = 1000.0
PRECISION = 0.02  # of the factor, relative, where the diagonal alone does not say it
MOST_MEASUREMENTS = 24  # of one network and one kind of rescaling
MOST_PROBES, PROBE_FACTOR = 12, 1.5  # directions measured once to see where they lead, and how far
TURNS = 4  # times the signs of the neurons' factors are chosen anew at the factor reached


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
        search = _ReversalSearch(own, side, values[mine], values[theirs], given, seed, tolerance)
        for kind in kinds:
            best = search.run(kind, best)
    return best


class _ReversalSearch:
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
            if surrogate.exact:
                reached = self._just_beyond(directions[i], size, limit)
            else:
                reached = self._narrowed(directions[i], size, limit, first=best is None)
            if reached is not None:
                t, after = reached
                best = Reversal(
                    network=self.side.label,
                    kind=kind,
                    layers=directions[i].layers,
                    factor=math.exp(t),
                    before=self.value.value,
                    after=after,
                    other=self.other.value,
                    factors={
                        self.side.equivalents.shown(name): values for name, values in directions[i].factors(t).items()
                    },
                    measurements=self.spent,
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
        settings = {k: v for k, v in self.settings.items() if k.partition(".")[0] == self.own.name}
        try:
            report = measure(problem, measures=[self.own], settings=settings, seed=self.seed, tolerance=self.tolerance)
        except TimeSpent:
            return None
        after = report[self.own.name]
        return after if after.status in ("ok", "budget_spent") else None
