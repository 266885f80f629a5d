"""The order in which values are improved: one by one, or by a deadline whichever is furthest from its tolerance."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from spiritlevel.analyses.running import MeasureRun
from spiritlevel.inputs.deadline import Deadline
from spiritlevel.inputs.open_problem import OpenProblem

# Of the time that is left, the most that one value is given at a turn while another one waits.
TURN = 0.5
CHEAP = frozenset({"outputs"})  # needs that a forward pass fills


def measure_all(problem: OpenProblem, runs: Sequence[MeasureRun]) -> None:
    """Measure until each value is known well enough, or the time is over where there is a deadline."""
    if problem.deadline is not None:
        _refine_in_time(problem, runs)
        return
    for run in runs:
        run.settle()


def keep_what_is_known(problem: OpenProblem, runs: Sequence[MeasureRun]) -> None:
    """Take every value as far as it was known when the work was interrupted; no sweep is made any more."""
    problem.deadline = problem.deadline or Deadline(1.0)
    problem.deadline.interrupt()
    with contextlib.suppress(KeyboardInterrupt):  # a second one: what was looked at by now
        for run in runs:
            if run.settled:
                continue
            if problem.adding_up.torn:
                run.lose("it was interrupted while the results of a sweep were added up")
            else:
                run.look()
                run.cut_short = True


def _refine_in_time(problem: OpenProblem, runs: Sequence[MeasureRun]) -> None:
    """Look at all measures once, then improve them until each is known well enough or the time is over.

    What takes forward passes alone comes first, then what rests on the diagonal blocks and shares one look.  Of the
    others each has a share of the time, so that none uses up that of the rest.  A turn that would not end in time is
    not begun.
    """
    cheap = [run for run in runs if set(run.measure.needs) <= CHEAP]
    shared = [run for run in runs if "blocks" in run.measure.needs]
    others = [run for run in runs if run not in cheap and run not in shared]
    for run in (*cheap, *shared):
        run.look()
    for place, run in enumerate(others):
        with _at_most(problem, 1 / (len(others) - place + 1)):
            run.look()
    _refine(problem, runs)


def _refine(problem: OpenProblem, runs: Sequence[MeasureRun]) -> None:
    last: MeasureRun | None = None
    for run in runs:
        run.settled = run.distance <= 1
    while waiting := [run for run in runs if not run.settled]:
        # Nobody goes twice while another one waits: a value that does not come nearer would keep all others from it.
        chosen = max((run for run in waiting if run is not last or len(waiting) == 1), key=lambda run: run.distance)
        chosen.settled = not _has_turn(problem, chosen, alone=len(waiting) == 1) or chosen.distance <= 1
        if "blocks" in chosen.measure.needs:  # whose draws are the others' too
            for run in waiting:
                if run is not chosen and "blocks" in run.measure.needs:
                    run.look()
                    run.settled = run.distance <= 1
        last = chosen


def _has_turn(problem: OpenProblem, run: MeasureRun, alone: bool) -> bool:
    """Improve one value; False where nothing more can be done for it in time."""
    if not alone:
        with _at_most(problem, TURN):
            if run.improve():
                return True
    return run.improve()


@contextlib.contextmanager
def _at_most(problem: OpenProblem, share: float) -> Iterator[None]:
    """Give what is done meanwhile a share of the time that is left."""
    whole = problem.deadline
    assert whole is not None
    problem.deadline = whole.share(share)
    try:
        yield
    finally:
        problem.deadline = whole
