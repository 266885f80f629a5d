"""What is to be measured and how: the command line over a TOML file over an earlier report, checked in one place."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from spiritlevel.cli.tasks import TASKS, task_named
from spiritlevel.cli.text_records import is_text_file
from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names


@dataclass(frozen=True, kw_only=True)
class Request:
    """One measurement as asked for; None stands for what nobody said."""

    model: str | None = None
    weights: tuple[str, ...] = ()
    data: str | None = None
    model_args: Mapping[str, Any] = field(default_factory=dict)
    data_args: Mapping[str, Any] = field(default_factory=dict)
    data_root: str | None = None
    key: str | None = None
    task: str | None = None
    loss: str | None = None
    forward: str | None = None
    samples: int | None = None
    seed: int | None = None
    batch_size: int | None = None
    device: str | None = None
    dtype: str | None = None
    precision: str | None = None
    mode: str | None = None
    parameters: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tolerance: float | None = None
    seconds: float | None = None

    def over(self, other: Request) -> Request:
        """Return this request with the other's answers where this one has none; settings and arguments are merged."""
        merged: dict[str, Any] = {}
        for name in (part.name for part in fields(self)):
            own, theirs = getattr(self, name), getattr(other, name)
            if name == "settings":
                theirs = self._wanted_of(theirs)
                names = dict.fromkeys([*theirs, *own])
                merged[name] = {key: {**theirs.get(key, {}), **own.get(key, {})} for key in names}
            elif isinstance(own, Mapping):
                merged[name] = {**theirs, **own}
            else:
                merged[name] = theirs if own is None or own == () else own
        return Request(**merged)

    def _wanted_of(self, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return lent settings without those of measures not chosen here, or of a tolerance said anew here."""
        from spiritlevel.cli.own_measures import named_measures
        from spiritlevel.measures.registry import select

        asked = named_measures(self.measures)
        chosen = [measure.name for measure in select(asked)] if asked else list(settings)
        dropped = () if self.tolerance is None else ("tolerance",)
        return {
            name: {key: value for key, value in settings[name].items() if key not in dropped}
            for name in settings
            if name in chosen
        }

    def flat_settings(self) -> dict[str, Any]:
        """Return the settings as ``name.option`` keys."""
        return {f"{name}.{key}": value for name, own in self.settings.items() for key, value in own.items()}

    def record(self) -> dict[str, Any]:
        """Return the part that decides the numbers, to be kept in the report."""
        return asdict(replace(self, weights=()))


# What an earlier report lends with --like: how to measure, never what.
_LIKE = (
    "loss", "samples", "seed", "batch_size", "dtype", "precision", "mode", "parameters", "measures", "settings",
    "tolerance",
)  # fmt: skip
_LISTS = ("weights", "parameters", "measures")
_KINDS: dict[str, tuple[type, ...]] = {
    "samples": (int,), "seed": (int,), "batch_size": (int,), "tolerance": (float, int),
    "seconds": (float, int),
    "model_args": (dict,), "data_args": (dict,), "settings": (dict,),
}  # fmt: skip


def from_config(path: str) -> Request:
    """Return the request of a TOML file, whose keys are the options' names and ``[settings.MEASURE]`` tables."""
    try:
        with open(path, "rb") as stream:
            content = tomllib.load(stream)
    except FileNotFoundError as error:
        raise UsageError(f"--config: there is no file {path}") from error
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--config {path} is not readable TOML: {error}") from error
    return _from_values({key.replace("-", "_"): value for key, value in content.items()}, f"--config {path}")


def from_report(path: str) -> Request:
    """Return how an earlier report was measured."""
    from spiritlevel.cli.own_measures import asked_again
    from spiritlevel.inputs.losses import NAMES
    from spiritlevel.results import load_reports

    report = load_reports(path)[0]
    head = report.header
    request = head.request or {}
    values = {name: request[name] for name in _LIKE if request.get(name) not in (None, [], {})}
    # A report made in Python has no request; its header says the same.
    if head.samples is not None and head.samples != head.samples_total:
        values.setdefault("samples", head.samples)
    for name in ("seed", "mode", "dtype", "precision"):
        if getattr(head, name) is not None:
            values.setdefault(name, getattr(head, name))
    if head.loss_name in NAMES:
        values.setdefault("loss", head.loss_name)
    values["measures"] = asked_again(report, request.get("measures") or ())
    values["settings"] = report.settings
    return _from_values(values, f"--like {path}")


def with_loss_of_task(request: Request) -> Request:
    """Return the request with the loss that its task is trained with, where nobody said another."""
    if request.task is None:
        return request
    return request.over(Request(loss=task_named(request.task).loss))


def check_request(request: Request) -> Request:
    """Return the request with its defaults, after refusing what can be refused before anything is loaded."""
    from spiritlevel.analyses.measure_settings import chosen_settings
    from spiritlevel.cli.own_measures import named_measures
    from spiritlevel.inputs.deadline import Deadline
    from spiritlevel.measures.registry import select

    if request.model is None:
        raise UsageError("no MODEL was given; name a built-in network, package.module:name or path/file.py:name")
    if request.data is None:
        raise UsageError("no data was given; use --data digits, --data FILE.npz or --data package.module:name")
    if request.task is None and is_text_file(request.data):
        raise UsageError(f"{request.data} is text, and --task says what is done with it: {', '.join(TASKS)}")
    if request.seconds is not None:
        Deadline(request.seconds)  # which refuses what is no time
    filled = request.over(Request(loss="cross_entropy", seed=0, mode="eval", measures=("default",)))
    chosen = select(named_measures(filled.measures))
    names = [measure.name for measure in chosen]
    for name in filled.settings:
        if name not in names:
            raise UsageError(
                f"a setting is given for {name!r}, which is not among the chosen measures{near_names(name, names)}"
            )
    chosen_settings(chosen, filled.flat_settings())
    for path in filled.weights:
        if not Path(path).exists():
            folder = Path(path).parent
            # Nobody means a hidden file, which short names come close to.
            entries = folder.iterdir() if folder.is_dir() else ()
            siblings = [entry.name for entry in entries if not entry.name.startswith(".")]
            raise UsageError(f"there is no weights file {path}{near_names(Path(path).name, siblings)}")
    return filled


def _from_values(values: Mapping[str, Any], source: str) -> Request:
    known = [part.name for part in fields(Request)]
    cleaned: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            raise UsageError(f"{source} has an unknown key {key!r}{near_names(key, known)}")
        if key in _LISTS:
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
                raise UsageError(f"{source}: {key} must be a list of texts, not {value!r}")
            value = tuple(value)
        elif not isinstance(value, _KINDS.get(key, (str,))) or isinstance(value, bool):
            wanted = _KINDS.get(key, (str,))[0].__name__
            raise UsageError(f"{source}: {key} must be a {wanted}, not {value!r}")
        if key == "settings" and not all(isinstance(own, dict) for own in value.values()):
            raise UsageError(f"{source}: settings must be tables by measure, as in [settings.hessian_trace]")
        cleaned[key] = value
    try:
        return Request(**cleaned)
    except TypeError as error:
        raise SpiritlevelError(f"{source} cannot be used: {error}") from error
