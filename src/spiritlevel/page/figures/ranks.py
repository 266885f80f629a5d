"""Networks in the order of one measure, each with its error and its letters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette, ending
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import short
from spiritlevel.results.numerals import value_text
from spiritlevel.values.statistics import NORMAL_95

if TYPE_CHECKING:
    from spiritlevel.page.content import PageContent
    from spiritlevel.results.compared import Comparison

MOST_ROWS = 24
LOG_SPREAD = 20.0


def ranks_figure(content: PageContent, ranked: Comparison, name: str) -> Figure:
    """Return the networks from the flattest on, at even distances in the order where they are many."""
    ranking = ranked.rankings[name]
    labels = spaced(list(ranking.order), MOST_ROWS)
    values = []
    for label in labels:
        estimate = content.reports[label][name]
        reach = NORMAL_95 * math.hypot(estimate.stderr, estimate.stderr_data or 0.0)
        low, high = estimate.interval or (estimate.value, estimate.value)
        values.append((label, estimate.value, min(low, estimate.value) - reach, max(high, estimate.value) + reach))
    log = (
        min(value for _, value, _, _ in values) > 0
        and max(v[1] for v in values) / min(v[1] for v in values) > LOG_SPREAD
    )
    least = min(value for _, value, _, _ in values) / 2 if log else -math.inf
    names = {label: ending(label) for label in labels}
    if len(set(names.values())) < len(names):
        names = {label: label for label in labels}
    rows = Rows(
        "ranks",
        [
            {
                "label": label,
                "name": names[label],
                "value": short(value),
                "low": short(max(low, least)),
                "high": short(high),
                "letters": ranking.letters[label],
            }
            for label, value, low, high in values
        ],
    )

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
        base = alt.Chart(alt.NamedData(rows.name)).encode(
            y=alt.Y(
                "name:N",
                sort=list(names.values()),
                title=None,
                axis=alt.Axis(labelLimit=190, domain=False, ticks=False),
            )
        )
        x = alt.X("value:Q", scale=scale, title=None, axis=alt.Axis(tickCount=5, format=".6~g"))
        tooltip = [
            alt.Tooltip("label:N", title="network"),
            alt.Tooltip("value:Q", title=content.title(name), format=".5~g"),
            alt.Tooltip("letters:N", title="letters"),
        ]
        return alt.layer(
            base.mark_rule(strokeWidth=2, color=palette.blue).encode(x=alt.X("low:Q", scale=scale), x2="high:Q"),
            base.mark_point(filled=True, size=60, opacity=1, color=palette.blue).encode(x=x, tooltip=tooltip),
            base.mark_text(dy=-9, fontSize=10, color=palette.ink).encode(x=x, text="letters:N"),
        )

    caption = "Lines are 95% intervals of each value alone. Networks that share a letter are not told apart."
    if len(labels) < len(ranking.order):
        caption += f" {len(labels)} of {len(ranking.order)} networks, at even distances in the order."
    shown = {label: value_text(content.reports[label][name]) for label in labels}
    said = "; ".join(f"{label} {text} ({ranking.letters[label]})" for label, text in shown.items())
    title = f"{content.title(name)}, from the flattest"
    return Figure("ranks", title, draw, [rows], f"{title}: {said}.", height=60 + 30 * len(labels), caption=caption)


def spaced(labels: list[str], most: int) -> list[str]:
    """Return at most so many of an order, at even distances, its first and last among them."""
    if len(labels) <= most:
        return labels
    return [labels[round(step * (len(labels) - 1) / (most - 1))] for step in range(most)]
