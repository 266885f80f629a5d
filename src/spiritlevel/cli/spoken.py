"""What is said in Python's words, as the command line has it: ``samples=N`` is ``--samples N`` there."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from typing import Any, TypeVar, cast

# Arguments of Python's functions that are options of the commands under the same name.
OPTIONS = (
    "samples", "seed", "batch_size", "device", "dtype", "precision", "mode", "parameters", "measures", "loss",
    "forward", "tolerance", "seconds", "key", "groups", "strengths", "alphas", "operator", "probes", "steps",
    "max_probes", "strategy", "keep_graphs", "learning_rate", "runs",
)  # fmt: skip
# What only Python has is left out.
_PHRASES = {
    "saved with --json or save()": "saved with --json",
    ", or pass dtype=None to work in its own precision": "",
    "pass loss=... as a name": "give --loss with a name",
    " or as a function (outputs, batch) that returns one loss per sample": "",
}
_ARGUMENT = re.compile(r"""(?<![\w.'"\-])(?!key=value\b)(?P<name>[a-z_]+)=(?P<value>'[^']*'|"[^"]*"|[\w*.+-]*[\w*])""")
# Where results hold sentences; all other text in them is a name.
_SENTENCES = ("reason", "notes", "headings", "reading", "answer", "refused", "left_alone", "untraced")

Spoken = TypeVar("Spoken")


def in_cli_words(text: str) -> str:
    """Return a sentence whose arguments of Python's functions are written as options."""
    for phrase, instead in _PHRASES.items():
        text = text.replace(phrase, instead)
    return _ARGUMENT.sub(lambda match: match[0] if _in_a_call(text, match.start()) else _as_option(match), text)


def results_in_cli_words(found: Spoken) -> Spoken:
    """Return a result with its sentences (reasons, notes) in the words of the command line; nothing else changes."""
    changed = own_found = cast(Any, found)
    if dataclasses.is_dataclass(found) and not isinstance(found, type):
        parts = {part.name: getattr(found, part.name) for part in dataclasses.fields(found) if part.init}
        new = {name: _said(own) if name in _SENTENCES else results_in_cli_words(own) for name, own in parts.items()}
        new = {name: own for name, own in new.items() if own is not parts[name]}
        changed = dataclasses.replace(found, **new) if new else found
    elif type(found) is dict:
        entries = {key: results_in_cli_words(own) for key, own in own_found.items()}
        changed = entries if any(own is not own_found[key] for key, own in entries.items()) else found
    elif type(found) in (list, tuple):
        items = [results_in_cli_words(own) for own in own_found]
        changed = found if all(new is old for new, old in zip(items, own_found)) else type(own_found)(items)
    return cast(Spoken, changed)


def _said(value: Any) -> Any:
    """Return what holds sentences in the words of the command line; the very same where nothing changes."""
    if isinstance(value, str):
        said = in_cli_words(value)
        return value if said == value else said
    if isinstance(value, Mapping):
        entries = {key: _said(own) for key, own in value.items()}
        return entries if entries != value else value
    if isinstance(value, (list, tuple)):
        items = type(value)(_said(own) for own in value)
        return items if items != value else value
    return value


def _as_option(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"].strip("'\"")
    if name not in OPTIONS:
        return _as_setting(name, value) or match[0]
    option = name.replace("_", "-")
    if value in ("True", "False"):
        return f"--{option}" if value == "True" else f"--no-{option}"
    return f"--{option} {shlex.quote(value)}"


def _as_setting(name: str, value: str) -> str:
    """Return the setting of a measure as --set takes it; nothing for what is none."""
    from spiritlevel.measures.registry import MEASURES

    owners = [measure.name for measure in MEASURES.values() if name in measure.settings]
    if not owners:
        return ""
    return f"--set {owners[0] if len(owners) == 1 else 'MEASURE'}.{name}={value}"


def _in_a_call(text: str, place: int) -> bool:
    """Whether a place lies within the brackets of something that is called, as in ``f(a=1, b=2)``."""
    depth = 0
    for at in range(place - 1, 0, -1):
        depth += (text[at] == ")") - (text[at] == "(")
        if depth < 0:
            return text[at - 1].isidentifier() or text[at - 1].isdigit()
    return False
