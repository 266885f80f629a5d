"""Which layers' rules hold for a batch, and how its columns are pulled back.

What to try is decided on a few samples, once for all batches that took the same operations.  Whether it holds is
looked at in every batch and for all of its samples: by what the batch's graph proves, and where that is not enough by
holding the rules against autograd.  A layer that fails goes the general way.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spiritlevel.engine.estimators.probes import normal_like
from spiritlevel.engine.layers.sample_gradients import SampleGradients
from spiritlevel.engine.passes.fallback import Fallback
from spiritlevel.engine.passes.graph import Graph, look_at
from spiritlevel.engine.passes.piecewise import linear_by_nature
from spiritlevel.engine.passes.proof import rules_are_proven
from spiritlevel.engine.passes.recording import Recorder, parameters_of, uses_among
from spiritlevel.engine.passes.stages import Stages, find_stages
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.batch_sizes import memory_share
from spiritlevel.inputs.contents import Content, slice_batch
from spiritlevel.inputs.losses import Factor
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.torch_internals import nodes
from spiritlevel.inputs.torch_internals.backward import vjp

# Samples on which a layer's rule is held against autograd.
TRIED = 8


class WrongGuess(Exception):
    """What was expected of the rules did not hold when it was looked at."""


@contextlib.contextmanager
def errors_as_wrong_guesses() -> Iterator[None]:
    """Take whatever goes wrong, and warnings, for a sign that a guess was wrong: checked rules will tell better."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it would loop over the columns itself
            yield
    except Exception as error:
        raise WrongGuess from error


class Rules:
    """The rules of the present batch."""

    def __init__(self, problem: OpenProblem) -> None:
        self.problem = problem
        self.covered: list[str] = []  # layers whose rule agrees with autograd
        self.always: dict[str, bool] | None = None  # those of which it did in every batch, and how samples lie in them
        self.stages = Stages()
        self.fallback = Fallback(problem, [])  # the other parameters, which go the general way
        self.few: tuple[Tensor, Recorder, Graph] | None = None  # of a batch that took operations not seen before
        self._by_graph: dict[int, tuple[list[str], Stages]] = {}
        self._fallbacks: dict[tuple[str, ...], Fallback] = {}
        self.all_fallbacks: tuple[str, ...] = ()  # parameters that went the general way in some batch
        on_gpu = problem.device.type == "cuda"
        # Numbers that a GPU has memory for at one time.
        self.room_on_gpu = memory_share(problem.device) // problem.dtype.itemsize if on_gpu else None

    def choose(self, batch: Batch, outputs: Tensor, recorder: Recorder, factor: Factor, graph: Graph) -> None:
        """Decide for this batch."""
        if graph.signature not in self._by_graph:
            self._by_graph[graph.signature] = self._decided(batch, outputs, recorder, factor, graph)
        covered, stages = self._by_graph[graph.signature]
        recorder.add_uses(graph, uses_among(covered), batch.count)
        # A layer that hands gradients through another one's rule is no better than that one: all or compared.
        if not rules_are_proven(graph, recorder, covered, batch.count):
            agreeing = _agreeing_layers(self.problem, outputs, recorder, graph)
            if not set(covered) <= set(agreeing):
                covered, stages = [name for name in covered if name in agreeing], Stages()
        self._go_by(covered, stages, recorder)

    def guess(self, outputs: Tensor, recorder: Recorder, factor: Factor, graph: Graph) -> None:
        """Go by what can be expected of the operations, to be confirmed; not where they are anything but plain."""
        names = _candidates(self.problem, outputs, recorder, graph)
        if self._others(names) or not linear_by_nature(graph):
            raise WrongGuess
        stages = find_stages(recorder, graph, names, len(factor.columns), self.room_on_gpu)
        self._by_graph[graph.signature] = names, stages
        self._go_by(names, stages, recorder)

    def follow(self, batch: Batch, recorder: Recorder, graph: Graph) -> None:
        """Go on by what was guessed, where this batch's graph proves that it holds."""
        known = self._by_graph.get(graph.signature)
        if known is None or not rules_are_proven(graph, recorder, known[0], batch.count):
            raise WrongGuess
        self._go_by(*known, recorder)

    def confirm(self, batch: Batch, outputs: Tensor, recorder: Recorder, factor: Factor, graph: Graph) -> None:
        """Look now, beside other work, at what was guessed."""
        guessed = self._by_graph[graph.signature]
        if self._decided(batch, outputs, recorder, factor, graph, guessed) != guessed:
            raise WrongGuess

    def _go_by(self, covered: list[str], stages: Stages, recorder: Recorder) -> None:
        self.covered, self.stages = covered, stages
        held = {name: name in recorder.uses and recorder.uses[name].samples_second for name in covered}
        before = held if self.always is None else self.always
        self.always = {name: second for name, second in held.items() if before.get(name) == second}
        others = self._others(self.covered)
        self.fallback = self._fallbacks.setdefault(others, Fallback(self.problem, list(others)))
        self.all_fallbacks = tuple(dict.fromkeys((*self.all_fallbacks, *others)))

    def _others(self, names: list[str]) -> tuple[str, ...]:
        """Return the parameters that no rule of the named layers accounts for."""
        by_rule = {full for name in names for full in parameters_of(self.problem, name)}
        return tuple(name for name in self.problem.parameters if name not in by_rule)

    def _decided(
        self,
        batch: Batch,
        outputs: Tensor,
        recorder: Recorder,
        factor: Factor,
        graph: Graph,
        guessed: tuple[list[str], Stages] | None = None,
    ) -> tuple[list[str], Stages]:
        """Decide on a few samples; where something was guessed, they are run aside from the work that goes by it."""
        some, few, own = self.few = self._small(batch, outputs, recorder, graph)
        content = None if guessed is None else slice_batch(batch.content, 0, len(some))
        # Also where the graph proves the rules right: not that they are written right.
        covered = _agreeing_layers(self.problem, some, few, own, content)
        recorder.add_uses(graph, uses_among(covered), batch.count)
        if guessed is not None and covered == guessed[0]:
            stages = guessed[1]
        else:
            stages = find_stages(recorder, graph, covered, len(factor.columns), self.room_on_gpu)
        # Maps over columns go through a user's own functions by rules of his own: not by them.
        own_functions = bool(graph.before_custom)
        staged = stages != Stages() and not own_functions
        if not staged or not few.can_be_staged(some, factor.columns[:, : len(some)], covered, stages):
            stages = Stages()
        return covered, stages

    def _small(self, batch: Batch, outputs: Tensor, recorder: Recorder, graph: Graph) -> tuple[Tensor, Recorder, Graph]:
        """Return a few samples' outputs, calls and graph, where they go through the same operations as the batch."""
        if batch.count <= TRIED:
            return outputs, recorder, graph
        with Recorder(self.problem) as few:
            some = self.problem.outputs(slice_batch(batch.content, 0, TRIED))
        own = look_at(some)
        if own.signature != graph.signature:
            return outputs, recorder, graph
        few.stop_after_poolings(own)
        return some, few, own


def _candidates(problem: OpenProblem, outputs: Tensor, recorder: Recorder, graph: Graph) -> list[str]:
    """Return the layers that have a rule, by what was recorded of them.

    A parameter that more operations take in than its module was called (tied, or used through a function) is none of
    them, even where those operations happen to pass nothing back on this batch.
    """
    if not nodes.parameters_are_told():
        return []
    return [
        name
        for name, inputs in recorder.inputs.items()
        if all(a.ndim > 0 and len(a) == len(outputs) for a in inputs)
        and all(
            graph.uses[id(problem.chosen_parameters[full])] <= len(inputs)
            for full in recorder.layers[name].parameters.values()
        )
    ]


def _agreeing_layers(
    problem: OpenProblem, outputs: Tensor, recorder: Recorder, graph: Graph, content: Content | None = None
) -> list[str]:
    """Return the layers whose rule gives the gradients autograd gives, of ``content`` run again where that is given.

    One random cotangent is pulled back to the layers, whose rules give each sample's gradient; these are added up with
    a random coefficient each.  Autograd gives the same sum from the cotangent multiplied by the coefficients: unless a
    rule is wrong for any sample, or a layer's rows are not the samples in their order (routing, a sequence-first
    layout, a reshape), where coefficients meet other samples' gradients.
    """
    count = len(outputs)
    generator = torch.Generator(outputs.device).manual_seed(problem.seed)
    cotangent = normal_like(outputs.detach(), generator)
    coefficients = normal_like(outputs.detach().new_empty(count), generator)
    weighted = cotangent * coefficients.reshape(-1, *([1] * (outputs.ndim - 1)))
    leaves = dict(problem.chosen_parameters)
    own_outputs = outputs
    if content is not None:  # autograd would let gradients of the parameters themselves wait for other work with them
        leaves = {name: tensor.detach().requires_grad_() for name, tensor in leaves.items()}
        own_outputs = problem.outputs(content, leaves)
    gradients = vjp(
        own_outputs, list(leaves.values()), weighted, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    comparison = _RuleComparison(problem, recorder, coefficients, dict(zip(leaves, gradients)))
    names = _candidates(problem, outputs, recorder, graph)
    agreeing = comparison.agreeing(names, recorder.pull_back(outputs, cotangent, names, retain_graph=True))
    known = {full for name in agreeing for full in parameters_of(problem, name)}
    others = [full for full in problem.parameters if full not in known]
    if others and nodes.parameters_are_told():
        uses = recorder.add_uses(graph, others, count)
        deltas = recorder.pull_back(outputs, cotangent, uses, retain_graph=True)
        for second in (False, True):  # samples first, or second as sequence-first layouts have them
            for name in uses:
                recorder.uses[name].samples_second = second
            agreeing += comparison.agreeing(uses, deltas)
            uses = [name for name in uses if name not in agreeing]
    return agreeing


@dataclass(frozen=True)
class _RuleComparison:
    """What rules give held against autograd's gradients of all samples together, each with its coefficient."""

    problem: OpenProblem
    recorder: Recorder
    coefficients: Tensor
    expected: dict[str, Tensor]

    def agreeing(self, names: list[str], deltas: dict[str, list[Tensor]]) -> list[str]:
        """Return those of the names whose rules agree."""
        tolerance = 1e-4 if self.problem.dtype == torch.float32 else 1e-10
        # Gradients that are nothing but rounding (of biases in front of a normalisation) cannot agree in their digits.
        largest = [gradient.abs().max() for gradient in self.expected.values() if gradient.numel()]
        floor = 1e-2 * torch.stack(largest).max()
        verdicts: dict[str, Tensor] = {}
        for name in names:
            parameters = self.recorder.layers[name].parameters
            values = deltas[name]
            if any(value is None for value in values):
                verdicts[name] = ~torch.stack([self.expected[full].any() for full in parameters.values()]).any()
                continue
            try:
                found = self.recorder.gradients_from_deltas([name])[name]([value[None] for value in values])
                if set(parameters) <= set(found) and all(p.samples == len(self.coefficients) for p in found.values()):
                    pairs = [(found[local], self.expected[full]) for local, full in parameters.items()]
                    near = [_matches(*pair, self.coefficients, tolerance, floor) for pair in pairs]
                    verdicts[name] = torch.stack(near).all()
            except RuntimeError:  # shapes the rule does not know: an unbatched call, a flattened sequence
                continue
        if not verdicts:
            return []
        # Looked at together: a GPU is waited for once.
        return [name for name, right in zip(verdicts, torch.stack(list(verdicts.values())).tolist()) if right]


def _matches(found: SampleGradients, expected: Tensor, coefficients: Tensor, tolerance: float, floor: Tensor) -> Tensor:
    total = found.combine(coefficients[None].to(expected))
    return (total - expected).abs().max() <= tolerance * (expected.abs().max() + floor)
