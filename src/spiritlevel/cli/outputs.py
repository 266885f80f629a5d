"""The files a command writes, checked against what it reads before the first pass over the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spiritlevel.cli.pages import check_page
from spiritlevel.cli.standard_output import keep_for_result

_OPTIONS = ("json", "html", "figure")


def refuse_lossy(options: Mapping[str, Any], inputs: Iterable[tuple[str, Any]]) -> None:
    """Refuse outputs that cannot be written, that are one file, or that would replace one of the inputs."""
    from spiritlevel.results.writing import check_outputs

    check_outputs(_written(options), inputs)
    check_page(options.get("html"), options.get("learning_rate"))
    if options.get("figure") is not None:
        from spiritlevel.page.spectrum_figure import check_figure

        check_figure(options["figure"])


def refuse_code(options: Mapping[str, Any]) -> None:
    """Refuse outputs that would replace the user's own code, once all of it is loaded."""
    from spiritlevel.cli.user_code import source_files
    from spiritlevel.results.writing import check_outputs

    check_outputs(_written(options), [("the user's own code", file) for file in source_files()])


def also_read(options: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the files named by options that a request does not hold."""
    return {name: options.get(name) for name in ("config", "like", "test", "runs")}


def keep_stdout(options: Mapping[str, Any]) -> None:
    """Keep standard output for the result alone where it is asked for there."""
    if options.get("json") == "-":
        keep_for_result()


def deliver(found: Any, options: Mapping[str, Any], **shown: Any) -> None:
    """Write a result to standard output as JSON where asked for there; else save it where asked and print its table."""
    from spiritlevel.cli.screens import console
    from spiritlevel.cli.standard_output import write_result
    from spiritlevel.results.records import strict_dumps

    target = options.get("json")
    if target == "-":
        write_result(strict_dumps(found.record()))
        return
    if target is not None:
        found.save(target)
    console().print(found.table(**shown))


def _written(options: Mapping[str, Any]) -> list[tuple[str, Any]]:
    given = ((name, options.get(name)) for name in _OPTIONS)
    return [(f"--{name}", path) for name, path in given if path is not None and path != "-"]
