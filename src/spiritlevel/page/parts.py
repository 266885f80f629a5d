"""What a page is made of: figures, tables, sentences and sections, without any markup."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spiritlevel.page.palette import Palette

WIDTH = 560  # of a figure in a file; on the page it takes the width there is


@dataclass(frozen=True)
class Rows:
    """Data of a figure under a name; figures that name the same rows share them on the page."""

    name: str
    values: list[dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """A figure by name: a Vega-Lite specification for a palette, and what it shows in words with the numbers.

    ``height`` is the whole figure's, axes and legend included, so that the page can keep its place free.
    """

    name: str
    title: str
    draw: Callable[[Palette], Any]  # returns an Altair chart that refers to its data by name
    data: Sequence[Rows]
    alt: str
    height: int = 260
    caption: str = ""
    least_width: int = 0  # where there is less room, the figure scrolls

    def chart(self, palette: Palette, width: int = WIDTH) -> Any:
        """Return the Altair chart of its full size in the colours of a palette."""
        drawn = self.without_data(palette, width)
        return drawn.properties(datasets={rows.name: rows.values for rows in self.data})

    def without_data(self, palette: Palette, width: int = WIDTH) -> Any:
        """Return the same chart, which refers to its data by name and does not hold it."""
        from spiritlevel.page.extras import need

        alt = need("altair")
        return (
            self.draw(palette)
            .properties(width=width, height=self.height, autosize=alt.AutoSizeParams(type="fit", contains="padding"))
            .configure(**palette.config())
        )


@dataclass(frozen=True)
class Cell:
    """One cell: its text, a smaller second line, and the number behind it where there is one."""

    text: str
    small: str = ""
    value: float | None = None
    kind: str = ""  # a class of the style sheet


@dataclass(frozen=True)
class TableRow:
    """A row with the rows that unfold below it."""

    cells: Sequence[Cell]
    more: Sequence[Explanation] = ()
    below: Sequence[Sequence[Cell]] = ()


@dataclass(frozen=True)
class Explanation:
    """What stands behind a row: a name, a text, and a formula as LaTeX where there is one."""

    name: str
    text: str
    formula: bool = False


@dataclass(frozen=True)
class PageTable:
    """A table; numbers can be sorted and rows filtered where asked for."""

    name: str
    columns: Sequence[str]
    rows: Sequence[TableRow]
    caption: str = ""
    tools: bool = False  # sorting and filtering
    numeric: Sequence[int] = ()  # columns set flush right
    note: str = ""

    @property
    def cards(self) -> bool:
        """Whether rows become cards where there is no room for columns."""
        return self.tools or self.name == "first-table"


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    strong: str = ""


@dataclass(frozen=True)
class CommandLines:
    """Lines to copy into a terminal."""

    text: str


@dataclass(frozen=True)
class Picture:
    """An image that was drawn elsewhere, as PNG bytes."""

    png: bytes
    alt: str
    title: str = ""


Part = Figure | PageTable | Words | CommandLines | Picture


@dataclass(frozen=True)
class Section:
    """A section of the page: what it is about, one line that says the most of it, and its parts."""

    name: str
    title: str
    summary: str
    parts: Sequence[Part]
    opened: bool = False


@dataclass(frozen=True, kw_only=True)
class First:
    """The first screen: who, how, the answer, the facts, what fell short, the figure and the table."""

    title: Sequence[tuple[str, str]]  # (text, muted text after it)
    settings: str
    answer: tuple[str, str]
    facts: Sequence[tuple[str, str]]
    notes: Sequence[str]
    figure: Figure | None
    table: PageTable | None
    kind: str = "report"
    joined: str = " against "


@dataclass(frozen=True)
class Page:
    """Everything on one page."""

    first: First
    sections: Sequence[Section] = field(default_factory=list)

    @property
    def figures(self) -> dict[str, Figure]:
        """All figures by name."""
        parts = [part for section in self.sections for part in section.parts]
        found = [self.first.figure, *parts]
        return {part.name: part for part in found if isinstance(part, Figure)}
