"""A measure is one pure function with a declaration; listings, docs, reports, plans and tests are made from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from spiritlevel.values.errors import UsageError

# What a measure may take by position: names of quantities that are computed once and shared (see workbench.py).
QUANTITIES = (
    "problem",
    "outputs",
    "gradient",
    "blocks",
    "fisher",
    "radial",
    "eigen",
    "layer_eigen",
    "perturbed",
    "seed",
)
# Maps of the parameters that keep the function, or only scale the outputs; a measure answers for each.
SYMMETRIES = ("layer_rescaling", "neuron_rescaling", "output_scaling", "permutation")

Answer = bool | None  # invariant, not invariant, or not known


@dataclass(frozen=True)
class Cost:
    """Sweeps over the data by kind, as numbers or as words that a setting or the problem fills in.

    ``columns`` are backward passes of the curvature sweep (classes - 1 for cross-entropy); a sampled remainder adds
    products where a layer is not piecewise linear.
    """

    forward: float | str = 0
    gradient: float | str = 0
    column: float | str = 0
    product: float | str = 0

    def __str__(self) -> str:
        words = {"forward": "forward", "gradient": "gradient", "column": "backward columns", "product": "products"}
        parts = [f"{getattr(self, kind)} {word}" for kind, word in words.items() if getattr(self, kind)]
        return ", ".join(parts) or "no pass over the data"


@dataclass(frozen=True)
class Measure:
    """A declared measure; calling it runs the function."""

    name: str
    function: Callable[..., Any]
    title: str
    meaning: str
    formula: str
    citation: str
    sharper_when: Literal["larger", "smaller", ""]
    cost: Cost
    invariances: Mapping[str, Answer]
    needs: tuple[str, ...]
    settings: Mapping[str, Any]
    wants: frozenset[str] = frozenset()  # what of the diagonal blocks it uses (passes.curvature.WANTS), or "fisher"
    reference: Callable[..., float] | None = None
    layer_quantities: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()  # "classes": integer labels and class scores; "independent": samples not coupled
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    builtin: bool = False

    def __call__(self, *quantities: Any, **settings: Any) -> Any:
        return self.function(*quantities, **settings)

    def checked_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings with the given ones in place, refusing unknown names and values."""
        from spiritlevel.values.errors import near_names

        for key, value in given.items():
            if key not in self.settings:
                known = ", ".join(self.settings) or "none"
                raise UsageError(
                    f"measure {self.name} has no setting {key!r} (it has: {known}){near_names(key, self.settings)}"
                )
            if key in self.choices and value not in self.choices[key]:
                raise UsageError(
                    f"setting {self.name}.{key} must be one of {', '.join(map(repr, self.choices[key]))}, not {value!r}"
                )
        return {**self.settings, **given}


def declare(
    *,
    title: str,
    formula: str,
    citation: str,
    sharper_when: Literal["larger", "smaller", ""] = "larger",
    cost: Cost | None = None,
    invariant: tuple[str, ...] = (),
    not_invariant: tuple[str, ...] = (),
    wants: tuple[str, ...] = (),
    reference: Callable[..., float] | None = None,
    layer_quantities: tuple[str, ...] = (),
    requires: tuple[str, ...] = (),
    choices: Mapping[str, tuple[Any, ...]] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], Measure]:
    """Declare a measure: the decorated function's positional arguments name what it needs, its keywords its settings.

    The first line of its docstring is the meaning.  Positional names come from ``QUANTITIES``; a function of
    ``problem`` alone can do anything.  It returns a number, an ``Estimate`` or a ``Result``.
    """

    def wrap(function: Callable[..., Any]) -> Measure:
        own_name = name or function.__name__
        needs, settings = _read_signature(own_name, function)
        unknown = (set(invariant) | set(not_invariant)) - set(SYMMETRIES)
        if unknown or set(invariant) & set(not_invariant):
            raise UsageError(
                f"measure {own_name} must name each symmetry at most once, from {', '.join(SYMMETRIES)}; "
                f"found {', '.join(sorted(unknown)) or 'one named as both'}"
            )
        meaning = (inspect.getdoc(function) or title).splitlines()[0]
        return Measure(
            name=own_name,
            function=function,
            title=title,
            meaning=meaning,
            formula=formula,
            citation=citation,
            sharper_when=sharper_when,
            cost=cost or Cost(),
            invariances={s: True if s in invariant else False if s in not_invariant else None for s in SYMMETRIES},
            needs=needs,
            settings=settings,
            wants=frozenset(wants),
            reference=reference,
            layer_quantities=layer_quantities,
            requires=requires,
            choices=choices or {},
        )

    return wrap


def _read_signature(name: str, function: Callable[..., Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    needs, settings = [], {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            if parameter.default is inspect.Parameter.empty:
                raise UsageError(f"measure {name}: setting {parameter.name} needs a default value")
            settings[parameter.name] = parameter.default
        elif parameter.name in QUANTITIES:
            needs.append(parameter.name)
        else:
            raise UsageError(
                f"measure {name} takes {parameter.name!r}, which is no quantity; positional arguments must be among "
                f"{', '.join(QUANTITIES)}, and settings must be keyword-only"
            )
    return tuple(needs), settings
