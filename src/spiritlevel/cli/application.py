"""The commands and their options; what they do is loaded when they are called, so that --help is quick."""

from __future__ import annotations

from typing import Annotated

import typer

from spiritlevel.cli.audit_command import audit_command
from spiritlevel.cli.compare_command import compare_command
from spiritlevel.cli.spectrum_command import spectrum_command
from spiritlevel.cli.study_command import study

app = typer.Typer(
    name="spiritlevel",
    help="Measure how flat a trained network's minimum is, how large its margins are, and which of those numbers "
    "survive rescaling.",
    epilog="Exit codes: 0 done, 1 failed, 2 misuse, 3 a measure is not ok with --strict, 130 interrupted (143 by "
    "SIGTERM, 129 by SIGHUP). --debug shows the traceback of a failure.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Fetch data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data_app, name="data")
app.add_typer(study, name="study")

DATA_HELP = (
    "digits, mnist, mnist:test (train unless said), cifar10, ..., FILE.npz with x and y, with --task FILE.txt or "
    'FILE.jsonl (one {"text": ..., "label": ...} or {"input_ids": [...], "labels": ...} a line), or '
    "package.module:name / path/file.py:name of data or of a function that returns it (tensors, Dataset, DataLoader, "
    "batches, texts)."
)


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


@app.command("measure")
def measure_command(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A built-in net (spiritlevel list nets), package.module:name, path/file.py:name (a module, a class or "
            "a function; the current directory is importable), timm:NAME (WEIGHTS a local file) or hf:FOLDER (as "
            "save_pretrained writes it, with its own weights)."
        ),
    ] = None,
    weights: Annotated[
        list[str] | None, typer.Argument(help="Weights files or Hugging Face folders; one row each.")
    ] = None,
    data: Annotated[str | None, typer.Option("--data", "-d", help=DATA_HELP)] = None,
    more_weights: Annotated[
        list[str] | None, typer.Option("--weights", "-w", help="A weights file; the same as naming it after MODEL.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Entry of the weights file, such as ema_state_dict.")] = None,
    model_args: Annotated[
        list[str] | None,
        typer.Option(help="k=v for the class or function of MODEL, or for the configuration in hf:FOLDER."),
    ] = None,
    data_args: Annotated[
        list[str] | None,
        typer.Option(
            help="k=v for the function of DATA; for text length=128, text=FIELD, label=FIELD, masked=0.15, "
            "tokenizer=FOLDER."
        ),
    ] = None,
    data_root: Annotated[str | None, typer.Option(help="Folder of MNIST and CIFAR files.")] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="causal-lm, masked-lm or classification: how text is tokenised (by the tokenizer of hf:FOLDER) and "
            "which loss follows, next_token, same_token or cross_entropy."
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="cross_entropy (default), binary_cross_entropy, mean_squared_error, normalized_cross_entropy, "
            "next_token, same_token, gaussian_nll, contrastive_pairs, or model: a Hugging Face model's own."
        ),
    ] = None,
    forward: Annotated[
        str | None,
        typer.Option(help="package.module:name or path/file.py:name of a function (model, batch) -> outputs."),
    ] = None,
    samples: Annotated[
        int | None, typer.Option(help="How many samples to use, drawn once, stratified by class; default all.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random draw; default 0.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Changes speed and memory, not the numbers.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default where the model is.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; default the model's own.")] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32 (default), tf32 or bfloat16: of Gauss–Newton sums alone, where their error, measured on "
            "every sample, is below a tenth of the tolerance."
        ),
    ] = None,
    mode: Annotated[str | None, typer.Option(help="eval (default) or train.")] = None,
    parameters: Annotated[list[str] | None, typer.Option(help="Name patterns of the parameters that may move.")] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option("--measures", "-m", help="Names, globs, or groups: default, cheap, papers, all."),
    ] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="name.option=value of a measure.")] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Relative error at which sampling and eigenvalues stop.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="By when to answer, loading included: the best there is then, each value with its error; sooner where "
            "all are within the tolerance. Several weights files share it."
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            help="Write strict JSON to this file, - for stdout. Several weights go into one file, or one each where "
            "the name holds {name}."
        ),
    ] = None,
    html: Annotated[str | None, typer.Option(help="Write one self-contained page to this file.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Of the training, for the line 2/lr on the page.")
    ] = None,
    per_sample: Annotated[str | None, typer.Option(help="Write one number a sample to this .npz or .csv file.")] = None,
    config: Annotated[str | None, typer.Option(help="TOML file with these options; the command line wins.")] = None,
    like: Annotated[str | None, typer.Option(help="Measure as in this earlier report.")] = None,
    layers: Annotated[bool, typer.Option("--layers", help="Also show every layer.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what it would cost and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, no notes.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 when a measure is not ok.")] = False,
) -> int:
    """Measure a network on data."""
    given = dict(locals())
    from spiritlevel.cli.sharing import request_of

    checked = request_of(given)
    from spiritlevel.cli.measuring_command import Outputs, run_request

    return run_request(
        checked,
        Outputs(
            json=json,
            per_sample=per_sample,
            layers=layers,
            quiet=quiet,
            strict=strict,
            dry_run=dry_run,
            like=like,
            html=html,
            learning_rate=learning_rate,
            config=config,
        ),
    )


app.command("audit")(audit_command(measure_command))
app.command("compare")(compare_command(measure_command))
app.command("spectrum")(spectrum_command(measure_command))


@app.command("report")
def report_command(
    files: Annotated[list[str], typer.Argument(help="Files saved with --json.")],
    layers: Annotated[bool, typer.Option("--layers", help="Also show every layer.")] = False,
    csv: Annotated[str | None, typer.Option(help="Write one long table of all reports to this file.")] = None,
    html: Annotated[str | None, typer.Option(help="Write one self-contained page to this file.")] = None,
    figures: Annotated[
        str | None, typer.Option(help="Write the page's figures as PNG, SVG and PDF into this folder.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", "--lr", help="Of the training, for the line 2/lr on the page.")
    ] = None,
    runs: Annotated[
        str | None,
        typer.Option(help="CSV file: path of each report or its weights; run, epoch or step, group, test_accuracy."),
    ] = None,
) -> int:
    """Show saved reports, comparisons, audits and spectra again; nothing is recomputed."""
    from spiritlevel.cli.reporting import show_reports

    return show_reports(
        files, layers=layers, csv_file=csv, html=html, figures=figures, learning_rate=learning_rate, runs=runs
    )


@app.command("list")
def list_command(
    what: Annotated[str, typer.Argument(help="measures, nets or data.")],
    names: Annotated[list[str] | None, typer.Argument(help="Measures to show in full.")] = None,
) -> int:
    """List the measures, the built-in networks or the data sets."""
    from spiritlevel.cli.listing import show_list

    return show_list(what, names or ())


@app.command("doctor")
def doctor_command() -> int:
    """Check this installation and this machine."""
    from spiritlevel.cli.doctor_checks import run_doctor

    return run_doctor()


@app.command("demo")
def demo_command(
    folder: Annotated[str, typer.Option(help="Where checkpoints and reports are written.")] = "spiritlevel-demo",
    steps: Annotated[int, typer.Option(help="Gradient steps of each training.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Seed of initialisation and order of the data.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> int:
    """Train two small networks and measure both."""
    from spiritlevel.cli.demonstration import run_demonstration

    return run_demonstration(folder, steps=steps, seed=seed, quiet=quiet)


@data_app.command("get")
def data_get_command(
    name: Annotated[str, typer.Argument(help="mnist or cifar10.")],
    data_root: Annotated[str | None, typer.Option(help="Folder to put it in; default the cache.")] = None,
) -> int:
    """Fetch a data set into the cache, checked."""
    from spiritlevel.cli.screens import show_lines
    from spiritlevel.lab import datasets

    show_lines(datasets.get(name, data_root))
    return 0
