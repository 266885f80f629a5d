"""Formulas between $$ … $$ become MathML while the site is built; browsers draw it without a script."""

from __future__ import annotations

import re
from typing import Any

from mkdocs.plugins import get_plugin_logger

from spiritlevel.page.formulas import as_mathml

log = get_plugin_logger("formulas")
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
_FORMULA = re.compile(r"\$\$(.+?)\$\$", re.DOTALL)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Draw the formulas of a page, and leave its code as it is."""
    parts = _FENCE.split(markdown)
    for at in range(0, len(parts), 2):
        parts[at] = _FORMULA.sub(lambda found: _drawn(found[1].strip(), page), parts[at])
    return "".join(parts)


def _drawn(source: str, page: Any) -> str:
    drawn = as_mathml(source)
    if drawn is None:  # a warning stops the strict build
        log.warning(f"{page.file.src_uri}: the formula {source} cannot be drawn")
        return f"`{source}`"
    return f'<div class="formula">{drawn.replace("inline", "block", 1)}</div>'
