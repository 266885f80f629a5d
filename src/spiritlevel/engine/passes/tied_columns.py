"""What columns of tied uses hold at their weights themselves: a part of each sample's gradient, added before squaring.

The rest of such a column goes into the graph at the activation; see ``engine/operations/tied.py`` for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spiritlevel.engine.layers.sample_gradients import SampleGradients
from spiritlevel.engine.layers.summed_gradients import SignedPairs, summed
from spiritlevel.engine.layers.uses import Use, Uses
from spiritlevel.engine.operations.drawing import TiedPart
from spiritlevel.engine.operations.finding import leaf_behind
from spiritlevel.engine.passes.recording import parameters_of
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.torch_internals import nodes


class TiedColumns:
    """Those of some draws on one batch, by parameter; ``rules`` say how samples lie in its rows."""

    def __init__(
        self, problem: OpenProblem, tied: Iterable[TiedPart], rules: Mapping[str, bool], samples: int, draws: int
    ) -> None:
        self.parameters, self.draws = problem.chosen_parameters, draws
        second = {
            id(self.parameters[full]): (full, held)
            for name, held in rules.items()
            for full in parameters_of(problem, name)
        }
        self.parts: dict[str, list[SampleGradients]] = {}
        for part in tied:
            leaf = leaf_behind(part.node.next_functions[part.place])
            full, held = second.get(id(nodes.parameter_of(leaf)), ("", False))
            if full:
                use = Use(part.node, part.place, leaf)
                uses = Uses(self.parameters[full], [use], samples, held)
                self.parts.setdefault(full, []).append(uses.tied_part(use, part.gradient, part.factors))

    def added(self, full: str, pulled: SampleGradients) -> SampleGradients:
        """Return a parameter's gradients from columns that were pulled back, s₊ and s₋ in turn, with these parts."""
        own = self.parts.get(full)
        if own is None:
            return pulled
        shape = self.parameters[full].shape
        pairs = SignedPairs(summed(own, shape, self.draws), shape, self.draws)
        return summed([pulled, pairs], shape, 2 * self.draws)
