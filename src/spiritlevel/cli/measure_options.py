"""``spiritlevel measure`` and its options, which audit, compare and spectrum share."""

from __future__ import annotations

from typing import Annotated

import typer

from spiritlevel.cli.completing import (
    complete_data,
    complete_devices,
    complete_dtypes,
    complete_losses,
    complete_measures,
    complete_models,
    complete_modes,
    complete_precisions,
    complete_tasks,
)
from spiritlevel.cli.groups import COMPUTED, DATA, MEASURED, MODEL, OUTPUT, PRECISELY

DATA_HELP = (
    "digits, mnist, mnist:test (train unless said), cifar10, ..., FILE.npz with x and y, with --task FILE.txt or "
    'FILE.jsonl (one {"text": ..., "label": ...} or {"input_ids": [...], "labels": ...} a line), or '
    "package.module:name / path/file.py:name of data or of a function that returns it (tensors, Dataset, DataLoader, "
    "batches, texts)."
)


HtmlOption = Annotated[
    str | None,
    typer.Option(help="Write one self-contained page to this file.", rich_help_panel=OUTPUT, metavar="FILE"),
]
RateOption = Annotated[
    float | None,
    typer.Option(
        "--learning-rate",
        "--lr",
        help="Of the training, for the line 2/lr on the page.",
        rich_help_panel=OUTPUT,
        metavar="RATE",
    ),
]
LayersOption = Annotated[bool, typer.Option("--layers", help="Also show every layer.", rich_help_panel=OUTPUT)]


def measure_command(
    *,
    model: Annotated[
        str | None,
        typer.Argument(
            help="A built-in net (spiritlevel list nets), package.module:name, path/file.py:name (a module, a class or "
            "a function; the current directory is importable), timm:NAME (WEIGHTS a local file) or hf:FOLDER (as "
            "save_pretrained writes it, with its own weights).",
            rich_help_panel=MODEL,
            metavar="MODEL",
            autocompletion=complete_models,
        ),
    ] = None,
    weights: Annotated[
        list[str] | None,
        typer.Argument(
            help="Weights files or Hugging Face folders; one row each.", rich_help_panel=MODEL, metavar="WEIGHTS"
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data", "-d", help=DATA_HELP, rich_help_panel=DATA, metavar="DATA", autocompletion=complete_data
        ),
    ] = None,
    more_weights: Annotated[
        list[str] | None,
        typer.Option(
            "--weights",
            "-w",
            help="A weights file; the same as naming it after MODEL.",
            rich_help_panel=MODEL,
            metavar="FILE",
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(help="Entry of the weights file, such as ema_state_dict.", rich_help_panel=MODEL, metavar="NAME"),
    ] = None,
    model_args: Annotated[
        list[str] | None,
        typer.Option(
            help="k=v for the class or function of MODEL, or for the configuration in hf:FOLDER.",
            rich_help_panel=MODEL,
            metavar="K=V",
        ),
    ] = None,
    data_args: Annotated[
        list[str] | None,
        typer.Option(
            help="k=v for the function of DATA; for text length=128, text=FIELD, label=FIELD, masked=0.15, "
            "tokenizer=FOLDER.",
            rich_help_panel=DATA,
            metavar="K=V",
        ),
    ] = None,
    data_root: Annotated[
        str | None, typer.Option(help="Folder of MNIST and CIFAR files.", rich_help_panel=DATA, metavar="FOLDER")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            help="causal-lm, masked-lm or classification: how text is tokenised (by the tokenizer of hf:FOLDER) and "
            "which loss follows, next_token, same_token or cross_entropy.",
            rich_help_panel=DATA,
            metavar="TASK",
            autocompletion=complete_tasks,
        ),
    ] = None,
    measures: Annotated[
        list[str] | None,
        typer.Option(
            "--measures",
            "-m",
            help="Names, globs, groups (default, cheap, papers, all), or FILE.py:name of one of your own.",
            rich_help_panel=MEASURED,
            metavar="NAMES",
            autocompletion=complete_measures,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="name.option=value of a measure.", rich_help_panel=MEASURED, metavar="NAME.OPTION=VALUE"
        ),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="cross_entropy (default), binary_cross_entropy, mean_squared_error, normalized_cross_entropy, "
            "next_token, same_token, gaussian_nll, contrastive_pairs, or model: a Hugging Face model's own.",
            rich_help_panel=MEASURED,
            metavar="LOSS",
            autocompletion=complete_losses,
        ),
    ] = None,
    forward: Annotated[
        str | None,
        typer.Option(
            help="package.module:name or path/file.py:name of a function (model, batch) -> outputs.",
            rich_help_panel=MODEL,
            metavar="PLACE",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="How many samples to use, drawn once, stratified by class; default all.",
            rich_help_panel=DATA,
            metavar="N",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Relative error at which sampling and eigenvalues stop.", rich_help_panel=PRECISELY, metavar="SHARE"
        ),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="By when to answer, loading included: the best there is then, each value with its error; sooner where "
            "all are within the tolerance. Several weights files share it.",
            rich_help_panel=PRECISELY,
            metavar="SECONDS",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of every random draw; default 0.", rich_help_panel=PRECISELY, metavar="N")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(help="Changes speed and memory, not the numbers.", rich_help_panel=COMPUTED, metavar="N"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="cpu, cuda, cuda:1; default where the model is.",
            rich_help_panel=COMPUTED,
            metavar="DEVICE",
            autocompletion=complete_devices,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Processes that measure several weights files at once, each with its share of the threads and the "
            "memory, or with --device cuda a GPU in turn.",
            rich_help_panel=COMPUTED,
            metavar="N",
        ),
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="Measure several weights files as tasks of the Ray cluster at this address (auto: the one this "
            "machine is part of; local: one for the purpose), N at once with --workers N.",
            rich_help_panel=COMPUTED,
            metavar="ADDRESS",
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            help="Under torchrun, after how long a rank without a sign of life ends the run; default 600.",
            rich_help_panel=COMPUTED,
            metavar="SECONDS",
        ),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="Keep what every sweep gave in this file until the command is done; after an interruption the same "
            "command goes on from it.",
            rich_help_panel=COMPUTED,
            metavar="FILE",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32 or float64; default the model's own.",
            rich_help_panel=PRECISELY,
            metavar="DTYPE",
            autocompletion=complete_dtypes,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="float32 (default), tf32 or bfloat16: of Gauss–Newton sums alone, where their error, measured on "
            "every sample, is below a tenth of the tolerance.",
            rich_help_panel=PRECISELY,
            metavar="PRECISION",
            autocompletion=complete_precisions,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            help="eval (default) or train.", rich_help_panel=MEASURED, metavar="MODE", autocompletion=complete_modes
        ),
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            help="Name patterns of the parameters that may move.", rich_help_panel=MEASURED, metavar="PATTERN"
        ),
    ] = None,
    json: Annotated[
        str | None,
        typer.Option(
            help="Write strict JSON to this file, - for stdout. Several weights go into one file, or one each where "
            "the name holds {name}.",
            rich_help_panel=OUTPUT,
            metavar="FILE",
        ),
    ] = None,
    html: HtmlOption = None,
    learning_rate: RateOption = None,
    per_sample: Annotated[
        str | None,
        typer.Option(
            help="Write one number a sample to this .npz or .csv file.", rich_help_panel=OUTPUT, metavar="FILE"
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            help="TOML file with these options; the command line wins.", rich_help_panel=MEASURED, metavar="FILE"
        ),
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Measure as in this earlier report.", rich_help_panel=MEASURED, metavar="FILE")
    ] = None,
    layers: LayersOption = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what it would cost and stop.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress, no notes.", rich_help_panel=OUTPUT)
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 3 when a measure is not ok.", rich_help_panel=OUTPUT)
    ] = False,
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
            workers=workers,
            ray=ray,
        ),
    )
