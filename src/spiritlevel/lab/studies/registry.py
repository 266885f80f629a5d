"""All studies by name, in the order of the papers."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from functools import cache
from importlib import import_module

from spiritlevel.lab.studies.study import Study
from spiritlevel.values.errors import UsageError, near_names

_ROOMS = ("margins", "nfm", "false_friend", "petzka")


@cache
def studies() -> dict[str, Study]:
    """Return every study by its name."""
    found: dict[str, Study] = {}
    for room in _ROOMS:
        for study in import_module(f"spiritlevel.lab.studies.{room}").STUDIES:
            found[study.name] = study
    return found


def study_named(name: str) -> Study:
    """Return one study."""
    if name not in studies():
        raise UsageError(
            f"There is no study {name!r}{near_names(name, studies()) or '.'} The names are {', '.join(studies())}."
        )
    return studies()[name]


def chosen_studies(names: Sequence[str]) -> list[Study]:
    """Return the studies meant by names and globs (``margins-*``), in the order of the papers."""
    wanted: set[str] = set()
    for name in names:
        wanted.update(fnmatch.filter(studies(), name) or [study_named(name).name])
    return [study for name, study in studies().items() if name in wanted]
