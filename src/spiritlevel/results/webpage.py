"""What a result shows in a terminal as a static piece of HTML for notebooks: escaped, without scripts."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from spiritlevel.values.cleaning import for_page

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

# Colours are the notebook's own, light or dark.  Selectors are longer than those of Jupyter, which stripes the rows of
# all tables; rows become cards where the output, not the window, is narrow.
_STYLE = """
.spiritlevel-result { container-type: inline-size; width: 100%; line-height: 1.4; }
.spiritlevel-result .lines { max-width: 80em; margin: .2em 0; overflow-wrap: anywhere; }
.spiritlevel-result .scroll { overflow-x: auto; margin: .5em 0; }
.spiritlevel-result .dim { opacity: .7; font-size: .9em; }
.spiritlevel-result table.values { border-collapse: collapse; margin: 0; width: auto; table-layout: auto; }
.spiritlevel-result table.values tr:nth-child(n) { background: none; border-bottom: 1px solid rgba(128,128,128,.35); }
.spiritlevel-result table.values tr > * { text-align: left; vertical-align: top; padding: .25em .8em; max-width: 24em;
  font-weight: normal; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.spiritlevel-result table.values thead tr > * { font-weight: bold; vertical-align: bottom; }
.spiritlevel-result table.values tr > .number { text-align: right; overflow-wrap: normal; }
@container (max-width: 38em) {
  .spiritlevel-result table.values, .spiritlevel-result table.values tbody { display: block; width: 100%; }
  .spiritlevel-result table.values thead { display: none; }
  .spiritlevel-result table.values tbody tr:nth-child(n) { display: block; padding: .4em 0; }
  .spiritlevel-result table.values tbody tr > * { display: flex; justify-content: space-between; gap: 1em;
    max-width: none; padding: .1em 0; text-align: right; }
  .spiritlevel-result table.values tbody tr > th { display: block; font-weight: bold; text-align: left; }
  .spiritlevel-result table.values tbody td::before { content: attr(data-column); opacity: .7; text-align: left; }
  .spiritlevel-result table.values tbody td:empty { display: none; }
}
"""


def escape(text: str) -> str:
    """Return text from outside as it may stand in HTML."""
    return html.escape(for_page(text))


def fragment(shown: RenderableType) -> str:
    """Return what rich would print as HTML: lines and tables, in their order."""
    return f'<style>{_STYLE}</style><div class="spiritlevel-result">{_markup(shown)}</div>'


def _markup(part: Any) -> str:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from spiritlevel.results.terminal import ColumnsInPortions
    from spiritlevel.values.cleaning import Cleaned

    if isinstance(part, Cleaned):
        return _markup(part.content)
    if isinstance(part, Group):
        return "".join(_markup(each) for each in part.renderables)
    if isinstance(part, ColumnsInPortions):
        return _table(part.whole())
    if isinstance(part, Table):
        return _table(part)
    assert isinstance(part, (Text, str)), f"nobody said how a {type(part).__name__} looks in a notebook"
    return f'<div class="lines">{_text(part)}</div>'


def _table(table: Table) -> str:
    kinds = [' class="number"' if column.justify == "right" else "" for column in table.columns]
    heads = "".join(f'<th scope="col"{kind}>{_text(column.header)}</th>' for kind, column in zip(kinds, table.columns))
    names = [escape(" ".join(_as_text(column.header).plain.splitlines()[:1])) for column in table.columns]
    rows = []
    for first, *others in zip(*(column.cells for column in table.columns)):
        cells = "".join(
            f'<td data-column="{name}"{kind}>{_text(cell)}</td>'
            for name, kind, cell in zip(names[1:], kinds[1:], others)
        )
        rows.append(f'<tr><th scope="row">{_text(first)}</th>{cells}</tr>')
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<div class="scroll"><table class="values">{body}</table></div>'


def _text(shown: Any) -> str:
    """Return a line or cell with what is bold or dim in it; its colours are for a terminal, and words say the same."""
    from rich.console import Console

    parts = []
    text, screen = _as_text(shown), Console(no_color=True)
    whole = screen.get_style(text.style)
    for segment in text.render(screen):
        words = escape(segment.text).replace("\n", "<br>")
        style = segment.style or whole  # rich gives a text of one style without it
        if words and style.bold:
            words = f"<strong>{words}</strong>"
        if words and style.dim:
            words = f'<span class="dim">{words}</span>'
        parts.append(words)
    return "".join(parts)


def _as_text(shown: Any) -> Text:
    from rich.text import Text

    if isinstance(shown, str):
        return Text.from_markup(shown)
    assert isinstance(shown, Text)
    return shown
