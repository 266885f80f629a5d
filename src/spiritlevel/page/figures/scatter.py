"""One quantity of the samples against another: bins for all, points for some, a line each for right and wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import Axis, ShownPoints, binned, fit, powers

RIGHT, WRONG, ALL = "classified right", "misclassified", "samples"


def scatter(
    samples: Mapping[str, NDArray[np.float64]],
    x: str,
    y: str,
    titles: Mapping[str, str],
    right: NDArray[np.bool_] | None,
    choice: ShownPoints,
    points: Rows,
    *,
    axes: Mapping[str, Axis],
    name: str,
) -> Figure:
    """Return the figure of quantity ``y`` against ``x``; ``points`` are the chosen samples' rows.

    The axes are those of all networks on the page, which can be compared so.
    """
    x_axis, y_axis = axes[x], axes[y]
    bins = Rows(f"{name}_bins", binned(samples[x], samples[y], x_axis, y_axis))
    groups = {ALL: np.ones(len(samples[x]), dtype=bool)} if right is None else {RIGHT: right, WRONG: ~right}
    fits = {
        group: found
        for group, members in groups.items()
        if (found := fit(samples[x][members], samples[y][members], x_axis, y_axis)) is not None
    }
    lines = Rows(
        f"{name}_lines",
        [
            {"group": group, "x": px, "y": py, "order": order}
            for group, found in fits.items()
            for order, (px, py) in enumerate(found.line)
        ],
    )
    domain = list(groups)

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        colours = alt.Scale(domain=domain, range=[palette.blue, palette.orange][: len(domain)])
        x_scale, y_scale = _scale(alt, x_axis), _scale(alt, y_axis)
        ticks = _ticks(alt, x_axis)
        y_ticks = _ticks(alt, y_axis)
        shaded = (
            alt.Chart(alt.NamedData(bins.name))
            .mark_rect(color=palette.grey)
            .encode(
                x=alt.X("x:Q", scale=x_scale, axis=ticks, title=titles[x]),
                x2="x2:Q",
                y=alt.Y("y:Q", scale=y_scale, axis=y_ticks, title=titles[y]),
                y2="y2:Q",
                opacity=alt.Opacity("count:Q", scale=alt.Scale(type="log", range=[0.15, 0.75]), legend=None),
                tooltip=[alt.Tooltip("count:Q", title="samples in this bin", format=",")],
            )
        )
        dots = (
            alt.Chart(alt.NamedData(points.name))
            .mark_point(filled=True, size=16, opacity=0.75)
            .encode(
                x=alt.X(f"{x}:Q"),
                y=alt.Y(f"{y}:Q"),
                color=alt.Color("group:N", scale=colours, legend=None if len(domain) == 1 else alt.Legend(title=None)),
                shape=alt.Shape(
                    "group:N",
                    scale=alt.Scale(domain=domain, range=["circle", "diamond"][: len(domain)]),
                    legend=None if len(domain) == 1 else alt.Legend(title=None),
                ),
                tooltip=[
                    alt.Tooltip("sample:Q", title="sample", format="d"),
                    *(alt.Tooltip(f"{q}:Q", title=titles[q], format=".4~g") for q in samples),
                    alt.Tooltip("group:N", title="which is"),
                ],
            )
        )
        drawn = [shaded, dots]
        for group, dash in zip(domain, ([1, 0], [6, 3])):
            drawn.append(
                alt.Chart(alt.NamedData(lines.name))
                .mark_line(strokeWidth=2, strokeDash=dash)
                .encode(x="x:Q", y="y:Q", color=alt.Color("group:N", scale=colours), order="order:O")
                .transform_filter(alt.datum.group == group)
            )
        return alt.layer(*drawn)

    said = "; ".join(f"{group}: r = {found.correlation:.3f} over {found.count:,}" for group, found in fits.items())
    scale = {(True, True): "both axes logarithmic", (True, False): "horizontal axis logarithmic"}.get(
        (x_axis.log, y_axis.log), "vertical axis logarithmic" if y_axis.log else "both axes linear"
    )
    none = "too few points for a line"
    ends = [
        f"{n:,} below the end of the {side} axis are drawn on it"
        for side, n in (("horizontal", x_axis.below(samples[x])), ("vertical", y_axis.below(samples[y])))
        if n
    ]
    return Figure(
        name,
        f"{titles[y]} against {titles[x]}",
        draw,
        [bins, points, lines],
        f"{titles[y]} of each sample against {titles[x]}, {scale}. Lines by least squares: {said or none}.",
        height=320,
        caption=f"Lines by least squares on these axes ({scale}): {said or none}. {choice.words()}"
        + "".join(f" {text[0].upper()}{text[1:]}." for text in ends),
    )


def _ticks(alt: Any, axis: Axis) -> Any:
    if axis.log:
        return powers(alt, tickCount=5, grid=False)
    return alt.Axis(tickCount=5, format=".6~g", grid=False)


def _scale(alt: Any, axis: Axis) -> Any:
    domain = [axis.low, axis.high] if axis.high > axis.low else alt.Undefined
    if axis.log:
        return alt.Scale(type="log", domain=domain, nice=False, clamp=True)  # what lies below stands on its end
    return alt.Scale(domain=domain, zero=False, nice=False)
