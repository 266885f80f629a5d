"""Values as people write them on a command line: ``key=value`` with numbers, lists, true, false and none."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from spiritlevel.values.errors import UsageError

_WORDS = {"true": True, "false": False, "none": None, "null": None}


def parse_value(text: str) -> Any:
    """Return a number, list, true, false, none, or else the text itself."""
    word = text.strip()
    if word.lower() in _WORDS:
        return _WORDS[word.lower()]
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, Any]:
    """Return the dictionary of several ``key=value`` texts; commas may also separate the pairs of one text."""
    pairs: dict[str, Any] = {}
    for text in texts:
        for piece in _split_pairs(text):
            key, equals, value = piece.partition("=")
            if not equals or not key.strip():
                raise UsageError(f"{option} {text!r} is not of the form key=value")
            pairs[key.strip()] = parse_value(value)
    return pairs


def parse_settings(texts: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return settings by measure from ``name.option=value`` texts."""
    settings: dict[str, dict[str, Any]] = {}
    for key, value in parse_pairs(texts, "--set").items():
        name, dot, setting = key.partition(".")
        if not dot or not name or not setting:
            raise UsageError(f"--set {key!r} must name a measure and its setting, as in hessian_trace.tolerance=0.01")
        settings.setdefault(name, {})[setting] = value
    return settings


def split_list(texts: Iterable[str]) -> list[str]:
    """Return the names of texts that may each hold several, separated by commas."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def _split_pairs(text: str) -> list[str]:
    """Split ``a=1,b=[2,3]`` at commas outside brackets that begin another pair."""
    pieces, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0 and "=" in text[position + 1 :]:
            pieces.append(text[start:position])
            start = position + 1
    return [*pieces, text[start:]]
