"""Records against the published schema: the first thing that is wrong in a file somebody edited, in words."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any

_TYPES: dict[str, type] = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
_NAMES = {"object": "an object", "array": "a list", "string": "text", "boolean": "true or false", "null": "null"}
_NAMES |= {"number": "a finite number", "integer": "a whole number"}
_LONGEST = 60  # of a wrong value that is shown


def what_is_wrong(record: Any, kind: str) -> str:
    """Return what of a record does not follow its part of the schema, as ``place must be …, not …``, or nothing."""
    return _wrong(record, _published()["$defs"][kind], "")


@cache
def _published() -> dict[str, Any]:
    from spiritlevel.results.records import schema

    return schema()


def _wrong(value: Any, rule: Mapping[str, Any], place: str) -> str:
    """Look at one value and all it holds; the schema uses no more of the language than is understood here."""
    if "$ref" in rule:
        return _wrong(value, _published()["$defs"][rule["$ref"].rpartition("/")[2]], place)
    if "const" in rule and value != rule["const"]:
        return _said(place, repr(rule["const"]), value)
    if "enum" in rule and value not in rule["enum"]:
        return _said(place, "one of " + ", ".join(map(str, rule["enum"])), value)
    kinds = [rule["type"]] if isinstance(rule.get("type"), str) else rule.get("type", [])
    if kinds and not any(_is(value, kind) for kind in kinds):
        return _said(place, " or ".join(_NAMES[kind] for kind in kinds), value)
    for other in rule.get("allOf", ()):
        found = _wrong(value, other, place)
        if found:
            return found
    if isinstance(value, dict):
        return _wrong_in_object(value, rule, place)
    if isinstance(value, list):
        return _wrong_in_list(value, rule, place)
    return ""


def _wrong_in_object(value: dict[str, Any], rule: Mapping[str, Any], place: str) -> str:
    for key in rule.get("required", ()):
        if key not in value:
            return f"{_joined(place, key)} is missing"
    known, others = rule.get("properties", {}), rule.get("additionalProperties", True)
    for key, item in value.items():
        own = known.get(key, others)
        if own is False:
            return f"{_joined(place, key)} is not known"
        found = _wrong(item, own, _joined(place, key)) if isinstance(own, Mapping) else ""
        if found:
            return found
    return ""


def _wrong_in_list(value: list[Any], rule: Mapping[str, Any], place: str) -> str:
    least, most = rule.get("minItems", 0), rule.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        wanted = least if least == most else f"{least} to {most}"
        return f"{place or 'it'} has {len(value)} entries, and {wanted} belong there"
    own = rule.get("items")
    if not isinstance(own, Mapping):
        return ""
    if "number" in own.get("type", ()) and set(map(type, value)) == {float} and all(map(math.isfinite, value)):
        return ""  # one number a sample: there may be many
    for position, item in enumerate(value):
        found = _wrong(item, own, f"{place}[{position}]")
        if found:
            return found
    return ""


def _is(value: Any, kind: str) -> bool:
    if kind in _TYPES:
        return isinstance(value, _TYPES[kind])
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value)) and (kind == "number" or isinstance(value, int))
    except OverflowError:  # a whole number of hundreds of digits
        return False


def _joined(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _said(place: str, wanted: str, value: Any) -> str:
    kind = "object" if isinstance(value, dict) else "array" if isinstance(value, list) else ""
    shown = _NAMES[kind] if kind else json.dumps(value)
    return f"{place or 'it'} must be {wanted}, not {shown if len(shown) <= _LONGEST else shown[:_LONGEST] + '…'}"
