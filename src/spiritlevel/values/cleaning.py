"""Text from outside (names of files, tensors, layers, reports) at the three doors it leaves by: terminal, CSV, page."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.measure import Measurement

# Control characters (escape sequences begin with one), formats (they turn the direction of writing or are not seen at
# all), halves of characters (bytes of a file name that are no UTF-8), and separators that look like the end of a line.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
# What a spreadsheet takes for the beginning of a formula, full-width forms included.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


def for_terminal(text: str) -> str:
    """Return text that only shows something: what would act on a terminal is spelt out, as in ``\\x1b``."""
    return _spelt_out(text, "")


def lines_for_terminal(text: str) -> str:
    """Return text that was put together here, of several lines, whose ends stay; the rest is spelt out."""
    return _spelt_out(text, "\n\t")


def for_csv(value: Any) -> Any:
    """Return a cell: text never begins like a formula, and what is no text stays the number it is."""
    if not isinstance(value, str):
        return value
    text = _spelt_out(value, "\n\t")
    return f"'{text}" if value.startswith(_FORMULA) else text


def for_page(text: str) -> str:
    """Return text that hides nothing on a page and turns nothing around; markup is escaped where it is set."""
    return _spelt_out(text, "\n\t")


def cleaned_for_page(value: Any, seen: dict[int, Any] | None = None) -> Any:
    """Return results with all text in them ready for a page; what needs no cleaning is returned itself."""
    seen = {} if seen is None else seen
    if isinstance(value, str):
        return for_page(value)
    if id(value) in seen:  # the report of an audit may be one of those beside it, and stays the same object
        return seen[id(value)]
    found: Any = value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        clean = {name: cleaned_for_page(part, seen) for name, part in parts.items()}
        changed = {name: part for name, part in clean.items() if part is not parts[name]}
        found = dataclasses.replace(value, **changed) if changed else value
    elif isinstance(value, Mapping):
        entries: dict[Any, Any] = {}
        for key, item in value.items():
            key = for_page(key) if isinstance(key, str) else key
            while key in entries:  # two names may be spelt out alike, and neither may vanish
                key = f"{key}'"
            entries[key] = cleaned_for_page(item, seen)
        same = all(a is b and entries[b] is value[a] for a, b in zip(value, entries))
        found = value if same else entries
    elif isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        items = [cleaned_for_page(item, seen) for item in value]
        found = value if all(a is b for a, b in zip(items, value)) else type(value)(items)
    seen[id(value)] = found
    return found


class Cleaned:
    """Anything rich prints, whose text can do nothing to the terminal, whoever prints it."""

    def __init__(self, content: RenderableType) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for segment in console.render(self.content, options):
            if segment.control:
                yield segment
            else:
                yield Segment(lines_for_terminal(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement.get(console, options, self.content)


def _spelt_out(text: str, kept: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        _escape(character) if character not in kept and unicodedata.category(character) in _UNSEEN else character
        for character in text
    )


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
