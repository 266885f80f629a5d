"""Text as people keep it: plain files, JSON lines, or what a function of the user's own returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spiritlevel.values.errors import SpiritlevelError, UsageError, near_names

ENDINGS = (".txt", ".jsonl")


@dataclass(frozen=True)
class TextRecord:
    """One entry of the data with the place where it stands, in words."""

    place: str
    fields: Mapping[str, Any]

    def refused(self, what: str) -> UsageError:
        """Return the error that this entry causes."""
        return UsageError(f"{self.place} {what}")


def is_text_file(name: str) -> bool:
    """Whether a name is that of a text file or of JSON lines."""
    return name.lower().endswith(ENDINGS)


def read_text_records(name: str) -> list[TextRecord]:
    """Return the records of a file: all of a text file as one, or each line of JSON lines."""
    path = Path(name)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        siblings = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise UsageError(f"there is no file {path}{near_names(path.name, siblings)}") from error
    except UnicodeDecodeError as error:
        raise SpiritlevelError(
            f"{path} is no text in UTF-8 (at byte {error.start:,}); convert it, for instance with iconv -t UTF-8"
        ) from error
    except OSError as error:
        raise SpiritlevelError(f"{path} cannot be read: {error.strerror or error}") from error
    records = list(_lines(text, name)) if name.lower().endswith(".jsonl") else [TextRecord(name, {"text": text})]
    if not text.strip() or not records:
        raise SpiritlevelError(f"{path} is empty, so there is nothing to measure on")
    return records


def records_of(found: Any, name: str) -> list[TextRecord] | None:
    """Return what Python code gave as records where it is texts or dictionaries with text or tokens as lists."""
    if not isinstance(found, (list, tuple)) or not found:
        return None
    records = []
    for number, entry in enumerate(found, 1):
        fields = {"text": entry} if isinstance(entry, str) else entry
        if not isinstance(fields, Mapping) or not all(_is_plain(value) for value in fields.values()):
            return None
        records.append(TextRecord(f"{name}, entry {number},", fields))
    return records


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (str, int, float, dict)) or _is_list(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, (str, int, float)) for item in value)


def _lines(text: str, name: str) -> Iterator[TextRecord]:
    for number, line in enumerate(text.split("\n"), 1):  # other line breaks may stand inside a JSON text
        if not line.strip():
            continue
        place = f"{name}, line {number},"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            words = getattr(error, "msg", str(error))
            raise UsageError(
                f'{place} is not JSON ({words}); each line is an object such as {{"text": "…"}}'
            ) from error
        if not isinstance(fields, dict):
            raise UsageError(f'{place} is a {type(fields).__name__}; each line is an object such as {{"text": "…"}}')
        yield TextRecord(place, fields)
