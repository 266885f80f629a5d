"""The remainder from the curved operations themselves: columns drawn at the activations, pulled back like the loss's.

A probe of the parameters is shared by all samples, so its error does not fall with their number.  Signs at the
activations are every sample's own, and one draw serves every form at once: traces, diagonals, rows, columns, relative
flatness and each sample's trace.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from spiritlevel.engine.operations.check import agreeing_layers
from spiritlevel.engine.operations.drawing import CurvedBatch, columns_of, loss_gradient
from spiritlevel.engine.operations.finding import Edge, FoundOperations, find_operations
from spiritlevel.engine.operators.memory import samples_that_fit
from spiritlevel.engine.passes.accumulating import Accumulators, Portion
from spiritlevel.engine.passes.bent_parameters import BentParameters, added
from spiritlevel.engine.passes.chosen_samples import DrawsInPart
from spiritlevel.engine.passes.graph import Graph, look_at
from spiritlevel.engine.passes.recording import Recorder, parameters_of, uses_among
from spiritlevel.engine.passes.remainder import by_layer
from spiritlevel.engine.passes.rules import Rules
from spiritlevel.engine.passes.sample_spread import SampleSpread, column_form
from spiritlevel.engine.passes.sampled_form import Independent, Pooled, Running, SampledForm, SpreadOfDraws
from spiritlevel.engine.passes.tied_columns import TiedColumns
from spiritlevel.engine.passes.uniting import unite_sums
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.contents import pick_samples
from spiritlevel.inputs.open_problem import OpenProblem

# Samples on which the operations are held against autograd.
TRIED = 4
# Numbers of columns, and of gradients at layers' outputs, that a CPU pulls back in one step.
TOGETHER_NUMBERS = 8_000_000
# How often a draw's columns, and what they give at the layers' outputs, are held at one time, about.
COPIES_OF_COLUMNS, COPIES_OF_GRADIENTS = 5.0, 2.5
SAMPLING = "sampling the remainder"  # what a sweep of draws is called
# What the accumulators call a form, and what it is called by those who ask.
FORMS = {"trace": "entries", "rows": "rows", "columns": "columns", "whole": "whole", "transposed": "transposed"}


class OperationSampling(DrawsInPart):
    """Draws of the remainder over the layers whose operations are known, as many as were asked for so far."""

    what = SAMPLING

    def __init__(self, problem: OpenProblem, rules: Mapping[str, bool], wants: frozenset[str], seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.keeps_entries = "diagonal" in wants
        self.wants = (wants | ({"rows"} if "whole" in wants else set())) & {"diagonal", "rows", "columns", "transposed"}
        self.rules = dict(rules)  # layers and parameters' uses, and whether their samples come second
        self._agreed: dict[int, list[str]] = {}  # by the signature of a graph
        self._mapped = True  # until an operation shows that columns cannot be mapped over
        self._room = Rules(problem).room_on_gpu
        self.begin_whole()
        self._most: int | None = None  # samples that are drawn for at once; None for whole batches
        self.forget()
        if rules:
            self._keep(self._accounted_for())

    def restrict(self, names: list[str]) -> bool:
        """Keep some layers only; True where that cost draws."""
        if list(self.rules) == names:
            return False
        self._keep(names)
        self.forget()
        return True

    def forget(self) -> None:
        self.draws = 0
        self.sums: dict[tuple[str, str], Pooled] = {}
        self.parts: dict[tuple[str, str], Running] = {}
        self.by_layer: dict[str, Pooled] = {}
        self.network = Pooled()
        self.samples = Running()  # each sample's own trace
        self.spread: SampleSpread | None = None  # of one draw
        self.freedom = 0  # degrees of, with which that was found

    @property
    def members(self) -> list[str]:
        """The layers and parameters' uses that are sampled so."""
        return list(self.rules)

    @property
    def names(self) -> list[str]:
        """The parameters of the layers that are sampled so."""
        return [full for name in self.rules for full in parameters_of(self.problem, name)]

    def _keep(self, names: list[str]) -> None:
        self.rules = {name: second for name, second in self.rules.items() if name in names}

    # --- which layers --------------------------------------------------------------------------------------------

    def _accounted_for(self) -> list[str]:
        """Return the layers whose remainder the operations of the first batch account for."""
        with self.problem.session():
            batch = next(iter(self.problem.batches()))
            outputs, _, graph = self._forward(batch)
            return self._agreeing(batch, outputs, graph)

    def _forward(self, batch: Batch) -> tuple[Tensor, Recorder, Graph]:
        with Recorder(self.problem) as recorder:
            outputs = self.problem.outputs(batch.content)
        graph = look_at(outputs)
        recorder.stop_after_poolings(graph)
        recorder.add_uses(graph, uses_among(self.rules), batch.count)
        for name, uses in recorder.uses.items():
            uses.samples_second = self.rules[name]
        return outputs, recorder, graph

    def _find(self, graph: Graph, names: list[str], samples: int) -> tuple[FoundOperations, list[str]]:
        """Return the operations behind some rules' parameters, and the rules that they are all of."""
        bits = self._bits(names)
        found = find_operations(graph, bits, samples)
        if found.missed:
            tensors = self.problem.chosen_parameters
            names = [
                name
                for name in names
                if not any(bits[id(tensors[full])] & found.missed for full in parameters_of(self.problem, name))
            ]
            found = find_operations(graph, self._bits(names), samples)
        return found, names

    def _bits(self, names: list[str]) -> dict[int, int]:
        fulls = [full for name in names for full in parameters_of(self.problem, name)]
        return {id(self.problem.chosen_parameters[full]): 1 << place for place, full in enumerate(fulls)}

    def _agreeing(self, batch: Batch, outputs: Tensor, graph: Graph) -> list[str]:
        """Return the layers that the operations of a batch account for, looked at once for all batches of one kind."""
        if graph.signature not in self._agreed:
            places = torch.linspace(0, batch.count - 1, min(TRIED, batch.count), device="cpu").long()
            few = Batch(pick_samples(batch.content, places), batch.start, len(places))
            some, recorder, own = self._forward(few)
            if own.signature != graph.signature:
                few, some, own = batch, outputs, graph
            try:
                found, candidates = self._find(own, list(self.rules), few.count)
                bits = self._bits(candidates)
                agreed = agreeing_layers(self.problem, few, some, found.operations, candidates, bits)
                numbers = COPIES_OF_COLUMNS * columns_of(found.operations) + COPIES_OF_GRADIENTS * recorder.numbers
                self._most = samples_that_fit(self.problem, numbers / few.count)
            except (RuntimeError, NotImplementedError) as error:  # an operation without a second derivative
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                agreed = []
            self._agreed[graph.signature] = agreed
        known = self._agreed[graph.signature]
        return [name for name in self.rules if name in known]

    # --- drawing -------------------------------------------------------------------------------------------------

    def more(self, draws: int) -> None:
        """Add so many draws of every sample, in one sweep; a batch of another kind may cost layers, and all draws."""
        while self.rules and not self._swept(draws):
            self.forget()

    def _swept(self, draws: int) -> bool:
        problem = self.problem
        sweep = Accumulators(problem, self.wants, Rules(problem))
        sweep.begin_draws(draws, self.names)
        names: list[str] | None = None  # of layers, where a batch is of another kind
        with problem.sweep(SAMPLING) as group:
            for batch in self._batches(draws):
                outputs, recorder, graph = self._forward(batch)
                losses, weights = problem.loss.per_sample(outputs.detach(), batch.content)
                problem.agrees(batch, losses)
                agreeing = self._agreeing(batch, outputs, graph)
                if agreeing != list(self.rules):
                    names = agreeing
                    break
                found, _ = self._find(graph, agreeing, batch.count)
                curved = CurvedBatch(batch, outputs, loss_gradient(problem, batch, outputs), found.operations)
                bent = BentParameters(problem, curved, recorder, agreeing, outputs)
                sweep.add(batch, weights, self._portions(curved, bent, recorder, draws), draws=draws)
        kept = [own for own in group.meet("layers of a batch", names) if own is not None]
        if kept:
            self._keep([name for name in self.rules if all(name in own for own in kept)])
            return False
        unite_sums(sweep, group, None if self.chosen is None else self.chosen.places)
        for kind, number in (("forward", 1), ("column", 1 + 2 * draws)):
            self.spent[kind] = self.spent.get(kind, 0.0) + self.share * number
        with problem.adding_up:
            self._take(sweep, draws)
        return True

    def _batches(self, draws: int) -> Iterator[Batch]:
        source = self.problem if self.chosen is None else self.chosen
        for batch in source.batches(SAMPLING, draws):
            yield from batch.pieces(self._most or batch.count)

    def _portions(self, curved: CurvedBatch, bent: BentParameters, recorder: Recorder, draws: int) -> Iterator[Portion]:
        names = [name for name in self.rules if name in recorder.edges]
        from_deltas = recorder.gradients_from_deltas(names)
        count = curved.batch.count
        width = max(1, (self._room or TOGETHER_NUMBERS) // (2 * max(curved.numbers + recorder.numbers, 1)))
        for start in range(0, draws, width):
            folds = slice(start, min(start + width, draws))
            size = folds.stop - folds.start
            drawn = range(self.draws + folds.start, self.draws + folds.stop)
            columns, own_columns = curved.columns(self.seed, drawn), bent.columns(self.seed, drawn)
            tied = TiedColumns(self.problem, columns.tied, self.rules, count, size)
            own_signs = torch.tensor([1.0, -1.0]).to(self.problem.device, non_blocking=True)
            signs = own_signs.repeat(size)[:, None].expand(-1, count)
            for name, deltas in self._pulled_back(recorder, columns.entries, names, size).items():
                some = next((delta for delta in deltas if delta is not None), None)
                if some is None:  # nothing curved lies above this layer on this batch
                    alone = [full for full in parameters_of(self.problem, name) if full in own_columns]
                    yield from ((folds, signs, full, slice(0, count), own_columns[full]) for full in alone)
                    continue
                filled: list[Any] = deltas
                if name not in recorder.uses:
                    shapes = recorder.shapes_of_stops(name)
                    filled = [some.new_zeros(2 * size, *s) if d is None else d for d, s in zip(deltas, shapes)]
                parameters = recorder.layers[name].parameters
                for local, gradients in from_deltas[name](filled).items():
                    if local in parameters:
                        full = parameters[local]
                        whole = added(own_columns, full, tied.added(full, gradients))
                        yield folds, signs, full, slice(0, count), whole
            del columns, own_columns, tied  # before the next ones are made

    def _pulled_back(
        self, recorder: Recorder, columns: Mapping[Edge, Tensor], names: list[str], draws: int
    ) -> dict[str, list[Tensor | None]]:
        if self._mapped and draws > 1:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error")  # torch warns where it would loop over the columns itself
                    return recorder.pull_back_from(columns, names, together=True)
            except Exception:  # an operation that cannot be mapped raises in its own way
                self._mapped = False
        return recorder.pull_back_from(columns, names, together=False)

    def _take(self, sweep: Accumulators, draws: int) -> None:
        found = sweep.result(None, float(self.problem.survey.weights.sum()))
        spread = found.spread
        assert spread is not None
        own, before = draws - 1, self.freedom
        self.spread = spread if self.spread is None else self.spread.pooled(before, spread, own)
        self.freedom += own
        sharers = {form: self.spread.sharers(form) for form in FORMS}
        for full, sums in found.parameters.items():
            totals = {
                "trace": sums.trace,
                "rows": None if sums.rows is None else sums.rows.sum(1),
                "columns": None if sums.columns is None else sums.columns.sum(1),
                "whole": sums.whole,
                "transposed": sums.transposed,
            }
            for form, kind in FORMS.items():
                total = totals[form]
                if total is not None:
                    variance = spread.variance(form, {full: 1.0})
                    self.sums.setdefault((kind, full), Pooled()).add(total.cpu(), variance, sharers[form])
            for kind, parts in (("entries", sums.diagonal), ("rows", sums.rows), ("columns", sums.columns)):
                if parts is not None:
                    self.parts.setdefault((kind, full), Running()).add(parts)
        for name, fulls in by_layer(self.problem, self.names).items():
            traces = [found.parameters[full].trace.cpu() for full in fulls]
            variance = spread.variance("trace", dict.fromkeys(fulls, 1.0))
            self.by_layer.setdefault(name, Pooled()).add(torch.stack(traces).sum(0), variance, sharers["trace"])
        traces = [sums.trace.cpu() for sums in found.parameters.values()]
        variance = spread.variance("trace", dict.fromkeys(found.parameters, 1.0))
        self.network.add(torch.stack(traces).sum(0), variance, sharers["trace"])
        assert found.sample_folds is not None
        self.samples.add(found.sample_folds)
        self.draws += draws

    def form(self, kind: str) -> SampledForm:
        """Return one kind of form of all that was drawn."""
        return SampledForm(
            sums={full: sums for (own, full), sums in self.sums.items() if own == kind},
            parts={full: parts for (own, full), parts in self.parts.items() if own == kind},
            layers=self.by_layer if kind == "entries" else {},
            network=self.network,
            joint=Independent()
            if self.spread is None
            else SpreadOfDraws(self.spread, column_form(kind), self.draws, self.freedom),
            probes=self.draws,
        )
