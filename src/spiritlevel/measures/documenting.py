"""The page of measures, written from their declarations (``make docs``)."""

from __future__ import annotations

import sys

from spiritlevel.measures.declaration import Measure
from spiritlevel.measures.registry import GROUPS, MEASURES
from spiritlevel.results.writing import replacing
from spiritlevel.values.symmetries import SYMMETRIES

_ANSWERS = {True: "unchanged", False: "changes", None: "not known"}
# Reordering units changes no measure, so the table leaves it out.
_COLUMNS = [each for each in SYMMETRIES.values() if each.name != "permutation"]


def page() -> str:
    """Return the Markdown page of all measures."""
    parts = [
        "# Measures",
        "",
        "Generated from the declarations in `src/spiritlevel/measures/`; do not edit by hand (`make docs` writes it).",
        "",
        "Groups: "
        + "; ".join(f"`{name}` ({len(members)} measures)" for name, members in GROUPS.items())
        + ". `default` holds "
        + ", ".join(f"`{name}`" for name in GROUPS["default"])
        + ".",
        "",
        f"| measure | name | {' | '.join(each.words for each in _COLUMNS)} |",
        f"|---|---|{'---|' * len(_COLUMNS)}",
        *(_row(measure) for measure in MEASURES.values()),
        "",
        *(line for measure in MEASURES.values() for line in _section(measure)),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _row(measure: Measure) -> str:
    answers = [_ANSWERS[measure.invariances[each.name]] for each in _COLUMNS]
    return f"| {measure.title} | [`{measure.name}`](#{measure.name}) | {' | '.join(answers)} |"


def description(measure: Measure) -> dict[str, str]:
    """Return all that is declared of a measure, in words, by label."""
    found = {"meaning": measure.meaning, "formula": measure.formula, "from": measure.citation}
    if measure.sharper_when:
        found["sharper when"] = measure.sharper_when
    found |= {each.words: _ANSWERS[measure.invariances[each.name]] for each in SYMMETRIES.values()}
    found["cost alone"] = str(measure.cost)
    if measure.settings:
        found["settings"] = ", ".join(_setting(measure, name) for name in measure.settings)
    if measure.layer_quantities:
        found["by layer"] = ", ".join(measure.layer_quantities)
    return found


def _section(measure: Measure) -> list[str]:
    words = description(measure)
    shown = [f"- {label}: {text}" for label, text in words.items() if label not in ("meaning", "formula")]
    head = [f"## `{measure.name}`", "", f"**{measure.title}.** {measure.meaning}", "", f"$$ {measure.formula} $$", ""]
    return [*head, *shown, f"- [how to read it](measure-by-measure.md#{measure.name})", ""]


def _setting(measure: Measure, name: str) -> str:
    choices = measure.choices.get(name)
    options = f" (one of {', '.join(map(str, choices))})" if choices else ""
    return f"{name}={measure.settings[name]!r}{options}"


if __name__ == "__main__":
    with replacing(sys.argv[1]) as stream:
        stream.write(page())
