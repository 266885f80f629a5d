"""The commands and their options; what they do is loaded when they are called, so that --help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from spiritlevel.cli.audit_command import audit_command
from spiritlevel.cli.by_ranks import by_ranks
from spiritlevel.cli.compare_command import compare_command
from spiritlevel.cli.completing import (
    complete_data,
    complete_lists,
    complete_measure,
)
from spiritlevel.cli.groups import (
    DATA,
    LISTED,
    NETWORKS,
    OUTPUT,
    TRAINING,
    GroupedCommand,
)
from spiritlevel.cli.measure_options import HtmlOption, LayersOption, RateOption, measure_command
from spiritlevel.cli.resuming import resumable
from spiritlevel.cli.spectrum_command import spectrum_command
from spiritlevel.cli.study_command import study

app = typer.Typer(
    name="spiritlevel",
    help="Measure how flat a trained network's minimum is, how large its margins are, and which of those numbers "
    "survive rescaling.",
    epilog="Exit codes: 0 done, 1 failed, 2 misuse, 3 a measure is not ok with --strict, 130 interrupted (143 by "
    "SIGTERM, 129 by SIGHUP). --debug shows the traceback of a failure.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Fetch data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(study, name="study")


def _version(asked: bool) -> None:
    if asked:
        from spiritlevel.values.version import __version__

        print(f"spiritlevel {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


app.command("measure", cls=GroupedCommand)(by_ranks(resumable(measure_command)))
app.command("audit", cls=GroupedCommand)(by_ranks(resumable(audit_command(measure_command))))
app.command("compare", cls=GroupedCommand)(by_ranks(resumable(compare_command(measure_command))))
app.command("spectrum", cls=GroupedCommand)(by_ranks(resumable(spectrum_command(measure_command))))


@app.command("report", cls=GroupedCommand)
def report_command(
    files: Annotated[
        list[str], typer.Argument(help="Files saved with --json.", rich_help_panel=NETWORKS, metavar="FILES")
    ],
    layers: LayersOption = False,
    csv: Annotated[
        str | None,
        typer.Option(help="Write one long table of all reports to this file.", rich_help_panel=OUTPUT, metavar="FILE"),
    ] = None,
    html: HtmlOption = None,
    figures: Annotated[
        str | None,
        typer.Option(
            help="Write the page's figures as PNG, SVG and PDF into this folder.",
            rich_help_panel=OUTPUT,
            metavar="FOLDER",
        ),
    ] = None,
    learning_rate: RateOption = None,
    runs: Annotated[
        str | None,
        typer.Option(
            help="CSV file: path of each report or its weights; run, epoch or step, group, test_accuracy.",
            rich_help_panel=NETWORKS,
            metavar="FILE",
        ),
    ] = None,
) -> int:
    """Show saved reports, comparisons, audits and spectra again; nothing is recomputed."""
    from spiritlevel.cli.reporting import show_reports

    return show_reports(
        files, layers=layers, csv_file=csv, html=html, figures=figures, learning_rate=learning_rate, runs=runs
    )


@app.command("list", cls=GroupedCommand)
def list_command(
    what: Annotated[
        str,
        typer.Argument(
            help="measures, nets or data.", rich_help_panel=LISTED, metavar="WHAT", autocompletion=complete_lists
        ),
    ],
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Measures to show in full.",
            rich_help_panel=LISTED,
            metavar="NAMES",
            autocompletion=complete_measure,
        ),
    ] = None,
) -> int:
    """List the measures, the built-in networks or the data sets."""
    from spiritlevel.cli.listing import show_list

    return show_list(what, names or ())


@app.command("doctor", cls=GroupedCommand)
def doctor_command() -> int:
    """Check this installation and this machine."""
    from spiritlevel.cli.doctor_checks import run_doctor

    return run_doctor()


@app.command("demo", cls=GroupedCommand)
def demo_command(
    folder: Annotated[
        str, typer.Option(help="Where checkpoints and reports are written.", rich_help_panel=OUTPUT, metavar="FOLDER")
    ] = "spiritlevel-demo",
    steps: Annotated[
        int, typer.Option(help="Gradient steps of each training.", rich_help_panel=TRAINING, metavar="N")
    ] = 10_000,
    seed: Annotated[
        int, typer.Option(help="Seed of initialisation and order of the data.", rich_help_panel=TRAINING, metavar="N")
    ] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=OUTPUT)] = False,
) -> int:
    """Train two small networks and measure both."""
    from spiritlevel.cli.demonstration import run_demonstration

    return run_demonstration(folder, steps=steps, seed=seed, quiet=quiet)


@data_app.command("get", cls=GroupedCommand)
def data_get_command(
    name: Annotated[
        str,
        typer.Argument(help="mnist or cifar10.", rich_help_panel=DATA, metavar="NAME", autocompletion=complete_data),
    ],
    data_root: Annotated[
        str | None, typer.Option(help="Folder to put it in; default the cache.", rich_help_panel=DATA, metavar="FOLDER")
    ] = None,
) -> int:
    """Fetch a data set into the cache, checked."""
    from spiritlevel.cli.screens import show_lines
    from spiritlevel.lab import datasets

    show_lines(datasets.get(name, data_root))
    return 0
