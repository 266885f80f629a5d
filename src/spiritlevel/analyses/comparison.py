"""Comparing networks on the same data: which is flatter by each measure, and would a rescaling say otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from spiritlevel.analyses.agreement import agreement, margins_of
from spiritlevel.analyses.answering import answer_of_many
from spiritlevel.analyses.auditing import ALSO, Strengths
from spiritlevel.analyses.changed_copies import of_measures
from spiritlevel.analyses.comparable import Networks, declared_for, labelled, refuse_different, refuse_different_data
from spiritlevel.analyses.contrasting import contrasts_of
from spiritlevel.analyses.costing import costed
from spiritlevel.analyses.holding import Check, declared_holding, keep_what_fits
from spiritlevel.analyses.measure_settings import MeasureSettings, chosen_settings, toleranced_settings
from spiritlevel.analyses.measuring import Measures, measure, measured
from spiritlevel.analyses.reading import Finding, reading_of
from spiritlevel.analyses.sample_groups import measured_by_group
from spiritlevel.analyses.where_they_stand import by_standing, off_minimum, untold, untrained
from spiritlevel.engine.problem import Problem
from spiritlevel.inputs.deadline import Deadline, TimeSpent, deadline_of
from spiritlevel.inputs.open_problem import Measurable, OpenProblem, open_problem
from spiritlevel.inputs.steps import Steps, told_steps
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import select, words_of
from spiritlevel.measures.workbench import Workbench
from spiritlevel.results import Report
from spiritlevel.results.compared import Comparison
from spiritlevel.results.contrasts import Contrast, largest_of
from spiritlevel.results.rows import ComparisonRow, Holding
from spiritlevel.results.runs_table import RunsTable, described_by
from spiritlevel.values.documented import documented_like
from spiritlevel.values.errors import UsageError
from spiritlevel.values.estimate import Estimate

# About how much work groups of samples, trying rescalings and the search for one measure are, beside one measurement.
GROUPS_WORK, CHECK_WORK, ROW_WORK = 0.7, 1.4, 0.6


@costed
@documented_like(measure)
def compare(
    networks: Networks | Iterable[str | os.PathLike[str] | Report],
    measures: Measures = "default",
    *,
    test: Any = None,
    settings: MeasureSettings | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    groups: int = 10,
    strengths: Strengths = ("usual",),
    search: bool = True,
    dtype: str | torch.dtype | None = None,
    headers: Mapping[str, Mapping[str, Any]] | None = None,
    runs: RunsTable | None = None,
    seconds: float | Deadline | None = None,
    progress: bool = False,
) -> Comparison:
    """Compare two or more networks: ``compare({"a": problem_a, "b": problem_b})``, or saved reports or their paths.

    All must have been measured on the same samples with the same loss.  Measures without a value of their own for each
    sample are measured again on ``groups`` disjoint parts of the data, for an error over samples.  With networks at
    hand rescaled copies show which orderings survive, as in an `audit`, and a rescaling that reverses one is measured
    on the rescaled network itself; saved reports have only what the measures declare.

    Parameters
    ----------
    networks : mapping, or list of paths or reports
        Problems, reports or paths of saved reports by label; or reports and paths alone, which are called by their
        weights' names and by what the paths do not share. All problems, or all reports.
    measures : str, Measure or list of these
        As for `measure`; of reports, all that they have in common.
    test : tensors, a Dataset, a DataLoader or batches
        Data on which loss and accuracy are taken beside; with problems only.
    seed : int
        Seed of everything that is drawn.
    groups : int
        Parts of the data for errors over samples.
    strengths : list of str or mapping
        Factors of the rescalings that are tried, as for `audit`.
    search : bool
        Whether to look for the smallest rescaling that reverses an ordering.
    dtype : str or torch.dtype
        Precision of the networks that are rescaled: "float64" or "float32" for copies, None for their own.
    headers : mapping
        What to add to each network's report, by label: model, weights, data, trained.
    runs : path, data frame or mapping
        Which run each network is of and where in it: a CSV file or data frame with the columns path, run, epoch or
        step, group (runs that differ in their seed) and test_accuracy, or a mapping from label to run.
    seconds : float
        By when to answer; half of it is for the networks themselves, and a quarter each for the groups and for the
        rescaled copies.

    Returns
    -------
    Comparison
        Every measure side by side, which network is flatter by it, and whether that survives rescaling.

    Raises
    ------
    UsageError
        There are fewer than two networks, problems and reports together, or networks with other data or another loss.
    SpiritlevelError
        A network cannot be measured on its data.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> data = sl.datasets.load("digits").subset(range(100))
    >>> networks = {}
    >>> for name, size in {"small batch": 5, "large batch": 100}.items():
    ...     model = sl.nets.build("digits_mlp", seed=0)
    ...     record = sl.training.train(model, data, steps=500, batch_size=size)
    ...     networks[name] = sl.Problem(model, data)
    >>> found = sl.compare(networks, ["hessian_trace", "rho_sum"], search=False)
    >>> found.rows["hessian_trace"].contrasts[0].words
    '1.66 (1.29 to 2.13)'
    >>> found.flatter("hessian_trace"), found.rows["hessian_trace"].holding.kind
    ('small batch', 'changes')
    """
    given, deadline = labelled(networks), deadline_of(seconds)
    if len(given) < 2:
        raise UsageError(f"a comparison needs at least two networks; found {len(given)}")
    problems = {label: open_problem(item) for label, item in given.items() if isinstance(item, Measurable)}
    if problems and len(problems) < len(given):
        raise UsageError("a comparison takes problems or reports, not both; measure the problems first")
    if not problems:
        if test is not None:
            raise UsageError("test data needs the networks, and only their reports were given; leave test out")
        reports = {label: item for label, item in given.items() if isinstance(item, Report)}
        reports = reports if runs is None else described_by(reports, runs)
        return assemble(reports, declared_for(reports), seed=seed)
    chosen = select(measures)
    chosen_settings(chosen, settings or {})  # refused before any work is done
    values = _flat(settings or {})
    refuse_different_data(problems)
    with told_steps(progress, work_of_comparison(len(problems), len(chosen))) as steps:
        for problem in problems.values():
            problem.progress = steps.hook if progress else None
        known: dict[str, tuple[Report, Workbench]] = {}
        for place, (label, problem) in enumerate(problems.items()):
            steps.begin(f"measuring {label}", 1.0)
            known[label] = measured(
                problem,
                chosen,
                settings=values,
                seed=seed,
                tolerance=tolerance,
                # The rest takes about as long again as all networks together.
                seconds=None if deadline is None else deadline.elsewhere(1 / (2 * len(problems) - place)),
                also=ALSO,
            )
            keep_what_fits(known, label, chosen, values, seed=seed, tolerance=tolerance)
        reports = {label: report for label, (report, _) in known.items()}
        for label, more in (headers or {}).items():
            reports[label] = reports[label].described(**more)
        reports = reports if runs is None else described_by(reports, runs)
        first = next(iter(reports.values()))
        rest = [own for own in chosen if own.sharper_when and own.name not in first.per_sample]
        tested = _tested(problems, test)
        _give(problems, deadline, 1 / 2)
        steps.begin(f"measuring groups of samples, for errors of {len(rest)} measures", GROUPS_WORK * len(problems))
        by_group = measured_by_group(
            problems,
            rest,
            groups,
            settings=toleranced_settings(rest, of_measures(rest, values), tolerance),
            known={label: bench for label, (_, bench) in known.items()},
            seed=seed,
            tolerance=tolerance,
        )
        _give(problems, deadline, 1)
        check, not_tried = None, ""
        steps.begin("trying rescalings", CHECK_WORK)
        try:
            check = Check(
                problems, known, chosen, values, strengths, search=search, dtype=dtype, seed=seed, tolerance=tolerance
            )
        except TimeSpent as error:
            not_tried = (
                f"Which orderings survive rescaling is what measures declare, not tried on these networks: {error}."
            )
        found = assemble(
            reports,
            {own.name: own for own in chosen},
            seed=seed,
            problems=problems,
            by_group=by_group,
            check=check,
            test=tested,
            steps=steps,
        )
        if check is not None:
            check.release()
        for problem in problems.values():
            problem.progress = None
    notes = [not_tried] if not_tried else []
    if deadline is not None and rest and groups > 1 and not by_group:
        notes.append("There was no time for errors over samples of measures without a value of each sample.")
    if deadline is not None and check is not None and deadline.left <= 0:
        notes.append(f"The search for rescalings that reverse an ordering was cut short: {deadline.words}.")
    return replace(found, notes=[*found.notes, *notes]) if notes else found


def work_of_comparison(networks: int, measures: int) -> float:
    """Return about how many measurements of a network a comparison comes to, where values follow."""
    return networks * (1 + GROUPS_WORK) + CHECK_WORK + ROW_WORK * measures


def _give(problems: Mapping[str, OpenProblem], deadline: Deadline | None, share: float) -> None:
    """Let what is done next with the networks take a share of the time that is left."""
    for problem in problems.values():
        problem.deadline = None if deadline is None else deadline.elsewhere(share)


def assemble(
    reports: Mapping[str, Report],
    measures: Mapping[str, Measure],
    *,
    seed: int = 0,
    problems: Mapping[str, OpenProblem] | None = None,
    by_group: Mapping[str, Sequence[Mapping[str, Estimate]]] | None = None,
    check: Check | None = None,
    test: dict[str, dict[str, Any]] | None = None,
    steps: Steps | None = None,
) -> Comparison:
    """Return the comparison of reports on the same data; ``check`` decides by measuring whether orderings hold."""
    labels = list(reports)
    refuse_different(reports)
    names = [name for name in reports[labels[0]] if all(name in report for report in reports.values())]
    if not names:
        raise UsageError("the reports have no measure in common, so there is nothing to compare")
    weights = next(iter(problems.values())).survey.weights if problems else None
    rows = {}
    for name in names:
        if steps is not None:
            steps.begin(f"comparing by {words_of(name, reports[labels[0]].title(name))}", ROW_WORK)
        rows[name] = _row(name, reports, measures.get(name), weights, by_group or {}, seed, check)
    counted = [row for row in rows.values() if row.holding.kind not in _NOT_COUNTED]
    findings = [_finding(row, measures.get(row.name)) for row in counted]
    initial, away = untrained(reports), by_standing(reports, "no")
    bins, margins = margins_of(reports, problems)
    left_out = sorted({name for report in reports.values() for name in report} - set(names))
    notes = [f"Not in every report, so not compared: {', '.join(left_out)}."] if left_out else []
    notes += untold(reports)
    if check is not None:
        notes += check.notes
    found = Comparison(
        reports=dict(reports),
        rows=rows,
        reading=reading_of(labels, findings, untrained=initial, not_at_minimum=away),
        headings=[*([initial] if initial else []), *off_minimum(reports, away)],
        notes=notes,
        agreement=agreement(rows, reports),
        margin_bins=bins,
        margins=margins,
        test=test or {},
    )
    return replace(found, answer=answer_of_many(found, measures)) if len(labels) > 2 else found


def _flat(settings: MeasureSettings) -> dict[str, Any]:
    """Return settings by "measure.option", whichever way they were written."""
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        flat |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


_NOT_COUNTED = ("no_direction", "not_comparable")


def _row(
    name: str,
    reports: Mapping[str, Report],
    own: Measure | None,
    weights: Tensor | None,
    by_group: Mapping[str, Sequence[Mapping[str, Estimate]]],
    seed: int,
    check: Check | None,
) -> ComparisonRow:
    labels = list(reports)
    title = reports[labels[0]].title(name)
    sharper_when = own.sharper_when if own is not None else ""
    settings = [report.settings.get(name, {}) for report in reports.values()]
    if any(each != settings[0] for each in settings):
        return ComparisonRow(
            name, title, sharper_when, (), Holding("not_comparable", "measured with different settings")
        )
    present = tuple(
        contrasts_of(
            name,
            reports,
            sharper_when,
            statistic=own.statistic if own is not None else "mean",
            weights=weights,
            groups=by_group,
            seed=seed,
        )
    )
    row = ComparisonRow(name, title, sharper_when, present, Holding("undecided", "difference within its error"))
    missing = [label for label in labels if all(label not in (each.first, each.second) for each in present)]
    if missing and (len(labels) == 2 or len(missing) > len(labels) - 2):
        return replace(row, holding=Holding("not_comparable", "not measured for every network"))
    if not sharper_when:
        return replace(row, holding=Holding("no_direction", "larger is neither flatter nor sharper"))
    flattest = row.flattest
    if flattest is None:
        decided = sum(each.decided for each in present)
        if len(labels) > 2:
            words = f"no single flattest: {decided} of {len(present)} pairs are told apart"
            return replace(row, holding=Holding("undecided", words))
        return row
    closest = _closest_rival(flattest, present)
    holding = declared_holding(own) if check is None or own is None else check.holding(own, (flattest, closest))
    return replace(row, holding=holding)


def _closest_rival(flattest: str, contrasts: Sequence[Contrast]) -> str:
    own = [each for each in contrasts if flattest in (each.first, each.second)]
    nearest = min(own, key=lambda each: each.factor or abs(each.interval.value))
    return nearest.second if nearest.first == flattest else nearest.first


def _finding(row: ComparisonRow, own: Measure | None) -> Finding:
    reversal = row.holding.reversal
    return Finding(
        words=words_of(row.name, row.title) if own is None else own.words,
        flatter=row.flattest,
        largest=largest_of(row.contrasts),
        decided=sum(each.decided for each in row.contrasts),
        pairs=len(row.contrasts),
        holds="" if row.flattest is None else row.holding.kind,
        checked=row.holding.checked,
        factor=None if reversal is None else reversal.factor,
        kind="" if reversal is None else reversal.kind,
        layers=2 if reversal is None else len(reversal.layers),
    )


def _tested(problems: Mapping[str, OpenProblem], test: Any) -> dict[str, dict[str, Any]]:
    """Return loss and accuracy of every network on the test data."""
    found: dict[str, dict[str, Any]] = {}
    for label, problem in problems.items() if test is not None else ():
        other = Problem(
            problem.model,
            test,
            problem.loss,
            forward=problem.forward_function,
            parameters=list(problem.parameters),
            mode=problem.mode,
        )
        survey = open_problem(other).survey
        found[label] = {"loss": survey.loss, "accuracy": survey.accuracy, "samples": survey.count}
    return found
