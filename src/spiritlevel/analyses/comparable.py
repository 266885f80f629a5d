"""Which networks may be compared: problems or reports by label, on the same data, with the same loss and mode."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spiritlevel.inputs.open_problem import Measurable, OpenProblem
from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import MEASURES
from spiritlevel.results import Report, load_reports
from spiritlevel.results.header import Header
from spiritlevel.results.wording import shared_prefix_removed
from spiritlevel.values.errors import UsageError

Networks = Mapping[str, Measurable | Report | str | os.PathLike[str]]


def labelled(networks: Networks | Iterable[str | os.PathLike[str] | Report]) -> dict[str, Measurable | Report]:
    """Return problems and reports by label; paths are read, and a file of several reports gives several networks."""
    if isinstance(networks, Mapping):
        pairs: list[tuple[str, Any]] = [(str(label), item) for label, item in networks.items()]
    else:
        items = list(networks)
        paths = [str(item) for item in items if isinstance(item, (str, os.PathLike))]
        short = dict(zip(paths, shared_prefix_removed(paths)))
        pairs = [(short[str(i)] if isinstance(i, (str, os.PathLike)) else _own_label(i), i) for i in items]
    found: dict[str, Measurable | Report] = {}
    entries: list[tuple[str, Measurable | Report]]
    for label, item in pairs:
        if isinstance(item, (str, os.PathLike)):
            loaded = load_reports(Path(item))
            several = len(loaded) > 1
            entries = [(_own_label(report) if several else label, report) for report in loaded]
        elif isinstance(item, (Measurable, Report)):
            entries = [(label, item)]
        else:
            raise UsageError(f"{label!r} is a {type(item).__name__}; give Problems, Reports or paths of saved reports")
        for own, report in entries:
            if own in found:
                raise UsageError(f"two networks are called {own!r}; give each a name of its own")
            found[own] = report
    return found


def _own_label(item: Any) -> str:
    return item.header.label if isinstance(item, Report) else Header().label


def declared_for(reports: Mapping[str, Report]) -> dict[str, Measure]:
    """Return the measures in the reports that are declared here."""
    return {name: MEASURES[name] for report in reports.values() for name in report if name in MEASURES}


def refuse_different_data(problems: Mapping[str, OpenProblem]) -> None:
    """Refuse other data or another loss before any measure is computed."""
    heads = {
        label: Header(fingerprint=p.survey.fingerprint, loss_name=p.loss.name, samples=p.survey.count)
        for label, p in problems.items()
    }
    _refuse_different_heads(heads)


def refuse_different(reports: Mapping[str, Report]) -> None:
    """Refuse reports on other data, of another loss or in another mode."""
    _refuse_different_heads({label: report.header for label, report in reports.items()})


def _refuse_different_heads(heads: Mapping[str, Header]) -> None:
    first, *others = heads
    for other in others:
        a, b = heads[first], heads[other]
        if not a.fingerprint or a.fingerprint != b.fingerprint:
            marks = " and ".join(str(head.fingerprint or "none") for head in (a, b))
            raise UsageError(
                f"{first} and {other} were measured on different data (fingerprints {marks}), whose numbers are never "
                "paired; measure both on the same samples"
            )
        if a.loss_name != b.loss_name:
            raise UsageError(
                f"{first} was measured with the loss {a.loss_name} and {other} with {b.loss_name}, which "
                "cannot be compared; measure both with the same loss"
            )
        if a.mode != b.mode:
            raise UsageError(
                f"{first} was measured in {a.mode} mode and {other} in {b.mode} mode, which are "
                "different functions; measure both in the same mode"
            )
