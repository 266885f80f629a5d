"""``spiritlevel spectrum``: the spectrum of the Hessian or another matrix as a table, as JSON and as an image."""

from __future__ import annotations

from typing import Any

import typer

from spiritlevel.cli.beginning import BEGINNING
from spiritlevel.cli.completing import complete_operators, complete_strategies
from spiritlevel.cli.failures import DONE, NOT_OK
from spiritlevel.cli.groups import COMPUTED, MEASURED, OUTPUT, PRECISELY
from spiritlevel.cli.sharing import ALONE, Command, chosen_of, option, request_of, with_options_of
from spiritlevel.values.errors import UsageError

_OPTIONS = (
    option(
        "operator",
        str,
        "hessian",
        typer.Option(
            help="hessian, ggn, batch_variance (over batches), a layer or a parameter.",
            rich_help_panel=MEASURED,
            metavar="MATRIX",
            autocompletion=complete_operators,
        ),
    ),
    option(
        "probes",
        int,
        8,
        typer.Option(help="Random probes; --tolerance may ask for more.", rich_help_panel=PRECISELY, metavar="N"),
    ),
    option(
        "steps",
        int,
        80,
        typer.Option(help="Lanczos steps, a sweep over the data each.", rich_help_panel=PRECISELY, metavar="N"),
    ),
    option(
        "max_probes",
        int,
        64,
        typer.Option(help="Most probes that --tolerance may take.", rich_help_panel=PRECISELY, metavar="N"),
    ),
    option(
        "strategy",
        str,
        "auto",
        typer.Option(
            help="auto, looped, batched, forward, compiled: speed and memory.",
            rich_help_panel=COMPUTED,
            metavar="NAME",
            autocompletion=complete_strategies,
        ),
    ),
    option(
        "keep_graphs",
        bool | None,
        None,
        typer.Option(help="Keep all batches' graphs alive; default where they fit.", rich_help_panel=COMPUTED),
    ),
    option(
        "figure",
        str | None,
        None,
        typer.Option(
            help="Draw Ritz values and density to this .png, .pdf or .svg.", rich_help_panel=OUTPUT, metavar="FILE"
        ),
    ),
)


def spectrum_command(measure_command: Command) -> Command:
    """Return the command, with the options of ``measure`` that concern the network and the data."""
    left_out = (*ALONE, "measures", "set_")
    return with_options_of(measure_command, leave_out=left_out, more=_OPTIONS)(run_spectrum)


def run_spectrum(options: dict[str, Any]) -> int:
    """Show the spectrum of a network's Hessian, with certificates and errors."""
    request = request_of(options)
    if len(request.weights) > 1:
        raise UsageError(
            f"spectrum looks at one network, and {len(request.weights)} weights files were given; name one"
        )
    from spiritlevel.analyses.eigenvalue_search import operator_named
    from spiritlevel.analyses.spectra import spectrum
    from spiritlevel.analyses.spectrum_plan import plan_spectrum
    from spiritlevel.cli.outputs import deliver
    from spiritlevel.cli.screens import note, show_lines
    from spiritlevel.cli.spoken import results_in_cli_words
    from spiritlevel.cli.subject import checked_subject
    from spiritlevel.results.wording import UNTRAINED

    deadline = BEGINNING.deadline(request.seconds)
    quiet = bool(options.get("quiet"))
    subject = checked_subject(request, options)
    weights = request.weights[0] if request.weights else None
    problem = subject.problem(weights)
    choices = {"strategy": options["strategy"], "keep_graphs": options["keep_graphs"]}
    if options.get("dry_run"):
        matrix = operator_named(problem, options["operator"], **choices)
        show_lines(plan_spectrum(matrix, options["operator"], options["probes"], options["steps"]))
        return DONE
    found = spectrum(
        problem,
        options["probes"],
        options["steps"],
        request.seed or 0,
        operator=options["operator"],
        tolerance=request.tolerance,
        max_probes=options["max_probes"],
        seconds=deadline,
        progress=not quiet,
        **choices,
    )
    found = found.described(
        **subject.facts(weights, **chosen_of({**options, "figure": None}, _OPTIONS)),
        notes=[*found.header.notes, *subject.notes],
        learning_rate=options.get("learning_rate"),
    )
    found = results_in_cli_words(found)
    if options.get("figure") is not None:
        found.figure(options["figure"])
    if options.get("html") is not None:
        found.html(options["html"])
    if options.get("json") == "-" and not subject.trained:
        note(UNTRAINED, quiet)
    deliver(found, options, notes=False)
    for text in found.header.notes:
        note(text, quiet)
    if options.get("strict") and not found.ok:
        note("spiritlevel: a number of the spectrum is not ok, and --strict was given")
        return NOT_OK
    return DONE
