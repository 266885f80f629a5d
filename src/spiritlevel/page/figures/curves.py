"""Values along training or along a scale: one line a measure, errors as bands, the line 2/lr where it is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import powers, short

DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [4, 4], [1, 3])
LOG_SPREAD = 20.0
DEEPEST = 1e-9  # of the largest value: smaller ones stand at the end of a relative axis, so that the others can be told


MOST_NAMED = 24  # lines that a legend names
MOST_TICKS = 12


@dataclass(frozen=True)
class CurvePoint:
    """A value at a place in training, with the error of its computation; points of one run are joined.

    Runs of one ``group`` differ in their seed alone.
    """

    place: float
    label: str
    value: float
    error: float = 0.0
    run: str = ""
    group: str = ""

    @property
    def series(self) -> str:
        """What a legend names: the group of the run, or the run where it has none."""
        return self.group or self.run


def curve(
    points: Sequence[CurvePoint],
    title: str,
    name: str,
    unit: str,
    rule: tuple[float, str] | None = None,
    *,
    joined: bool = True,
) -> Figure:
    """Return one quantity over training, a line a run and a band a group of seeds.

    ``rule`` is a line across at a height, with its words; what is not ``joined`` are networks of no training.
    """
    heights = [point.value for point in points] + ([rule[0]] if rule else [])
    log = min(heights) > 0 and max(heights) / min(heights) > LOG_SPREAD
    least = min(heights) / 2 if log else -math.inf  # a logarithmic axis has no place for what an error leaves of 0
    rows = Rows(
        name,
        [
            {
                "place": point.place,
                "label": point.label,
                "run": point.run,
                "series": point.series,
                "value": short(point.value),
                "low": short(max(point.value - point.error, least)),
                "high": short(point.value + point.error),
            }
            for point in points
        ],
    )
    line = Rows(f"{name}_line", [] if rule is None else [{"value": rule[0], "words": rule[1]}])
    bands = Rows(f"{name}_bands", _bands(points))
    series = list(dict.fromkeys(point.series for point in points))
    named = 1 < len(series) <= MOST_NAMED
    columns = 2 if len(series) > 6 and max(map(len, series)) <= 16 else 1

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        scale = alt.Scale(type="log", nice=False) if log else alt.Scale(zero=False)
        x = alt.X("place:Q", title=unit, scale=alt.Scale(zero=False, nice=False), axis=_places(alt, points))
        y = alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(tickCount=5, format=".6~g"))
        strokes = {"symbolType": "stroke", "symbolSize": 500, "symbolOpacity": 1}
        legend = alt.Legend(title=None, columns=columns, **strokes) if named else None
        count = len(series)
        colours = [palette.series[i % 6] for i in range(count)] if count <= MOST_NAMED else [palette.grey] * count
        colour = alt.Color("series:N", scale=alt.Scale(domain=series, range=colours), legend=legend)
        base = alt.Chart(alt.NamedData(rows.name)).encode(x=x, color=colour)
        layers = []
        lines = base.mark_line(strokeWidth=1 if bands.values else 2, opacity=0.55 if bands.values else 1)
        dashes: dict[str, Any] = {}
        if 6 < count <= MOST_NAMED:  # colours begin again
            patterns = [DASHES[(i // 6) % 6] for i in range(count)]
            dashes = {"strokeDash": alt.StrokeDash("series:N", scale=alt.Scale(domain=series, range=patterns))}
        if bands.values:
            band = alt.Chart(alt.NamedData(bands.name)).encode(x=x, color=colour)
            layers.append(band.mark_area(opacity=0.2).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"))
            layers.append(band.mark_line(strokeWidth=3).encode(y=alt.Y("value:Q", scale=scale), **dashes))
        if joined:
            layers.append(lines.encode(y=y, detail="run:N", **dashes))
        layers += [
            base.mark_rule(strokeWidth=1).encode(y=alt.Y("low:Q", scale=scale), y2="high:Q"),
            base.mark_point(filled=True, size=36).encode(
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

    ruled = f" The line {rule[1]} lies at {rule[0]:.4g}." if rule else ""
    captions = []
    if bands.values:
        captions.append(
            "A band reaches from the least to the greatest of the runs that differ in their seed alone; the thick line "
            "in it is their mean."
        )
    if len(series) > MOST_NAMED:
        captions.append(f"{len(series)} lines; pointing at one names its network.")
    if not joined:
        order = "By the number in their names" if unit == "number" else "In the order in which they were given"
        captions.append(f"{order}; nothing says that they follow each other in training.")
    data = [rows, line, *([bands] if bands.values else [])]
    height = 220 + (21 * -(-len(series) // columns) if named else 0)
    alt_text = f"{title} by {unit}. {_said(points)}.{ruled}"
    return Figure(name, title, draw, data, alt_text, height=height, caption=" ".join(captions))


def _bands(points: Sequence[CurvePoint]) -> list[dict[str, Any]]:
    """Return least, mean and greatest value of each group of seeds at each place that several of its runs have."""
    found: dict[tuple[str, float], list[float]] = {}
    for point in points:
        if point.group:
            found.setdefault((point.group, point.place), []).append(point.value)
    return [
        {
            "series": group,
            "place": place,
            "value": short(sum(values) / len(values)),
            "low": short(min(values)),
            "high": short(max(values)),
        }
        for (group, place), values in sorted(found.items())
        if len(values) > 1
    ]


def _said(points: Sequence[CurvePoint]) -> str:
    """Return the values in words, run by run, as far as one reads."""
    runs: dict[str, list[str]] = {}
    for point in points[:60]:
        runs.setdefault(point.run, []).append(f"{short(point.place)}: {point.value:.4g}")
    more = f"; and {len(points) - 60} more" if len(points) > 60 else ""
    return "; ".join(f"{run}{': ' if run else ''}{', '.join(said)}" for run, said in runs.items()) + more


def _places(alt: Any, points: Iterable[CurvePoint]) -> Any:
    """Return the axis along training: an epoch has no halves where none was measured."""
    places = sorted({point.place for point in points})
    if any(place != round(place) for place in places):
        return alt.Axis()
    # Given one by one: a least step is no more than a wish, and halves in whole numbers would repeat themselves.
    return alt.Axis(values=places if len(places) <= MOST_TICKS else _round_numbers(places), format="d")


def _round_numbers(places: Sequence[float]) -> list[int]:
    """Return whole round numbers over the range of the places, at most so many."""
    low, high = math.ceil(places[0]), math.floor(places[-1])
    steps = (lead * 10**power for power in range(16) for lead in (1, 2, 5))
    step = next(step for step in steps if (high - low) / step < MOST_TICKS)
    return list(range(-(-low // step) * step, high + 1, step))


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
    said: list[str] = []
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
    end = DEEPEST * max(row["relative"] for row in rows)
    below = sum(row["relative"] < end for row in rows)
    rows = [{**row, "relative": max(row["relative"], end)} for row in rows]
    heights = [row["relative"] for row in rows]
    domain = [min(heights) / 1.15, max(heights) * 1.15]
    whole = places == "linear" and all(row["place"] == round(row["place"]) for row in rows)
    against = "its first value" if base is None else f"its value at {base:g}"

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        scale = alt.Scale(type="log") if places == "log" else alt.Scale(zero=False, nice=False)
        drawn = alt.Chart(alt.NamedData(name)).encode(
            x=alt.X(
                "place:Q",
                title=unit,
                scale=scale,
                axis=alt.Axis(tickCount=6, tickMinStep=1 if whole else 0, format=".6~g"),
            ),
            y=alt.Y(
                "relative:Q",
                scale=alt.Scale(type="log", domain=domain, nice=False),
                title=f"value ÷ {against}",
                axis=alt.Axis(tickCount=5, format=".6~g") if domain[1] / domain[0] < 1e4 else powers(alt, tickCount=5),
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
    caption = f"{below} of the values lie below the axis, which ends at {DEEPEST:g} of the largest; they stand on it."
    height = 290 + 18 * len(titles)
    return Figure(name, title, draw, [Rows(name, rows)], text, height=height, caption=caption if below else "")
