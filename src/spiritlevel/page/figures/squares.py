"""Squares with a word in each, of which heat maps and matrices are made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette


def written_squares(
    base: Any, palette: Palette, *, color: Any, opacity: Any, told: Mapping[str, str], size: int
) -> Any:
    """Return the squares of a chart that says where they stand; ``told`` has the fields a pointer shows, in words."""
    alt = need("altair")
    tooltip = [alt.Tooltip(f"{field}:N", title=title) for field, title in told.items()]
    squares = base.mark_rect(stroke=palette.grid).encode(color=color, opacity=opacity, tooltip=tooltip)
    return alt.layer(squares, base.mark_text(fontSize=size, color=palette.ink).encode(text="text:N"))
