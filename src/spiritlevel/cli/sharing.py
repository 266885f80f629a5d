"""One set of options for every command that measures: they are those of ``spiritlevel measure``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

if TYPE_CHECKING:
    from spiritlevel.cli.request import Request

Command = Callable[..., int]
# Options of ``measure`` that no other command has.
ALONE = ("per_sample", "layers", "workers", "ray")


def option(name: str, kind: Any, default: Any, described: Any) -> inspect.Parameter:
    """Return one more option of a command; ``described`` is typer's Option or Argument."""
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, described]
    )


def with_options_of(
    source: Command, *, leave_out: Sequence[str] = (), more: Sequence[inspect.Parameter] = ()
) -> Callable[[Callable[[dict[str, Any]], int]], Command]:
    """Give a function of a dictionary the options of another command, but for some, and some of its own."""

    def wrap(function: Callable[[dict[str, Any]], int]) -> Command:
        hints = get_type_hints(source, include_extras=True)
        own = {each.name for each in more}
        shared = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, parameter in inspect.signature(source).parameters.items()
            if name not in leave_out and name not in own
        ]
        first = [each for each in more if _is_argument(each)]
        parameters = [*first, *shared, *(each for each in more if not _is_argument(each))]

        def command(**options: Any) -> int:
            return function(options)

        command.__doc__ = function.__doc__
        command.__name__ = function.__name__
        command.__annotations__ = {each.name: each.annotation for each in parameters} | {"return": int}
        command.__signature__ = inspect.Signature(parameters, return_annotation=int)  # type: ignore[attr-defined]  # for typer
        return command

    return wrap


def chosen_of(options: Mapping[str, Any], own: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Return what was chosen, other than by default, among a command's own options."""
    every = {each.name: options.get(each.name, each.default) for each in own if not _is_argument(each)}
    return {each.name: every[each.name] for each in own if each.name in every and every[each.name] != each.default}


def _is_argument(parameter: inspect.Parameter) -> bool:
    import typer

    return any(isinstance(part, typer.models.ArgumentInfo) for part in parameter.annotation.__metadata__)


def request_of(options: Mapping[str, Any]) -> Request:
    """Return the checked request that options make: the command line over --config over --like."""
    from spiritlevel.cli import request as requests
    from spiritlevel.cli.values import parse_pairs, parse_settings, split_list

    asked = requests.Request(
        model=options.get("model"),
        weights=(*(options.get("weights") or ()), *(options.get("more_weights") or ())),
        model_args=parse_pairs(options.get("model_args") or (), "--model-args"),
        data_args=parse_pairs(options.get("data_args") or (), "--data-args"),
        parameters=tuple(split_list(options.get("parameters") or ())),
        measures=tuple(split_list(options.get("measures") or ())),
        settings=parse_settings(options.get("set_") or ()),
        **{
            name: options.get(name)
            for name in (
                "data", "data_root", "key", "task", "loss", "forward", "samples", "seed", "batch_size", "device",
                "dtype", "precision", "mode", "tolerance", "seconds",
            )
        },
    )  # fmt: skip
    if options.get("config") is not None:
        asked = asked.over(requests.from_config(options["config"]))
    asked = requests.with_loss_of_task(asked)  # before an earlier report lends its own
    if options.get("like") is not None:
        asked = asked.over(requests.from_report(options["like"]))
    return requests.check_request(asked)
