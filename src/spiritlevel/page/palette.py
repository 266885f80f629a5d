"""Colours that stay apart for colour-blind eyes, as numbers for image files and as CSS variables for the page."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Arial, sans-serif"
# Okabe and Ito 2008, in an order in which neighbours also differ in lightness.
SERIES = ("blue", "orange", "green", "purple", "sky", "black")


@dataclass(frozen=True, kw_only=True)
class Palette:
    """The colours of one rendering."""

    paper: str
    ink: str
    muted: str
    grid: str
    blue: str
    orange: str
    green: str
    purple: str
    sky: str
    black: str
    grey: str

    @property
    def series(self) -> list[str]:
        """Colours for networks, groups and lines, in order."""
        return [getattr(self, name) for name in SERIES]

    def config(self) -> dict[str, Any]:
        """Return the Vega-Lite configuration shared by all figures."""
        text = {"labelColor": self.ink, "titleColor": self.ink, "labelFontSize": 12, "titleFontSize": 12}
        return {
            "background": self.paper,
            "lineBreak": "\n",
            "font": FONT,
            "aria": False,  # the figure's own description holds the numbers
            "view": {"stroke": None},
            "axis": {
                **text,
                "gridColor": self.grid,
                "domainColor": self.muted,
                "tickColor": self.muted,
                "labelLimit": 200,
                "titleFontWeight": "normal",
            },
            "legend": {**text, "orient": "top", "title": None, "labelLimit": 260, "symbolStrokeWidth": 2},
            "title": {"color": self.ink, "fontSize": 13, "anchor": "start", "fontWeight": 600},
            "text": {"color": self.ink},
            "rule": {"color": self.muted},
        }


def ending(text: str, most: int = 22) -> str:
    """Return a name that is too long by its end, where files and runs differ."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def in_lines(text: str, width: int = 30) -> str:
    """Return a label in lines of about so many letters, broken between words only."""
    return "\n".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)) or text


LIGHT = Palette(
    paper="#ffffff",
    ink="#1b1b1b",
    muted="#6b6b6b",
    grid="#e6e6e6",
    blue="#0072b2",
    orange="#d55e00",
    green="#009e73",
    purple="#aa4499",
    sky="#56b4e9",
    black="#444444",
    grey="#8a8a8a",
)
# The page's style sheet gives the variables their values, for light, dark and paper.
ON_PAGE = Palette(**{**{name: f"var(--{name})" for name in Palette.__dataclass_fields__}, "paper": "transparent"})
