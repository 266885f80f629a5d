"""R = H - G over the layers that are not exact: by their operations where these are known, else by probes.

Nothing is sampled before it is asked for, and then as much as a first look takes.  Whoever finds a value's error too
large asks for more, until what may be spent is spent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from torch import Tensor

from spiritlevel.engine.passes.operation_sampling import OperationSampling
from spiritlevel.engine.passes.remainder import Kind, ParameterSampling
from spiritlevel.engine.passes.sampled_form import Added, Independent, Sampled, SampledForm
from spiritlevel.engine.passes.strata import StratifiedSampling
from spiritlevel.inputs.open_problem import OpenProblem

# What one draw of the operations, and one probe of one kind of form, cost in gradients, about, of small networks on a
# processor: every form is added up from a draw, and where batches are small each step has its own cost.
DRAW_COST, PROBE_COST = 2.8, 2.8
# Draws before anybody looks at errors: those of sums come from all samples, those of sums over entries from the draws
# alone.  A single entry that takes one of two values agrees in eight of them by chance once in 128, and its error would
# be 0: where entries are shown one by one there are more.
FIRST_DRAWS, FIRST_DRAWS_OF_PARTS, DRAWS_OF_ENTRIES = 4, 8, 16
GROWTH = 4.0  # by how much more at most is drawn before the error is looked at again
IGNORED = 0.1  # share of a variance that is not worth sampling for


class Remainder:
    """What is known of R so far, and what has been spent on it."""

    def __init__(
        self,
        problem: OpenProblem,
        names: list[str],
        rules: Mapping[str, bool],
        wants: frozenset[str],
        *,
        seed: int,
        budget: float,
        scores: Tensor | None = None,
    ) -> None:
        self.problem, self.budget, self.spent = problem, budget, 0.0
        self.first_looks = 0.0  # of it, spent before anybody looked at errors
        self.names, self.wants, self.seed = names, wants, seed
        self.operations = StratifiedSampling(problem, OperationSampling(problem, rules, wants, seed), scores)
        self.others = self._by_probes()

    def _by_probes(self) -> ParameterSampling:
        """Return the sampling of the parameters that do not go by the operations."""
        by_operations = set(self.operations.names)
        return ParameterSampling(
            self.problem,
            [name for name in self.names if name not in by_operations],
            wants=self.wants,
            seed=self.seed,
            of="hessian" if self.problem.survey.coupled else "remainder",
        )

    def form(self, kind: Kind) -> SampledForm | None:
        """Return what is known of a kind of form, at first from a few draws; None where nothing has such a form."""
        found = []
        if self.operations.members:
            if not self.operations.least_draws:
                before = self.spent
                parts = self.operations.wants and self.problem.deadline is None  # else other measures wait
                self._draw(FIRST_DRAWS_OF_PARTS if parts else FIRST_DRAWS)
                self.first_looks += self.spent - before
            found.append(self.operations.form(kind))
        before = self._probes
        by_probes = self.others.form(kind)
        self.spent += PROBE_COST * (self._probes - before)
        self.first_looks += PROBE_COST * (self._probes - before)
        if by_probes is not None:
            found.append(by_probes)
        return _together(found)

    @property
    def most_draws(self) -> int:
        """Draws or probes, whichever are more, that a value rests on."""
        return max([self.operations.draws, *(form.probes for form in self.others.forms.values())])

    def samples(self, draws: int) -> Sampled | None:
        """Return each sample's own trace over the layers that go by operations, from at least so many draws."""
        if not self.operations.members:
            return None
        self.draw_at_least(draws)
        return self.operations.samples

    def draw_at_least(self, draws: int) -> None:
        """See to it that every sample has so many draws."""
        if self.operations.members and self.operations.least_draws < draws:
            self._draw(max(draws - self.operations.least_draws, 2))

    @property
    def _probes(self) -> int:
        return sum(form.probes for form in self.others.forms.values()) + self.others.size * self.others.written_out

    def _draw(self, draws: int) -> bool:
        """Draw so often of every sample, in time; return whether anything was drawn."""
        return self._add([draws] * len(self.operations.strata))

    def _add(self, draws: list[int]) -> bool:
        before = self.operations.names
        drawn = self.operations.add(draws)
        self.spent += DRAW_COST * drawn
        if self.operations.names != before:  # a batch of another kind was met, and all draws were given up
            self.others = self._by_probes()
        return drawn > 0

    def room(self) -> float:
        """Return what may still be spent; first looks leave half of the budget for what turns out to need it."""
        return self.budget - self.spent + max(0.0, self.first_looks - self.budget / 2)

    def cost_of(self, ratio: float) -> float:
        """Return what it takes to let the trace's variance fall by a ratio, by draws where there are any."""
        if not self.operations.least_draws:
            return (ratio - 1) * self.spent
        return DRAW_COST * self.operations.cost(self.operations.further(ratio, math.inf))

    def _share_of_others(self, kind: Kind) -> float:
        """Return how much of a form's variance comes from probes of parameters."""
        own = self.others.forms.get(kind)
        by_probes = 0.0 if own is None else _variance(own)
        by_draws = _variance(self.operations.form(kind)) if self.operations.least_draws else 0.0
        return by_probes / (by_probes + by_draws) if by_probes > 0 else 0.0

    def improve(self, ratio: float, kinds: Collection[Kind]) -> bool:
        """Sample so much more that variances fall by ``ratio``, or as much of it as may be spent; False for nothing."""
        room = self.room()
        growth = min(ratio * 1.1, GROWTH) - 1
        drawn = False
        shares = {kind: self._share_of_others(kind) for kind in kinds}
        sampled = [kind for kind, share in shares.items() if share > IGNORED and kind != "whole"]
        for kind in sampled:
            known = self.others.form(kind)
            assert known is not None
            count = int(min(math.ceil(growth * known.probes), room / len(sampled) / PROBE_COST))
            if count >= 1:
                before = self._probes
                self.others.more(kind, count)
                self.spent += PROBE_COST * (self._probes - before)
                drawn = drawn or self._probes > before
        if self.operations.least_draws and any(share < 1 - IGNORED for share in shares.values()):
            counts = self.operations.further(1 + growth, self.room() / DRAW_COST)
            drawn = (any(counts) and self._add(counts)) or drawn
        return drawn


def _variance(form: SampledForm) -> float:
    return sum(float(part.stderr) ** 2 for part in form.sums.values())


def _together(forms: list[SampledForm]) -> SampledForm | None:
    if len(forms) < 2:
        return forms[0] if forms else None
    return SampledForm(
        sums={name: part for form in forms for name, part in form.sums.items()},
        parts={name: part for form in forms for name, part in form.parts.items()},
        layers={
            name: Added([form.layers[name] for form in forms if name in form.layers])
            for name in {name: None for form in forms for name in form.layers}
        },
        network=Added([form.network for form in forms]),
        joint=Independent([form.joint for form in forms]),
        probes=max(form.probes for form in forms),
    )
