"""A measure is one pure function with a declaration; listings, docs, reports, plans and tests are made from it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from spiritlevel.measures.costs import Cost
from spiritlevel.measures.interpretation import Interpretation
from spiritlevel.values.errors import UsageError
from spiritlevel.values.statistics import STATISTICS
from spiritlevel.values.symmetries import SYMMETRIES

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
Answer = bool | None  # invariant, not invariant, or not known
# How the network's value may come from those of its samples; a maximum is not resampled, which would be too small.
STATISTIC_NAMES = (*STATISTICS, "maximum")
# What of the diagonal a measure may be, exactly, for the search for a rescaling that reverses an ordering.
SURROGATES = ("trace", "kappa_sum", "kappa_max", "kappa_last", "root")


@dataclass(frozen=True)
class Measure:
    """A declared measure; calling it runs the function. `declare` makes one.

    Attributes
    ----------
    name : str
        The name it is asked for by.
    function : callable
        What computes it.
    title : str
        It in words.
    meaning : str
        What it says, in one sentence.
    formula : str
        Its formula, in LaTeX.
    citation : str
        The paper and equation it is from.
    sharper_when : str
        "larger", "smaller", or nothing where it has no direction.
    cost : Cost
        What it costs alone.
    invariances : mapping
        Whether it is invariant, by symmetry: True, False, or None where that is not known.
    needs : tuple of str
        The quantities it takes.
    settings : mapping
        Its settings with their defaults.
    wants : frozenset of str
        What of the diagonal blocks it uses.
    wants_by : mapping
        What more it uses, by a setting's value.
    reference : callable
        Its brute force, from the dense matrices.
    layer_quantities : tuple of str
        What it has of every layer.
    requires : tuple of str
        "classes" (integer labels and class scores), "independent" (samples not coupled).
    choices : mapping
        The values a setting may take.
    words : str
        The title as it stands inside a sentence.
    layer_titles : mapping
        Its layer quantities in words.
    per_sample : bool or callable
        Whether its result holds a number a sample, or what computes these alone.
    statistic : str
        What of the samples' values it is.
    surrogate : str
        The function of the Hessian's diagonal that it is, where it is one.
    stability_line : bool
        Whether gradient descent keeps it at 2 over the learning rate.
    interpretation : Interpretation
        How its values are to be read; None where that does not stand in its declaration.
    builtin : bool
        Whether it comes with the package.

    Examples
    --------
    >>> from spiritlevel.measures.registry import MEASURES
    >>> trace = MEASURES["hessian_trace"]
    >>> trace.title, trace.sharper_when, str(trace.cost)
    ('Hessian trace', 'larger', '1 forward pass, outputs - 1 VJPs')
    >>> trace.invariances["layer_rescaling"]
    False
    """

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
    wants_by: Mapping[str, Mapping[Any, tuple[str, ...]]] = field(default_factory=dict)  # more, by a setting's value
    reference: Callable[..., float] | None = None
    layer_quantities: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()  # "classes": integer labels and class scores; "independent": samples not coupled
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    words: str = ""  # the title as it stands inside a sentence
    layer_titles: Mapping[str, str] = field(default_factory=dict)  # of layer quantities no measure is named like
    per_sample: bool | Callable[..., Tensor] = False  # whether its result holds them, or what computes them alone
    statistic: str = "mean"  # of the samples' values; a setting of that name takes its place
    surrogate: str = ""  # the function of the Hessian's diagonal that it is, where it is one
    stability_line: bool = False  # whether gradient descent keeps it at 2 over the learning rate
    interpretation: Interpretation | None = None  # where it does not stand in ``interpretations.py``
    builtin: bool = False

    def __call__(self, *quantities: Any, **settings: Any) -> Any:
        return self.function(*quantities, **settings)

    def wanted(self, settings: Mapping[str, Any]) -> frozenset[str]:
        """Return what of the diagonal blocks it uses with these settings.

        Parameters
        ----------
        settings : mapping
            All its settings.

        Returns
        -------
        frozenset of str
            The names of the parts.
        """
        return self.wants.union(*(by_value[settings[key]] for key, by_value in self.wants_by.items()))

    def checked_settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return all settings with the given ones in place, refusing unknown names and values.

        Parameters
        ----------
        given : mapping
            Some settings by name.

        Returns
        -------
        dict
            All settings by name.

        Raises
        ------
        UsageError
            There is no such setting, or it may not take that value.
        """
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
    wants_by: Mapping[str, Mapping[Any, tuple[str, ...]]] | None = None,
    reference: Callable[..., float] | None = None,
    layer_quantities: tuple[str, ...] = (),
    requires: tuple[str, ...] = (),
    choices: Mapping[str, tuple[Any, ...]] | None = None,
    name: str | None = None,
    words: str = "",
    layer_titles: Mapping[str, str] | None = None,
    per_sample: bool | Callable[..., Tensor] = False,
    statistic: str = "mean",
    surrogate: str = "",
    stability_line: bool = False,
    interpretation: Interpretation | None = None,
) -> Callable[[Callable[..., Any]], Measure]:
    r"""Declare a measure: the decorated function's positional arguments name what it needs, its keywords its settings.

    The first line of its docstring is the meaning.  Positional names come from ``QUANTITIES``; a function of
    ``problem`` alone can do anything.  It returns a number, an ``Estimate`` or a ``Result``.

    Parameters
    ----------
    title : str
        The measure in words.
    formula : str
        Its formula, in LaTeX.
    citation : str
        The paper and equation it is from.
    sharper_when : str
        "larger", "smaller", or "" where neither is sharper.
    cost : Cost
        What it costs alone; nothing unless said.
    invariant : tuple of str
        Symmetries that leave it as it is: among layer_rescaling, neuron_rescaling, output_scaling, permutation.
    not_invariant : tuple of str
        Symmetries that change it. What is in neither is "not known".
    wants : tuple of str
        What of the diagonal blocks it uses, beside traces.
    wants_by : mapping
        What more it uses, by a setting and its value.
    reference : callable
        Its brute force, from the dense matrices.
    layer_quantities : tuple of str
        Names of what it has of every layer.
    requires : tuple of str
        "classes": integer labels and class scores; "independent": samples that are not coupled.
    choices : mapping
        The values that settings may take, by name.
    name : str
        The name to ask for it by; by default the function's.
    words : str
        The title as it stands inside a sentence, where that differs by more than its first letter.
    layer_titles : mapping
        The titles of its ``layer_quantities``.
    per_sample : bool or callable
        Whether its result holds a number a sample under its own name, or what computes these from the same quantities.
    statistic : str
        What of the samples' numbers the value is.
    surrogate : str
        The function of the Hessian's diagonal that it is, where it is one: the search for reversals uses it.
    stability_line : bool
        Whether gradient descent keeps it at 2 over the learning rate.
    interpretation : Interpretation
        How its values are to be read: `spiritlevel.measures.interpretation.Interpretation`.

    Returns
    -------
    callable
        A decorator that makes the function a `Measure`.

    Raises
    ------
    UsageError
        A symmetry, a statistic or a quantity that does not exist is named, or a setting has no default.

    Examples
    --------
    >>> import spiritlevel as sl
    >>> @sl.declare(title="Largest weight", formula=r"\max_i |\theta_i|", citation="")
    ... def largest_weight(problem):
    ...     'Size of the largest parameter.'
    ...     return max(float(tensor.detach().abs().max()) for tensor in problem.tensors)
    >>> model = sl.nets.build("digits_mlp", seed=0)
    >>> problem = sl.Problem(model, sl.datasets.load("digits"), samples=100)
    >>> print(round(sl.measure(problem, largest_weight)["largest_weight"].value, 4))
    0.1767
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
        for value, known, what in (
            (statistic, STATISTIC_NAMES, "statistic"),
            (surrogate, ("", *SURROGATES), "surrogate"),
        ):
            if value not in known:
                raise UsageError(f"measure {own_name}: {what} must be one of {', '.join(known)}, not {value!r}")
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
            wants_by=wants_by or {},
            reference=reference,
            layer_quantities=layer_quantities,
            requires=requires,
            choices=choices or {},
            words=words or in_sentence(title),
            layer_titles=layer_titles or {},
            per_sample=per_sample,
            statistic=statistic,
            surrogate=surrogate,
            stability_line=stability_line,
            interpretation=interpretation,
        )

    return wrap


_NAMES = ("Hessian", "Gauss", "Fisher", "Frobenius", "Keskar")  # the field's own, which keep their capital anywhere


def in_sentence(title: str) -> str:
    """Return a title as it stands inside a sentence: names, symbols and abbreviations keep their capitals."""
    first = title.split(maxsplit=1)[0] if title.strip() else ""
    ordinary = first[:1].isascii() and first[:1].isupper() and first[1:].islower()
    return title[0].lower() + title[1:] if ordinary and not first.startswith(_NAMES) else title


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
