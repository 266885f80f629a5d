"""Every pair of networks by one measure: how many times sharper the one is than the other, and whether that is told."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from spiritlevel.page.extras import need
from spiritlevel.page.figures.squares import written_squares
from spiritlevel.page.palette import Palette, ending
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import short
from spiritlevel.results.numerals import plain

if TYPE_CHECKING:
    from spiritlevel.results.rows import ComparisonRow

MOST_WITH_NUMBERS = 7
UNDECIDED = "≈"
FAINT_TO_STRONG = [0.1, 0.5]  # no stronger, so that the text in it stays readable, light and dark


def matrix(row: ComparisonRow, order: Sequence[str], short_names: Sequence[str], name: str) -> Figure | None:
    """Return the pairs of some networks, sharper rows and columns last; None where no pair has a contrast."""
    columns = [str(place + 1) for place in range(len(order))]
    heads = [f"{place} {ending(name, 18)}" for place, name in zip(columns, short_names)]
    names = dict(zip(order, heads))
    rank = {label: place for place, label in enumerate(order)}
    values: list[dict[str, Any]] = []
    said = []
    for contrast in row.contrasts:
        if contrast.first not in rank or contrast.second not in rank:
            continue
        flatter, sharper = sorted((contrast.first, contrast.second), key=rank.__getitem__)
        own = contrast.seen_from(flatter)
        value = own.interval.value
        if own.ratio is not None and row.sharper_when == "smaller":
            value = 1 / value
        words = plain(value, 3) if own.ratio is not None else f"Δ {plain(value, 3)}"
        told = "told apart" if contrast.decided else "not told apart"
        values.append(
            {
                "row": names[sharper],
                "column": columns[rank[flatter]],
                "network": sharper,
                "against": flatter,
                "size": short(abs(math.log(value)) if own.ratio is not None else abs(value)),
                "told": told,
                "words": own.words,
                "text": UNDECIDED if not contrast.decided else words if len(order) <= MOST_WITH_NUMBERS else "",
            }
        )
        said.append(f"{names[sharper]} against {names[flatter]} {own.words}, {told}")
    if not values:
        return None
    rows = Rows(name, values)
    decided = any(value["told"] == "told apart" for value in values)
    largest = max(value["size"] for value in values) or 1.0

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        base = alt.Chart(alt.NamedData(rows.name)).encode(
            x=alt.X(
                "column:N",
                scale=alt.Scale(domain=columns),
                title=None,
                axis=alt.Axis(orient="top", labelAngle=0, labelOverlap=True),
            ),
            y=alt.Y("row:N", scale=alt.Scale(domain=heads), title=None, axis=alt.Axis(labelLimit=190)),
        )
        told = ["told apart", "not told apart"] if decided else ["not told apart"]
        colours = [palette.orange, palette.grey] if decided else [palette.grey]
        return written_squares(
            base,
            palette,
            color=alt.Color(
                "told:N", scale=alt.Scale(domain=told, range=colours), legend=alt.Legend(orient="bottom", columns=1)
            ),
            opacity=alt.Opacity("size:Q", scale=alt.Scale(domain=[0, largest], range=FAINT_TO_STRONG), legend=None),
            told={"network": "network", "against": "against", "words": "with its interval", "told": "verdict"},
            size=11,
        )

    side = max(22, 34 if len(order) <= MOST_WITH_NUMBERS else 22)
    return Figure(
        name,
        row.title,
        draw,
        [rows],
        f"{row.title}, each network against each flatter one: {'; '.join(said[:60])}.",
        height=120 + side * len(order),
        caption=f"Stronger is a larger ratio of the row's value to the column's; {UNDECIDED} is not told apart.",
    )
