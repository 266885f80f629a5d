"""``spiritlevel study``: run the papers' studies, show the verdicts, export the rows and the documents."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spiritlevel.cli.completing import complete_devices, complete_engines, complete_sizes, complete_studies
from spiritlevel.cli.counting import pieces_counted
from spiritlevel.cli.groups import OUTPUT, PLACE, STUDIES, GroupedCommand
from spiritlevel.cli.measure_options import HtmlOption
from spiritlevel.values.errors import UsageError

if TYPE_CHECKING:
    from spiritlevel.lab.studies import Record, Study
    from spiritlevel.lab.studies.running import OnProgress

study = typer.Typer(help="Re-run the papers' studies, claim by claim.", no_args_is_help=True, rich_markup_mode=None)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        help="Studies by name or pattern, for instance 'margins-*'.",
        rich_help_panel=STUDIES,
        metavar="NAMES",
        autocompletion=complete_studies,
    ),
]
All = Annotated[bool, typer.Option("--all", help="Every study.", rich_help_panel=STUDIES)]
SizeOption = Annotated[
    str,
    typer.Option(
        "--size",
        help="smoke, small, medium or paper.",
        rich_help_panel=STUDIES,
        metavar="SIZE",
        autocompletion=complete_sizes,
    ),
]
Out = Annotated[
    Path,
    typer.Option("--out", help="The folder that finished runs are kept in.", rich_help_panel=OUTPUT, metavar="FOLDER"),
]
DEFAULT_OUT = Path("spiritlevel-studies")


def list_studies() -> list[tuple[str, str, str]]:
    """Return (name, what it is, number of claims and runs) of every study for ``spiritlevel list studies``."""
    from spiritlevel.lab.studies import studies

    return [
        (
            each.name,
            f"{each.title} ({each.paper})",
            f"{len(each.claims)} claims, {len(each.settings('small'))} runs small",
        )
        for each in studies().values()
    ]


@study.command("run", cls=GroupedCommand)
def run(
    *,
    names: Names = None,
    all_studies: All = False,
    size: SizeOption = "smoke",
    out: Out = DEFAULT_OUT,
    data_root: Annotated[
        str | None,
        typer.Option("--data-root", help="Where the data sets lie.", rich_help_panel=PLACE, metavar="FOLDER"),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device", help="cpu, cuda.", rich_help_panel=PLACE, metavar="DEVICE", autocompletion=complete_devices
        ),
    ] = "cpu",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="here, processes or ray.",
            rich_help_panel=PLACE,
            metavar="ENGINE",
            autocompletion=complete_engines,
        ),
    ] = "here",
    workers: Annotated[
        int,
        typer.Option("--workers", help="Local processes with --engine processes.", rich_help_panel=PLACE, metavar="N"),
    ] = 2,
    address: Annotated[
        str | None, typer.Option("--address", help="A Ray cluster to join.", rich_help_panel=PLACE, metavar="ADDRESS")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Compute the missing runs of studies and print their claims; run again after an interruption to go on."""
    from spiritlevel.lab.studies import Place, RunStore, make_record, run_study

    store = RunStore(out)
    place = Place(device, data_root)
    records = []
    for each in _chosen(names, all_studies):
        with _progress(quiet) as hook:
            run_study(each, size, store, place=place, engine=engine, workers=workers, address=address, on_progress=hook)
        records.append(make_record(each, size, store.table(each, size)))
    _print_claims(records)


@study.command("show", cls=GroupedCommand)
def show(
    names: Names = None,
    all_studies: All = False,
    size: SizeOption = "smoke",
    out: Out = DEFAULT_OUT,
    html: HtmlOption = None,
) -> None:
    """Print the claims of studies as the finished runs decide them; nothing is computed."""
    from spiritlevel.cli.pages import check_page
    from spiritlevel.lab.studies import RunStore, make_record
    from spiritlevel.results.writing import check_outputs

    store = RunStore(out)
    if html is not None:
        check_outputs([("--html", html)] if html != "-" else [], _runs(out))
    check_page(html)
    records = [make_record(each, size, store.table(each, size)) for each in _chosen(names, all_studies)]
    if html is not None:
        from spiritlevel import page

        page.write(page.of_studies(records), html)
    _print_claims(records)


@study.command("export", cls=GroupedCommand)
def export(
    names: Names = None,
    all_studies: All = False,
    size: SizeOption = "smoke",
    out: Out = DEFAULT_OUT,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write all rows as CSV.", rich_help_panel=OUTPUT, metavar="FILE")
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            "--parquet", help="Write all rows as Parquet (needs pyarrow).", rich_help_panel=OUTPUT, metavar="FILE"
        ),
    ] = None,
    docs: Annotated[
        Path | None,
        typer.Option(
            "--docs", help="Write records, figures and the claims table.", rich_help_panel=OUTPUT, metavar="FOLDER"
        ),
    ] = None,
) -> None:
    """Write the rows of finished runs, or the documents made from them."""
    from spiritlevel.lab.studies import RunStore, make_record, studies
    from spiritlevel.lab.studies.exporting import write_csv, write_parquet
    from spiritlevel.results.writing import check_outputs

    if csv is None and parquet is None and docs is None:
        raise UsageError("study export needs somewhere to write to: --csv F, --parquet F or --docs DIR.")
    check_outputs(
        [(f"--{k}", path) for k, path in (("csv", csv), ("parquet", parquet)) if path is not None], _runs(out)
    )
    store = RunStore(out)
    chosen_studies = _chosen(names, all_studies)
    tables = {each.name: store.table(each, size) for each in chosen_studies}
    if csv is not None:
        write_csv(tables, csv)
    if parquet is not None:
        write_parquet(tables, parquet)
    if docs is not None:
        from spiritlevel.lab.studies.documents import write_documents

        records = [make_record(each, size, tables[each.name]) for each in chosen_studies if len(tables[each.name])]
        write_documents(docs, studies().values(), records)


def _runs(out: Path) -> list[tuple[str, str | Path]]:
    """Return the files of finished runs, which no table or page may replace."""
    return [("the finished run", file) for file in out.glob("*/*.json")]


def _chosen(names: list[str] | None, all_studies: bool) -> list[Study]:
    from spiritlevel.lab.studies import chosen_studies, studies

    if all_studies:
        return list(studies().values())
    if not names:
        raise UsageError("Name one or more studies, or use --all; `spiritlevel list studies` shows them.")
    return chosen_studies(names)


def _print_claims(records: list[Record]) -> None:
    from rich.table import Table

    from spiritlevel.cli.screens import console

    table = Table("study", "claim", "the paper", "measured", "verdict", "size, runs")
    for record in records:
        for each in record.judgements:
            verdict = each.verdict if record.finished else f"not run: {record.study.unrun}"
            table.add_row(
                record.study.name,
                f"{each.claim.statement} ({each.claim.place})",
                each.claim.paper,
                each.words,
                verdict,
                f"{record.size}, {record.behind(each)}",
            )
    console(pipe_width=200).print(table)


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[OnProgress | None]:
    """Show progress over a study's runs, and what the studies log of long trainings."""
    if quiet:
        yield None
        return
    with pieces_counted("runs") as told, _lines(told.say):
        yield told.count


@contextlib.contextmanager
def _lines(write: Callable[[str], None]) -> Iterator[None]:
    """Hand what the studies log about long trainings to a writer of lines."""
    from spiritlevel.lab.studies.telling import logger

    handler, level = logging.Handler(), logger.level
    handler.emit = lambda record: write(record.getMessage())  # type: ignore[method-assign]  # all of a subclass
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
