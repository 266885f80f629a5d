"""``spiritlevel compare``: several checkpoints of one network, or saved reports, side by side."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import typer

from spiritlevel.cli.beginning import BEGINNING
from spiritlevel.cli.completing import complete_data, complete_models
from spiritlevel.cli.failures import DONE, NOT_OK
from spiritlevel.cli.groups import DATA, MEASURED, MODEL, PRECISELY
from spiritlevel.cli.sharing import ALONE, Command, chosen_of, option, request_of, with_options_of
from spiritlevel.values.errors import UsageError

_OPTIONS = (
    option(
        "model",
        str | None,
        None,
        typer.Argument(
            help="The network, as for measure, followed by two or more weights files; or saved reports alone.",
            rich_help_panel=MODEL,
            metavar="MODEL",
            autocompletion=complete_models,
        ),
    ),
    option(
        "weights",
        list[str] | None,
        None,
        typer.Argument(help="Weights files, or reports ending in .json.", rich_help_panel=MODEL, metavar="WEIGHTS"),
    ),
    option(
        "groups",
        int,
        10,
        typer.Option(
            help="Parts of the data measured apart for errors over samples; 0 for none.",
            rich_help_panel=PRECISELY,
            metavar="N",
        ),
    ),
    option(
        "test",
        str | None,
        None,
        typer.Option(
            help="Data for the test loss and accuracy, as for --data.",
            rich_help_panel=DATA,
            metavar="DATA",
            autocompletion=complete_data,
        ),
    ),
    option(
        "runs",
        str | None,
        None,
        typer.Option(
            help="CSV file, as for report: which run each is of, and where in it.",
            rich_help_panel=MODEL,
            metavar="FILE",
        ),
    ),
    option(
        "search",
        bool,
        True,
        typer.Option(
            "--search/--no-search", help="Look for rescalings that reverse orderings.", rich_help_panel=MEASURED
        ),
    ),
)
# What only means something where networks are at hand.
_NEED_NETWORKS = (
    "data", "test", "task", "loss", "forward", "samples", "measures", "set_", "tolerance", "seconds", "dtype",
    "precision", "mode",
    "parameters",
)  # fmt: skip


def compare_command(measure_command: Command) -> Command:
    """Return the command, with the options of ``measure``."""
    return with_options_of(measure_command, leave_out=ALONE, more=_OPTIONS)(run_compare)


def run_compare(options: dict[str, Any]) -> int:
    """Compare networks on the same data: which is flatter by each measure, and would a rescaling say otherwise."""
    from spiritlevel.cli.outputs import keep_stdout, refuse_lossy

    files = [options.get("model"), *(options.get("weights") or ())]
    from_reports = all(isinstance(file, str) and file.lower().endswith(".json") for file in files)
    if from_reports:
        given = [name for name in _NEED_NETWORKS if options.get(name) not in (None, [], ())]
        if given:
            name = given[0].rstrip("_").replace("_", "-")
            raise UsageError(f"--{name} needs the networks, and only saved reports were given; leave it out")
        table = [("the table of runs", options["runs"])] if options.get("runs") is not None else []
        refuse_lossy(options, [*table, *(("the report", str(file)) for file in files)])
        keep_stdout(options)
    from spiritlevel.analyses.comparison import compare
    from spiritlevel.results.saving import undamaged

    if from_reports:
        with undamaged("report", ", ".join(map(str, files))):
            found = compare([str(file) for file in files], runs=options.get("runs"))
        notes: list[str] = []
    else:
        networks = _networks(options)
        if networks is None:
            return DONE
        found, notes = networks
    if options.get("learning_rate") is not None:
        rate = options["learning_rate"]
        reports = {label: report.described(learning_rate=rate) for label, report in found.reports.items()}
        found = replace(found, reports=reports)
    if options.get("html") is not None:
        found.html(options["html"])
    return _shown(found, notes, options)


def _networks(options: dict[str, Any]) -> Any:
    """Compare checkpoints, or print what that would cost; return the comparison and the notes."""
    from spiritlevel.analyses.comparison import compare
    from spiritlevel.analyses.planning import plan
    from spiritlevel.analyses.question_plan import planned_comparison
    from spiritlevel.cli.own_measures import named_measures
    from spiritlevel.cli.planned import show_plan
    from spiritlevel.cli.spoken import results_in_cli_words
    from spiritlevel.cli.subject import checked_subject, targets_of

    request = request_of(options)
    deadline = BEGINNING.deadline(request.seconds)
    if len(request.weights) < 2:
        raise UsageError(
            f"compare needs two or more weights files after MODEL, and {len(request.weights)} were given; or give "
            "saved reports ending in .json"
        )
    labels = targets_of(request.weights)
    subject = checked_subject(request, options)
    problems, headers, notes = {}, {}, []
    for label, path in zip(labels, request.weights):
        problem = subject.problem(path)
        # The next file is loaded into the same network, so this one is kept as a copy.
        problems[label] = problem.on_network(copy.deepcopy(problem.model))
        headers[label] = subject.facts(path, **chosen_of(options, _OPTIONS))
        notes += subject.notes
    if options.get("dry_run"):
        planned = plan(
            next(iter(problems.values())),
            named_measures(request.measures),
            settings=request.flat_settings(),
            seconds=request.seconds,
        )
        show_plan(planned, planned_comparison(planned, len(problems), bool(options.get("search", True))))
        return None
    test = options.get("test")
    if test is not None:
        test = subject.other_data(test)
    found = compare(
        problems,
        named_measures(request.measures),
        test=test,
        settings=request.flat_settings(),
        seed=request.seed or 0,
        tolerance=request.tolerance,
        groups=int(options.get("groups", 10)),
        search=bool(options.get("search", True)),
        headers=headers,
        runs=options.get("runs"),
        seconds=deadline,
        progress=not options.get("quiet"),
    )
    return results_in_cli_words(found), notes


def _shown(found: Any, notes: list[str], options: dict[str, Any]) -> int:
    from spiritlevel.cli.outputs import deliver
    from spiritlevel.cli.screens import note

    deliver(found, options)
    quiet = bool(options.get("quiet"))
    headers = [text for report in found.reports.values() for text in report.header.notes]
    for text in dict.fromkeys([*headers, *notes]):
        note(text, quiet)
    bad = [(label, name) for label, report in found.reports.items() for name, e in report.items() if not e.ok]
    if options.get("strict") and bad:
        label, name = bad[0]
        note(f"spiritlevel: {name} of {label} is not ok, and --strict was given: {found.reports[label][name].reason}")
        return NOT_OK
    return DONE
