"""One streaming sweep that gives everything the diagonal blocks of the Gauss–Newton matrix are asked for.

Batch after batch goes forward, is surveyed where nothing was yet, has its layers' rules and their linearity checked,
and hands the gradients of the factor's columns to the accumulators.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from spiritlevel.engine.operators.every_sample import vet
from spiritlevel.engine.passes.accumulating import Accumulators, CurvatureSums
from spiritlevel.engine.passes.graph import Graph, look_at
from spiritlevel.engine.passes.linearity import Linearity
from spiritlevel.engine.passes.recording import Recorder
from spiritlevel.engine.passes.reduced_precision import ReducedPrecision, TooCoarse, keep_float32, reduces
from spiritlevel.engine.passes.rules import Rules, WrongGuess, errors_as_wrong_guesses
from spiritlevel.engine.passes.side_stream import mark, side_stream
from spiritlevel.engine.passes.uniting import unite_findings, unite_sums
from spiritlevel.inputs.batch import Batch
from spiritlevel.inputs.deadline import TimeSpent
from spiritlevel.inputs.losses import Factor
from spiritlevel.inputs.open_problem import OpenProblem
from spiritlevel.inputs.process.ranks import Ranks
from spiritlevel.inputs.survey import Surveyor, checked_outputs
from spiritlevel.inputs.sweeping import swept_together

# Columns of the factor up to this number are used one by one, so that sums over them are exact; beyond it they are
# sketched.
COLUMN_LIMIT = 32
SKETCH_DRAWS = 8  # of them a sweep, until their error is found too large
# By a deadline the first sketch may take this share of the gradients that fit in, for the remainder is looked at too.
# The checks of its sweep and each draw cost about so many.
FIRST_SHARE, CHECKS_COST, SKETCH_COST = 0.25, 3.0, 1.8
FEWEST_SKETCHES = 4
SKETCHING = "sketching the loss's curvature"  # what a sweep of more of them is called
# Batches that a GPU is given to work on before the first one's checks are waited for.
AHEAD = 2

ColumnMaker = Callable[[OpenProblem, Batch, Tensor, int], Factor]


def gauss_newton_columns(
    problem: OpenProblem,
    batch: Batch,
    outputs: Tensor,
    seed: int = 0,
    *,
    draws: int = SKETCH_DRAWS,
    first_draw: int = 0,
) -> Factor:
    """Return the columns of the loss's second derivative: their squares sum to the Gauss–Newton matrix.

    Where these are sketched there are so many ``draws``, and ``first_draw`` is where those of this sweep begin.
    """
    return problem.loss.factor(
        outputs,
        batch.content,
        limit=COLUMN_LIMIT,
        generator_seed=seed,
        indices=batch.indices,
        draws=draws,
        first_draw=first_draw,
    )


def fisher_columns(problem: OpenProblem, batch: Batch, outputs: Tensor, seed: int = 0) -> Factor:
    """Return the loss's gradient as the one column: its square is the empirical Fisher information."""
    leaf = outputs.detach().requires_grad_()
    losses, _ = problem.loss.per_sample(leaf, batch.content)
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    ones = torch.ones(1, batch.count, dtype=outputs.dtype, device=outputs.device)
    return Factor(columns=gradient[None], signs=ones, psd=True, exact=True)


def curvature_sweep(
    problem: OpenProblem,
    wants: frozenset[str] = frozenset(),
    *,
    columns_of: ColumnMaker | None = None,
    beside: ColumnMaker | None = None,
    verify: bool = True,
    seed: int = 0,
    rounding: float = 0.0,
) -> CurvatureSums | None:
    """Sweep the data once and return the sums asked for; ``verify`` checks which blocks are the Hessian's too.

    ``seed`` draws the sketches of a factor with too many columns.  ``beside`` makes other columns, whose diagonal and
    mean are summed on the way.  Where this is the first sweep over the data it takes the survey too.  ``rounding`` is
    the relative error that the problem's ``precision`` may bring; with none all is in the problem's dtype.  None where
    samples influence each other: they have no columns of their own.
    """
    columns = columns_of or partial(gauss_newton_columns, draws=draws_in_time(problem))

    def swept(ahead: bool) -> CurvatureSums | None:
        return _CurvaturePass(problem, wants, columns, beside, verify, seed, ahead, rounding=rounding).run()

    def swept_unless_wrong() -> CurvatureSums | None:
        try:
            return swept(ahead=_goes_ahead(problem.device))
        except WrongGuess:
            return swept(ahead=False)

    try:
        return swept_unless_wrong()
    except TooCoarse as why:
        keep_float32(problem, str(why))
        return swept_unless_wrong()


def draws_in_time(problem: OpenProblem) -> int:
    """Return how many draws the first sketch has: fewer where the time is short."""
    if problem.deadline is None:
        return SKETCH_DRAWS
    room = FIRST_SHARE * problem.fitting("gradient")
    return int(min(max((room - CHECKS_COST) / SKETCH_COST, FEWEST_SKETCHES), SKETCH_DRAWS))


def _goes_ahead(device: torch.device) -> bool:
    return device.type == "cuda"


def sketch_more(problem: OpenProblem, sums: CurvatureSums, sweeps: int, seed: int, rounding: float = 0.0) -> int:
    """Add draws of the sketch, so many sweeps or as many as there is time for; return how many."""
    draws = SKETCH_DRAWS if problem.deadline is None else FEWEST_SKETCHES  # so that a sweep is done sooner
    for done in range(sweeps):
        columns_of = partial(gauss_newton_columns, draws=draws, first_draw=sums.draws)
        try:
            more = curvature_sweep(
                problem, sums.wants, columns_of=columns_of, verify=False, seed=seed, rounding=rounding
            )
        except TimeSpent:
            return done
        assert more is not None
        with problem.adding_up:
            sums.extend(more)
    return sweeps


class _Influence(Exception):
    """Samples influence each other, so that they have no columns of their own."""


@dataclass(frozen=True)
class _Seen:
    """A batch after its forward pass."""

    batch: Batch
    outputs: Tensor
    recorder: Recorder
    factor: Factor
    graph: Graph


class _CurvaturePass:
    """One sweep and its checks.

    A processor checks each batch before it counts.  A GPU is kept busy: it goes ``ahead`` by rules that are guessed
    from the first batch's operations, and that batch is checked beside the work on the next.  Until then whatever goes
    wrong only means that the sweep begins again, with the checks first.
    """

    def __init__(
        self,
        problem: OpenProblem,
        wants: frozenset[str],
        columns_of: ColumnMaker,
        beside: ColumnMaker | None,
        verify: bool,
        seed: int,
        ahead: bool,
        *,
        rounding: float = 0.0,
    ) -> None:
        self.problem, self.columns_of, self.beside, self.seed = problem, columns_of, beside, seed
        self.ahead = ahead
        self.surveyor = Surveyor(problem) if problem.may_be_surveyed_on_the_way else None
        self.rules = Rules(problem)
        self.sweep = Accumulators(problem, wants, self.rules)
        self.other = None if beside is None else Accumulators(problem, frozenset({"diagonal", "mean"}), self.rules)
        self.reduced = (
            ReducedPrecision(problem, wants, self.rules, rounding, seed) if reduces(problem, rounding) else None
        )
        self.linearity = Linearity(problem) if verify else None
        self.first: tuple[_Seen, torch.cuda.Event | None] | None = None  # the first batch, while it is not yet checked

    def run(self) -> CurvatureSums | None:
        """Return the sums, None where samples influence each other."""
        problem = self.problem
        if self.surveyor is None and problem.survey.coupled:
            return None
        what = "curvature" if self.linearity is not None else SKETCHING
        try:
            with swept_together(problem, what) as group:
                self._sweep(what)
        except _Influence:
            return None
        self._unite(group)
        problem.spent["forward"] += 1
        problem.spent["column"] += self.sweep.column_count
        if self.surveyor is not None:
            problem.known_survey = self.surveyor.survey()
        weights = self.sweep.weights.whole()
        found = self.sweep.result(self.linearity)
        if self.reduced is not None:
            problem.spent["column"] += self.reduced.column_count
            problem.spent["forward"] += problem.precision == "bfloat16"
            found.rounding = self.reduced.rounding(found, weights)
        if self.other is not None:
            problem.spent["column"] += self.other.column_count
            found.beside = self.other.result(None)
        return found

    def _sweep(self, what: str) -> None:
        for number, batch in enumerate(self.problem.batches(what), 1):
            with errors_as_wrong_guesses() if self.ahead else contextlib.nullcontext():
                self._take(batch)
            if self.reduced is not None and number == 1:
                self.reduced.judge(self.sweep)
            if number == AHEAD:
                self._count_first()
        self._count_first()
        if self.linearity is not None:
            self.linearity.finish()

    def _unite(self, group: Ranks) -> None:
        """Make of what every rank found what there is in all the data."""
        if self.surveyor is not None:
            self.surveyor.unite(group)
        unite_findings(self.rules, self.linearity, group)
        unite_sums(self.sweep, group)
        if self.other is not None:
            unite_sums(self.other, group)
        if self.reduced is not None:
            unite_sums(self.reduced.gap, group)
            self.reduced.column_count = max(group.meet("columns of the check", self.reduced.column_count))

    def _take(self, batch: Batch) -> None:
        problem, surveyor = self.problem, self.surveyor
        problem.watch.values_left_the_graph = False
        with Recorder(problem) as recorder:
            outputs = problem.outputs(batch.content) if surveyor is None else checked_outputs(problem, batch)
        if surveyor is not None:
            weights = surveyor.add(batch, outputs)
            if not self.ahead:
                self._require_sound(batch, outputs)
        else:
            losses, weights = problem.loss.per_sample(outputs.detach(), batch.content)
            problem.agrees(batch, losses)
        factor = self.columns_of(problem, batch, outputs.detach(), self.seed)
        if not self.sweep.sums:
            self.sweep.begin(factor)
        graph = look_at(outputs)
        if self.ahead and problem.watch.values_left_the_graph:
            raise WrongGuess
        vet(problem, batch, graph, order=1)
        recorder.stop_after_poolings(graph)
        seen = _Seen(batch, outputs, recorder, factor, graph)
        if not self.ahead:
            self._check(seen, self.rules.choose)
        elif self.first is None:
            self.rules.guess(outputs, recorder, factor, graph)
            self.rules.follow(batch, recorder, graph)
            self.first = seen, mark(problem.device)
        else:
            self.rules.follow(batch, recorder, graph)
        if self.reduced is None:
            self.sweep.take(batch, weights, factor, [self.sweep.way_back(outputs, recorder)])
        else:
            self.reduced.take(self.sweep, batch, weights, outputs, recorder, factor)
        if self.beside is not None and self.other is not None:
            factor = self.beside(problem, batch, outputs.detach(), self.seed)
            if not self.other.sums:
                self.other.begin(factor)
            self.other.take(batch, weights, factor, [self.other.way_back(outputs, recorder)])

    def _require_sound(self, batch: Batch, outputs: Tensor) -> None:
        """Refuse a batch that cannot be measured, or whose samples influence each other."""
        assert self.surveyor is not None
        self.surveyor.look(batch, outputs)
        if self.surveyor.coupled:
            raise _Influence

    def _check(self, seen: _Seen, decide: Callable[[Batch, Tensor, Recorder, Factor, Graph], None]) -> None:
        decide(seen.batch, seen.outputs, seen.recorder, seen.factor, seen.graph)
        if self.linearity is not None:
            covered = set(self.rules.covered)
            self.linearity.check(seen.outputs, seen.recorder, seen.graph, covered, self.rules.few)
        self.rules.few = None

    def _count_first(self) -> None:
        """Check now what the work on the first batches went by."""
        if self.first is None:
            return
        (seen, forwarded), self.first = self.first, None
        self.ahead = False
        with side_stream(self.problem.device, forwarded):
            if self.surveyor is not None:
                self._require_sound(seen.batch, seen.outputs)
            self._check(seen, self.rules.confirm)
