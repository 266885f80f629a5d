"""Values along training or along a scale: one line a measure, errors as bands, the line 2/lr where it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import short
from spiritlevel.values.estimate import Estimate

Point = tuple[float, str, float, float]  # place, label, value, error of the computation
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3])
LOG_SPREAD = 20.0


def curve(points: Sequence[Point], title: str, name: str, unit: str, rule: tuple[float, str] | None = None) -> Figure:
    """Return one quantity over training; ``rule`` is a line across at a height, with its words."""
    rows = Rows(
        name,
        [
            {"place": p, "label": label, "value": short(v), "low": short(v - error), "high": short(v + error)}
            for p, label, v, error in points
        ],
    )
    line = Rows(f"{name}_line", [] if rule is None else [{"value": rule[0], "words": rule[1]}])
    heights = [value for _, _, value, _ in points] + ([rule[0]] if rule else [])
    log = min(heights) > 0 and max(heights) / min(heights) > LOG_SPREAD

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
        x = alt.X("place:Q", title=unit, scale=alt.Scale(zero=False, nice=False))
        y = alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5, format=".6~g"))
        base = alt.Chart(alt.NamedData(rows.name))
        layers = [
            base.mark_line(color=palette.blue, strokeWidth=2).encode(x=x, y=y),
            base.mark_rule(color=palette.blue, strokeWidth=1).encode(x=x, y=alt.Y("low:Q", scale=scale), y2="high:Q"),
            base.mark_point(color=palette.blue, filled=True, size=36).encode(
                x=x,
                y=y,
                tooltip=[
                    alt.Tooltip("label:N", title="weights"),
                    alt.Tooltip("place:Q", title=unit),
                    alt.Tooltip("value:Q", title=title, format=".5~g"),
                ],
            ),
        ]
        if rule is not None:
            drawn = alt.Chart(alt.NamedData(line.name))
            layers.append(drawn.mark_rule(color=palette.orange, strokeDash=[6, 3]).encode(y="value:Q"))
            text = drawn.mark_text(color=palette.orange, align="left", dx=4, dy=-6, x=0)
            layers.append(text.encode(y="value:Q", text="words:N"))
        return alt.layer(*layers)

    said = ", ".join(f"{short(place)}: {value:.4g}" for place, _, value, _ in points[:60])
    ruled = f" The line {rule[1]} lies at {rule[0]:.4g}." if rule else ""
    return Figure(name, title, draw, [rows, line], f"{title} by {unit}. {said}.{ruled}", height=220)


def relative_curves(
    values: Mapping[str, Sequence[tuple[float, float]]],
    unit: str,
    name: str,
    title: str,
    *,
    base: float | None = None,
    places: Literal["linear", "log"] = "linear",
) -> Figure | None:
    """Return several measures on one logarithmic axis, each divided by its value at ``base`` (None: its first)."""
    rows: list[dict[str, Any]] = []
    said = []
    for words, points in values.items():
        usable = [(place, value) for place, value in points if value > 0]
        start = next((value for place, value in usable if base is None or place == base), None)
        if start is None or len(usable) < 2:
            continue
        rows += [
            {"place": place, "measure": words, "relative": short(value / start), "value": short(value)}
            for place, value in usable
        ]
        said.append(f"{words}: " + ", ".join(f"{short(place)}: {value:.4g}" for place, value in usable[:40]))
    if not rows:
        return None
    titles = list(dict.fromkeys(row["measure"] for row in rows))
    heights = [row["relative"] for row in rows]
    domain = [min(heights) / 1.15, max(heights) * 1.15]
    against = "its first value" if base is None else f"its value at {base:g}"

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        scale = alt.Scale(type="log") if places == "log" else alt.Scale(zero=False, nice=False)
        drawn = alt.Chart(alt.NamedData(name)).encode(
            x=alt.X("place:Q", title=unit, scale=scale, axis=alt.Axis(tickCount=6, format=".6~g")),
            y=alt.Y(
                "relative:Q",
                scale=alt.Scale(type="log", domain=domain, nice=False),
                title=f"value ÷ {against}",
                axis=alt.Axis(tickCount=5, format=".6~g" if domain[1] / domain[0] < 1e4 else ".0e"),
            ),
            color=alt.Color(
                "measure:N",
                scale=alt.Scale(domain=titles, range=[palette.series[i % 6] for i in range(len(titles))]),
                legend=alt.Legend(columns=1, symbolType="stroke", symbolSize=500),
            ),
            tooltip=[
                alt.Tooltip("measure:N", title="measure"),
                alt.Tooltip("place:Q", title=unit),
                alt.Tooltip("value:Q", title="value", format=".5~g"),
                alt.Tooltip("relative:Q", title=f"÷ {against}", format=".4~g"),
            ],
        )
        patterns = [DASHES[(i + i // 6) % 6] for i in range(len(titles))]
        dashes = alt.StrokeDash("measure:N", scale=alt.Scale(domain=titles, range=patterns))
        return alt.layer(
            drawn.mark_line(strokeWidth=2).encode(strokeDash=dashes), drawn.mark_point(filled=True, size=30)
        )

    text = f"Measures by {unit}, each divided by {against}. {'; '.join(said)}."
    return Figure(name, title, draw, [Rows(name, rows)], text, height=290 + 18 * len(titles))


def estimates_over(places: Mapping[str, float], estimates: Mapping[str, Estimate]) -> list[Point]:
    """Return the points of a curve from estimates by label, in order of their place."""
    usable = {label: e for label, e in estimates.items() if e.status in ("ok", "budget_spent")}
    return sorted((places[label], label, e.value, e.stderr) for label, e in usable.items())
