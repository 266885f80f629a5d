"""``spiritlevel list``: measures, built-in networks and data sets, from their declarations."""

from __future__ import annotations

from rich import box
from rich.table import Table
from rich.text import Text

from spiritlevel.cli.screens import console
from spiritlevel.errors import UsageError, near_names

_KINDS = ("measures", "nets", "data")


def show_list(what: str) -> int:
    """Print one of the listings."""
    if what not in _KINDS:
        raise UsageError(f"there is no list of {what!r}{near_names(what, _KINDS)}; the lists are {', '.join(_KINDS)}")
    {"measures": _measures, "nets": _nets, "data": _data}[what]()
    return 0


def _measures() -> None:
    from spiritlevel.measures.registry import GROUPS, MEASURES

    table = _table("name", "meaning", "sharper when", "unchanged by", "cost", "settings", "from")
    for measure in MEASURES.values():
        kept = [name.replace("_", " ") for name, answer in measure.invariances.items() if answer]
        settings = ", ".join(f"{name}={value!r}" for name, value in measure.settings.items())
        table.add_row(
            Text(f"{measure.title}\n").append(measure.name, style="dim"),
            Text(measure.meaning),
            measure.sharper_when or "—",
            ", ".join(kept) or "—",
            Text(str(measure.cost)),
            Text(settings or "—"),
            Text(measure.citation),
        )
    screen = console()
    screen.print(table)
    for group, members in GROUPS.items():
        words = ", ".join(members) if len(members) <= 8 else f"{len(members)} measures"
        screen.print(Text(f"group {group}: {words}"))


def _nets() -> None:
    from spiritlevel.nets import NETS

    table = _table("name", "what it is", "images", "classes", "options (--model-args)", "from")
    for spec in NETS.values():
        options = ", ".join(f"{name}={value!r}" for name, value in spec.options.items())
        shape = f"{spec.channels}x{spec.size}x{spec.size}"
        table.add_row(spec.name, Text(spec.meaning), shape, str(spec.classes), Text(options or "—"), spec.paper or "—")
    console().print(table)


def _data() -> None:
    from spiritlevel.datasets import DATASETS, cache_folder

    table = _table("name", "what it is", "images", "classes", "train, test", "files")
    for spec in DATASETS.values():
        get = f"spiritlevel data get {spec.name}, or " if spec.fetchable else ""
        files = f"{get}{spec.files}" if spec.files else "built in"
        counts = ", ".join(f"{count:,}" for count in spec.samples)
        shape = "x".join(map(str, spec.shape))
        table.add_row(spec.name, Text(spec.meaning), shape, str(spec.classes), counts, Text(files))
    screen = console()
    screen.print(table)
    screen.print(Text(f"Files are looked for in --data-root and in {cache_folder()}."))


def _table(*columns: str) -> Table:
    table = Table(box=box.ROUNDED, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
