"""Margins as distributions: the share of samples in common bins, one outline a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiritlevel.page.extras import need
from spiritlevel.page.figures.shares import shortened
from spiritlevel.page.palette import Palette
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import short

BINS = 50
MOST_OUTLINES = 3  # distributions drawn over one another


def distribution(
    samples: Mapping[str, NDArray[np.float64]], title: str, name: str, medians: Mapping[str, float]
) -> Figure:
    """Return the distributions of one quantity over samples, with a line at each median and one at zero."""
    if len(samples) > MOST_OUTLINES:
        return _ranges(samples, title, name)
    pooled = np.concatenate(list(samples.values()))
    edges = np.histogram_bin_edges(pooled, bins=BINS)
    rows = []
    for label, values in samples.items():
        counts = np.histogram(values, edges)[0]
        rows += [
            {
                "network": label,
                "low": short(edges[i]),
                "high": short(edges[i + 1]),
                "count": int(counts[i]),
                "share": short(counts[i] / len(values)),
            }
            for i in range(len(counts))
        ]
    binned = Rows(f"{name}_bins", rows)
    lines = Rows(f"{name}_medians", [{"network": label, "median": short(value)} for label, value in medians.items()])
    zero = Rows(f"{name}_zero", [{"x": 0}])
    labels = list(samples)
    crosses_zero = float(pooled.min()) < 0 < float(pooled.max())

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        colour = alt.Color(
            "network:N",
            scale=alt.Scale(domain=labels, range=_cycled(palette, len(labels))),
            legend=None if len(labels) == 1 else alt.Legend(title=None, columns=1, symbolType="square"),
        )
        base = alt.Chart(alt.NamedData(binned.name))
        bars = (
            base.mark_rect(opacity=0.35 if len(labels) > 1 else 0.55)
            .encode(
                x=alt.X("low:Q", title=title, scale=alt.Scale(zero=False, nice=False)),
                x2="high:Q",
                y=alt.Y("zero:Q", title="share of samples", axis=alt.Axis(format="%", tickCount=5)),
                y2="share:Q",
                color=colour,
                tooltip=[
                    alt.Tooltip("network:N", title="network"),
                    alt.Tooltip("low:Q", title="from", format=".4~g"),
                    alt.Tooltip("high:Q", title="to", format=".4~g"),
                    alt.Tooltip("count:Q", title="samples", format=","),
                ],
            )
            .transform_calculate(zero="0")
        )
        medians_drawn = (
            alt.Chart(alt.NamedData(lines.name))
            .mark_rule(strokeWidth=2)
            .encode(x="median:Q", color=colour, tooltip=[alt.Tooltip("median:Q", title="median", format=".4~g")])
        )
        layers = [bars, medians_drawn]
        if crosses_zero:
            layers.append(
                alt.Chart(alt.NamedData(zero.name)).mark_rule(strokeDash=[4, 3], color=palette.ink).encode(x="x:Q")
            )
        return alt.layer(*layers)

    said = "; ".join(
        f"{label}: quartiles {', '.join(f'{q:.3g}' for q in np.quantile(values, (0.25, 0.5, 0.75)))}, least "
        f"{values.min():.3g}, largest {values.max():.3g}"
        for label, values in samples.items()
    )
    return Figure(
        name,
        title,
        draw,
        [binned, lines, zero],
        f"Distribution over samples of {title}. {said}.",
        height=260,
        caption="Vertical lines mark the medians" + (", the dashed one zero." if crosses_zero else "."),
    )


def _ranges(samples: Mapping[str, NDArray[np.float64]], title: str, name: str) -> Figure:
    """Return a row a network: the middle half of its samples as a bar, nine in ten as a line, the median as a mark."""
    places = {label: np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95)) for label, values in samples.items()}
    names = ("p5", "q1", "median", "q3", "p95")
    shown = dict(zip(places, shortened(list(places))))
    found = {label: dict(zip(names, map(short, quantiles.tolist()))) for label, quantiles in places.items()}
    rows = Rows(name, [{"network": shown[label], "name": label, **quantiles} for label, quantiles in found.items()])

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        base = alt.Chart(alt.NamedData(rows.name)).encode(
            y=alt.Y("network:N", sort=list(shown.values()), title=None, axis=alt.Axis(labelLimit=165)),
            tooltip=[alt.Tooltip("name:N", title="network"), *(alt.Tooltip(f"{q}:Q", format=".4~g") for q in names)],
        )
        x = alt.X("p5:Q", title=title, scale=alt.Scale(zero=False, nice=False))
        return alt.layer(
            base.mark_rule(color=palette.blue).encode(x=x, x2="p95:Q"),
            base.mark_bar(color=palette.blue, opacity=0.5, height=10).encode(x="q1:Q", x2="q3:Q"),
            base.mark_tick(color=palette.ink, thickness=2, height=14).encode(x="median:Q"),
        )

    said = "; ".join(f"{label}: {', '.join(f'{q:.3g}' for q in quantiles)}" for label, quantiles in places.items())
    return Figure(
        name,
        title,
        draw,
        [rows],
        f"{title} over samples, at 5, 25, 50, 75 and 95%. {said}.",
        height=70 + 22 * len(samples),
        caption="Bars hold the middle half of the samples, lines nine in ten; marks are medians.",
    )


def _cycled(palette: Palette, count: int) -> list[str]:
    return [palette.series[i % len(palette.series)] for i in range(count)]
