"""``spiritlevel list``: measures, built-in networks, data sets and studies, from their declarations."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from spiritlevel.cli.screens import console
from spiritlevel.values.errors import UsageError, near_names
from spiritlevel.values.rich_tables import new_table
from spiritlevel.values.symmetries import RESCALINGS, SYMMETRIES

_KINDS = ("measures", "nets", "data", "studies")


def show_list(what: str, names: Sequence[str] = ()) -> int:
    """Print one of the listings, or all that is declared of the measures named."""
    if what not in _KINDS:
        raise UsageError(f"there is no list of {what!r}{near_names(what, _KINDS)}; the lists are {', '.join(_KINDS)}")
    if names and what != "measures":
        raise UsageError(f"only measures can be listed by name; use spiritlevel list {what}")
    if what == "measures":
        _measure_details(names) if names else _measures()
    else:
        {"nets": _nets, "data": _data, "studies": _studies}[what]()
    return 0


def _measures() -> None:
    from spiritlevel.measures.registry import GROUPS, MEASURES

    table = new_table()
    table.add_column("name", no_wrap=True)
    table.add_column("meaning", overflow="fold", ratio=1)
    table.add_column("survives rescaling", no_wrap=True)
    for measure in MEASURES.values():
        kept = [SYMMETRIES[name].kind for name in RESCALINGS if measure.invariances[name]]
        table.add_row(measure.name, Text(measure.meaning), " and ".join(kept) or "no")
    screen = console()
    screen.print(table)
    for group, members in GROUPS.items():
        words = ", ".join(members) if len(members) <= 8 else f"{len(members)} measures"
        screen.print(Text(f"group {group}: {words}"))
    screen.print(Text("spiritlevel list measures NAME shows a measure's formula, source, cost and settings."))


def _measure_details(names: Sequence[str]) -> None:
    from spiritlevel.measures.documenting import description
    from spiritlevel.measures.registry import select

    screen = console()
    for measure in select(list(names)):
        screen.print(Text(f"{measure.title}  ", style="bold").append(measure.name, style="dim"))
        for label, words in description(measure).items():
            screen.print(Text(f"  {label}: {words}"))


def _nets() -> None:
    from spiritlevel.lab.nets import NETS

    table = new_table("name", "what it is", "images", "classes", "options (--model-args)", "from")
    for spec in NETS.values():
        options = ", ".join(f"{name}={value!r}" for name, value in spec.options.items())
        shape = f"{spec.channels}x{spec.size}x{spec.size}"
        table.add_row(spec.name, Text(spec.meaning), shape, str(spec.classes), Text(options or "—"), spec.paper or "—")
    console().print(table)


def _data() -> None:
    from spiritlevel.lab.datasets import DATASETS, cache_folder

    table = new_table("name", "what it is", "images", "classes", "train, test", "files")
    for spec in DATASETS.values():
        get = f"spiritlevel data get {spec.name}, or " if spec.fetchable else ""
        files = f"{get}{spec.files}" if spec.files else "built in"
        counts = ", ".join(f"{count:,}" for count in spec.samples)
        shape = "x".join(map(str, spec.shape))
        table.add_row(spec.name, Text(spec.meaning), shape, str(spec.classes), counts, Text(files))
    screen = console()
    screen.print(table)
    screen.print(Text(f"Files are looked for in --data-root and in {cache_folder()}."))


def _studies() -> None:
    from spiritlevel.cli.study_command import list_studies

    table = new_table("name", "what it is", "size")
    for name, title, size in list_studies():
        table.add_row(Text(name), Text(title), size)
    console().print(table)
