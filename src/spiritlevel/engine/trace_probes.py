"""Traces by probes of every sample's own Hessian, where these know more for their cost than the remainder's draws do.

Which of the two that is depends on the network: near a minimum the remainder is small and its draws cost little; deep
in a network that is still being trained what the curved operations let through cancels, and their draws do not see it.
So both are tried, and the one whose variance times cost is smaller goes on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from torch import Tensor

from spiritlevel.engine.operators.derivative_check import path_of
from spiritlevel.engine.passes.sample_probes import SampleProbes
from spiritlevel.engine.passes.sampled_form import SampledForm
from spiritlevel.engine.passes.strata import StratifiedSampling
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.inputs.open_problem import OpenProblem

COST = 4.0  # of a probe of every sample in gradients, about
FIRST = 2  # probes before anybody looks: their spread within many samples tells enough
APART = 6.0  # errors by which two ways to one number may differ before the new one is not believed


class TraceProbes:
    """Nothing is probed before it is asked for; ``form`` is what is known where these lead."""

    def __init__(self, problem: OpenProblem, seed: int, scores: Tensor | None) -> None:
        self.problem, self.seed, self.scores = problem, seed, scores
        self.spent = 0.0
        self.leads = False
        self.open = not problem.survey.coupled  # whether they may still be tried
        self._sampling: StratifiedSampling | None = None

    @property
    def form(self) -> SampledForm | None:
        """The traces of the parameters that were probed; None where the remainder's draws are the better way."""
        return self._sampling.form("entries") if self.leads and self._sampling is not None else None

    def try_them(self, known: Callable[[list[str]], tuple[float, float]], cost: float, trusted: Container[str]) -> None:
        """Probe every sample twice, and go on with it where that is the better way.

        ``known`` gives the trace over some parameters as it is known otherwise, with its error, for so much cost.
        Second derivatives are known to be right above the parameters that are ``trusted``.
        """
        self.open = False
        whole = SampleProbes(self.problem, self.seed)
        if not whole.names:
            return
        if not all(full in trusted for full in whole.names) and path_of(self.problem).differences:
            return
        self._sampling = StratifiedSampling(self.problem, whole, self.scores)
        try:
            self._add([FIRST] * len(self._sampling.strata))
        except TimeSpent:
            return
        if not self._sampling.names:  # a batch of another kind was met
            return
        value, error = known(self._sampling.names)
        network = self._sampling.form("entries").network
        own, own_error = float(network.mean), float(network.stderr)
        believed = abs(own - value) <= APART * math.hypot(own_error, error)
        self.leads = believed and own_error**2 * self.spent < error**2 * cost

    def more(self, ratio: float, room: float) -> bool:
        """Probe so much more that the variance falls by ``ratio``, or as much as may be spent; False for nothing."""
        assert self._sampling is not None
        counts = self._sampling.further(ratio, max(room, 0.0) / COST)
        return any(counts) and self._add(counts)

    def _add(self, draws: list[int]) -> bool:
        assert self._sampling is not None
        drawn = self._sampling.add(draws)
        self.spent += COST * drawn
        return drawn > 0
