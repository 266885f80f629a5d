"""All measures by name, the groups they form, and choosing among them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import ModuleType

from spiritlevel.measures import (
    feature_robustness,
    fisher_rao,
    hessian,
    margins,
    normalized,
    norms,
    pac_bayes,
    perturbation,
    petzka,
)
from spiritlevel.measures.declaration import Measure, in_sentence
from spiritlevel.values.errors import UsageError, near_names

# The order of the families is the order of every listing.
_FAMILIES: tuple[ModuleType, ...] = (
    hessian,
    perturbation,
    norms,
    margins,
    normalized,
    pac_bayes,
    fisher_rao,
    petzka,
    feature_robustness,
)


def _declared() -> Iterator[tuple[str, Measure]]:
    for family in _FAMILIES:
        for item in vars(family).values():
            if isinstance(item, Measure):
                yield item.name, replace(item, builtin=True)


MEASURES: dict[str, Measure] = dict(_declared())

DEFAULT = (
    "hessian_trace",
    "hessian_top_eigenvalue",
    "normalized_sharpness",
    "kappa_tau_sum",
    "rho_sum",
    "output_margin",
)


def _costs_only_forward(measure: Measure) -> bool:
    return set(measure.needs) <= {"outputs", "problem", "seed"} and not (
        measure.cost.gradient or measure.cost.column or measure.cost.product
    )


GROUPS: dict[str, tuple[str, ...]] = {
    "default": DEFAULT,
    "cheap": tuple(name for name, measure in MEASURES.items() if _costs_only_forward(measure)),
    "papers": tuple(name for name in MEASURES if name != "normalized_sharpness_direct"),
    "all": tuple(MEASURES),
}


def words_of(name: str, title: str) -> str:
    """Return a measure as it stands inside a sentence, also one that only a report knows, by its title."""
    declared = MEASURES.get(name)
    return declared.words if declared is not None and declared.title == title else in_sentence(title)


def select(measures: str | Measure | Iterable[str | Measure]) -> list[Measure]:
    """Return the measures meant by names, groups, globs (``kappa_*``), comma lists and declared functions, in order."""
    chosen: dict[str, Measure] = {}
    items = [measures] if isinstance(measures, (str, Measure)) else list(measures)
    for item in items:
        if isinstance(item, Measure):
            chosen[item.name] = item
            continue
        if not isinstance(item, str):
            raise UsageError(
                f"a measure must be a name or declared with spiritlevel.declare(...), not {type(item).__name__}"
            )
        for word in filter(None, (part.strip() for part in item.split(","))):
            names = GROUPS.get(word) or fnmatch.filter(MEASURES, word)
            if not names:
                known = [*MEASURES, *GROUPS]
                raise UsageError(f"there is no measure named {word!r}{near_names(word, known)}")
            chosen.update((name, MEASURES[name]) for name in names)
    if not chosen:
        raise UsageError("no measure was asked for; name some, or use the group 'default'")
    return list(chosen.values())
