"""``spiritlevel audit``: every measure before and after each symmetry of the network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import typer

from spiritlevel.cli.beginning import BEGINNING
from spiritlevel.cli.completing import complete_strengths
from spiritlevel.cli.failures import DONE, NOT_OK
from spiritlevel.cli.groups import MEASURED
from spiritlevel.cli.sharing import ALONE, Command, chosen_of, option, request_of, with_options_of
from spiritlevel.values.errors import UsageError

_OPTIONS = (
    option(
        "strengths",
        list[str] | None,
        None,
        typer.Option(
            help="mild, usual (factors 5 to 25), extreme; default all.",
            rich_help_panel=MEASURED,
            metavar="NAMES",
            autocompletion=complete_strengths,
        ),
    ),
    option(
        "alphas",
        str | None,
        None,
        typer.Option(
            help="Scales of the outputs for the sweep, as 0.1,1,10; none for none.",
            rich_help_panel=MEASURED,
            metavar="NUMBERS",
        ),
    ),
)


def audit_command(measure_command: Command) -> Command:
    """Return the command, with the options of ``measure``."""
    return with_options_of(measure_command, leave_out=ALONE, more=_OPTIONS)(run_audit)


def run_audit(options: dict[str, Any]) -> int:
    """Audit which numbers would change if the same network were written down at another scale."""
    request = request_of(options)
    if len(request.weights) > 1:
        raise UsageError(f"audit looks at one network, and {len(request.weights)} weights files were given; name one")
    from spiritlevel.analyses.auditing import ALPHAS, audit, chosen_strengths
    from spiritlevel.analyses.planning import plan
    from spiritlevel.analyses.question_plan import planned_audit
    from spiritlevel.cli.outputs import deliver
    from spiritlevel.cli.own_measures import named_measures
    from spiritlevel.cli.planned import show_plan
    from spiritlevel.cli.screens import note
    from spiritlevel.cli.spoken import results_in_cli_words
    from spiritlevel.cli.subject import checked_subject
    from spiritlevel.cli.values import split_list

    deadline = BEGINNING.deadline(request.seconds)
    strengths = chosen_strengths(split_list(options.get("strengths") or ()) or None)
    alphas = _alphas(options.get("alphas"), ALPHAS)
    subject = checked_subject(request, options)
    weights = request.weights[0] if request.weights else None
    problem = subject.problem(weights)
    if options.get("dry_run"):
        planned = plan(
            problem, named_measures(request.measures), settings=request.flat_settings(), seconds=request.seconds
        )
        return show_plan(planned, planned_audit(planned, len(strengths), len(alphas)))
    quiet = bool(options.get("quiet"))
    found = audit(
        problem,
        measures=named_measures(request.measures),
        strengths=strengths,
        alphas=alphas,
        settings=request.flat_settings(),
        seed=request.seed or 0,
        tolerance=request.tolerance,
        seconds=deadline,
        progress=not quiet,
    )
    base = found.base.described(**subject.facts(weights, **chosen_of(options, _OPTIONS)))
    found = results_in_cli_words(replace(found, base=base))
    if options.get("html") is not None:
        found.html(options["html"])
    deliver(found, options)
    for text in [*found.base.header.notes, *subject.notes]:
        note(text, quiet)
    for text in found.contradictions:
        note(f"spiritlevel: CONTRADICTION: {text}")
    if options.get("strict") and (found.contradictions or not found.base.ok):
        note("spiritlevel: a measure is not ok or contradicts its declaration, and --strict was given")
        return NOT_OK
    return DONE


def _alphas(text: str | None, default: tuple[float, ...]) -> tuple[float, ...]:
    if text is None:
        return default
    if text.strip().lower() == "none":
        return ()
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError as error:
        raise UsageError(f"--alphas {text!r} must be numbers separated by commas, or none") from error
