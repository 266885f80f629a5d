"""Draws where they tell most: samples apart by what is known of them before anything is drawn.

In a trained network a few samples, those that it gets wrong, hold nearly all of the variance of a draw.  How far the
draws of a sample lie apart goes with its loss and with its Gauss–Newton trace, and these are known.  So samples are
ordered by both and parted into strata, each is drawn as often as its variance asks for, and their means are added up.
Which samples stand together says nothing of the signs they will get: every stratum's mean is unbiased.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from spiritlevel.engine.passes.chosen_samples import ChosenSamples
from spiritlevel.engine.passes.sampled_form import Added, Gathered, Independent, Pooled, Running, Sampled, SampledForm
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.inputs.open_problem import OpenProblem

# Upper ends of the strata among the samples, the largest scores first.
ENDS = (0.01, 0.05, 0.2, 1.0)
FEWEST = 64  # samples below which all are drawn alike
# Entries of diagonals that are kept for all strata together, several numbers for each.
MOST_ENTRIES = 100_000_000
TOGETHER = 8  # draws of all samples that share one sweep; of few samples more do
MOST_TOGETHER = 64
TOGETHER_ENTRIES = 4_000_000  # of the parameters in the draws of one sweep, where more than those eight share it


class Draws(Protocol):
    """Draws of some samples or of all, as many as were asked for so far."""

    problem: OpenProblem
    what: str  # a sweep of draws is called
    wants: frozenset[str]  # forms that are kept entry by entry
    keeps_entries: bool  # of every draw of a sweep, until the sweep is over
    chosen: ChosenSamples | None
    spent: dict[str, float]  # sweeps of all samples by kind, which are known to nobody else yet
    draws: int
    network: Pooled
    samples: Running  # each sample's own trace

    @property
    def share(self) -> float:
        """Of all samples, those that are drawn."""

    @property
    def members(self) -> list[str]:
        """What is drawn, by the names of layers, of parameters' uses or of parameters."""

    @property
    def names(self) -> list[str]:
        """The parameters of these."""

    def of_samples(self, chosen: ChosenSamples) -> Draws:
        """Return the same for some samples alone."""

    def restrict(self, names: list[str]) -> bool:
        """Keep some members only; True where that cost draws."""

    def more(self, draws: int) -> None:
        """Add draws of every sample."""

    def form(self, kind: str) -> SampledForm:
        """Return one kind of form of all that was drawn."""


class StratifiedSampling:
    """Draws in each stratum, as many as were asked for: of what ``whole`` would draw of all samples alike."""

    def __init__(self, problem: OpenProblem, whole: Draws, scores: Tensor | None = None) -> None:
        self.problem, self.wants = problem, whole.wants
        self.strata: list[Draws] = [whole]
        self._spent: dict[str, float] = {}  # parts of sweeps that are not yet counted
        size = sum(problem.chosen_parameters[full].numel() for full in whole.names)
        if whole.members and scores is not None and (not self.wants or size * len(ENDS) <= MOST_ENTRIES):
            places = divided(scores)
            if len(places) > 1:
                self.strata = [whole.of_samples(ChosenSamples(problem, own)) for own in places]

    @property
    def members(self) -> list[str]:
        """The layers, parameters' uses or parameters that are sampled so."""
        return self.strata[0].members

    @property
    def names(self) -> list[str]:
        """The parameters that are sampled so."""
        return self.strata[0].names

    @property
    def draws(self) -> int:
        """Draws of a sample, on average."""
        return round(sum(stratum.draws * stratum.share for stratum in self.strata))

    @property
    def least_draws(self) -> int:
        """Draws that every sample has."""
        return min(stratum.draws for stratum in self.strata)

    def more(self, draws: int) -> None:
        """Add so many draws of every sample."""
        self.add([draws] * len(self.strata))

    def add(self, draws: list[int]) -> float:
        """Add draws to the strata, in time; return how many of all samples that comes to.

        A batch of another kind may cost layers, and all draws.
        """
        try:
            done = sum(stratum.share * self._sweeps(stratum, count) for stratum, count in zip(self.strata, draws))
            while True:
                common = [one for one in self.members if all(one in stratum.members for stratum in self.strata)]
                behind = [stratum for stratum in self.strata if stratum.restrict(common) or not stratum.draws]
                if not behind or not common:
                    return done
                done += sum(stratum.share * self._sweeps(stratum, max(draws)) for stratum in behind)
        finally:
            self._count()

    def _count(self) -> None:
        """Count whole sweeps as spent."""
        for kind in {kind: None for one in self.strata for kind in one.spent}:
            self._spent[kind] = self._spent.get(kind, 0.0) + sum(one.spent.pop(kind, 0.0) for one in self.strata)
            whole = math.floor(self._spent[kind] + 1e-6)
            self.problem.spent[kind] += whole
            self._spent[kind] -= whole

    def _sweeps(self, stratum: Draws, draws: int) -> int:
        """Add draws to one stratum; return how many there was time for."""
        size = sum(self.problem.chosen_parameters[full].numel() for full in stratum.names)
        # What was begun can be finished sooner where time is short.
        least = TOGETHER if self.problem.deadline is None else TOGETHER // 2
        entries = TOGETHER_ENTRIES / max(size, 1) if stratum.keeps_entries else MOST_TOGETHER
        together = max(least, int(min(least / stratum.share, MOST_TOGETHER, entries)))
        left = draws
        while left > 0:
            # No sweep of a single draw: it would say nothing of its error.
            count = left if left <= together else min(together, left - 2) if left - together == 1 else together
            count = int(max(2, min(count, self.problem.fitting(stratum.what) / stratum.share)))
            try:
                stratum.more(count)
            except TimeSpent:
                if not stratum.draws:
                    raise
                break
            left -= count
        return draws - left

    def further(self, factor: float, most: float) -> list[int]:
        """Return the draws that divide the variance of the trace by a factor, for at most so many of all samples."""
        shares = [stratum.share for stratum in self.strata]
        variances = [stratum.network.variance / max(stratum.network.freedom, 1) for stratum in self.strata]
        drawn = [stratum.draws for stratum in self.strata]
        worth = [math.sqrt(variance / share) for variance, share in zip(variances, shares)]
        if not any(worth):
            return [max(0, int(min(math.ceil((factor - 1) * drawn[0]), most)))] * len(drawn)

        def at(level: float) -> list[float]:
            return [max(own, level * each) for own, each in zip(drawn, worth)]

        def cost(level: float) -> float:
            return sum(share * (new - own) for share, new, own in zip(shares, at(level), drawn))

        def variance(level: float) -> float:
            return sum(one / new for one, new in zip(variances, at(level)))

        wanted = variance(0.0) / factor
        low, high = 0.0, factor * max(drawn) / min(each for each in worth if each > 0)
        for _ in range(60):
            level = (low + high) / 2
            if variance(level) <= wanted or cost(level) > most:
                high = level
            else:
                low = level
        counts = [math.ceil(new - own - 1e-9) if new > own + 0.5 else 0 for new, own in zip(at(high), drawn)]
        counts = [max(count, 2) if count else 0 for count in counts]
        return counts if sum(map(math.prod, zip(shares, counts))) <= most + 2 else [0] * len(counts)

    def cost(self, draws: list[int]) -> float:
        """Return what draws of the strata come to, in draws of all samples."""
        return sum(stratum.share * count for stratum, count in zip(self.strata, draws))

    def form(self, kind: str) -> SampledForm:
        """Return one kind of form of all that was drawn."""
        forms = [stratum.form(kind) for stratum in self.strata]
        if len(forms) == 1:
            return forms[0]
        return SampledForm(
            sums={full: Added([form.sums[full] for form in forms]) for full in forms[0].sums},
            parts={full: Added([form.parts[full] for form in forms]) for full in forms[0].parts},
            layers={name: Added([form.layers[name] for form in forms]) for name in forms[0].layers},
            network=Added([form.network for form in forms]),
            joint=Independent([form.joint for form in forms]),
            probes=self.draws,
        )

    @property
    def samples(self) -> Sampled:
        """Each sample's own trace over the layers that are sampled so."""
        parts = [(stratum.chosen, stratum.samples) for stratum in self.strata]
        known = [(chosen.places, own) for chosen, own in parts if chosen is not None]
        return Gathered(known) if known else self.strata[0].samples


def divided(scores: Tensor) -> list[Tensor]:
    """Return the places of the samples of each stratum, those with the largest scores first."""
    count = len(scores)
    order = torch.argsort(scores.cpu(), descending=True, stable=True)
    if count < FEWEST:
        return [order]
    ends = sorted({max(1, round(end * count)) for end in ENDS})
    return [order[first:last] for first, last in zip([0, *ends], ends)]
