"""A spectrum: its smoothed density with a band, and every probe's Ritz values as stems; the line 2/lr where known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import powers, short

if TYPE_CHECKING:
    from spiritlevel.results.spectrum_result import Spectrum

POINTS = 601
FLOOR = 1e-8  # of the peak: what is below is not drawn
SMALLEST_WEIGHT = 1e-12
FARTHEST = 2.0  # times the largest eigenvalue: a line farther off would press the spectrum together


def marked_places(spectrum: Spectrum, learning_rate: float | None) -> list[dict[str, Any]]:
    """Return the vertical lines: both extremes, and 2/lr where the learning rate is known."""
    places = [
        {
            "place": spectrum.eigenvalue_min.value,
            "words": f"smallest {spectrum.eigenvalue_min.value:.3g}",
            "rule": "ends",
        },
        {
            "place": spectrum.eigenvalue_max.value,
            "words": f"largest {spectrum.eigenvalue_max.value:.3g}",
            "rule": "ends",
        },
    ]
    # The caption says where a line lies that is not drawn.
    if learning_rate and 2 / learning_rate <= FARTHEST * max(spectrum.eigenvalue_max.value, 0):
        places.append(
            {
                "place": 2 / learning_rate,
                "words": f"2/lr = {2 / learning_rate:.3g} (lr {learning_rate:g})",
                "rule": "lr",
            }
        )
    return places


def density(spectrum: Spectrum, learning_rate: float | None, name: str) -> Figure:
    """Return the smoothed density on a logarithmic axis, with a band of two standard errors over probes."""
    band = spectrum.density(points=POINTS)
    grid, mean, error = (part.numpy() for part in (band.grid, band.mean, band.stderr))
    floor = float(mean.max()) * FLOOR
    error = np.where(np.isfinite(error), error, 0.0)
    curve = Rows(
        name,
        [
            {
                "place": short(float(g)),
                "density": short(max(float(m), floor)),
                "low": short(max(float(m - 2 * e), floor)),
                "high": short(max(float(m + 2 * e), floor)),
            }
            for g, m, e in zip(grid, mean, error)
        ],
    )
    marks = Rows(f"{name}_marks", marked_places(spectrum, learning_rate))

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        base = alt.Chart(alt.NamedData(curve.name))
        x = alt.X("place:Q", title="eigenvalue", axis=alt.Axis(tickCount=6, format=".6~g"))
        scale = alt.Scale(type="log", domainMin=floor, nice=False)
        axis = powers(alt, tickCount=5)
        return alt.layer(
            base.mark_area(opacity=0.3, color=palette.blue).encode(
                x=x, y=alt.Y("low:Q", scale=scale, title="density", axis=axis), y2="high:Q"
            ),
            base.mark_line(color=palette.blue, strokeWidth=1.5).encode(
                x=x,
                y=alt.Y("density:Q", scale=scale, axis=axis),
                tooltip=[
                    alt.Tooltip("place:Q", title="eigenvalue", format=".4~g"),
                    alt.Tooltip("density:Q", title="density", format=".3~g"),
                ],
            ),
            *_marks(alt, marks, palette),
        )

    said = ", ".join(row["words"] for row in marks.values)
    return Figure(
        name,
        "Density of the eigenvalues",
        draw,
        [curve, marks],
        f"Smoothed density of the eigenvalues on a logarithmic axis; {said}.",
        height=300,
        caption=f"Smoothed with a kernel of width {band.kernel_width:.2g}; the band is two standard errors over "
        f"{len(spectrum.nodes)} probes." + (f" 2/lr = {2 / learning_rate:.4g}." if learning_rate else ""),
    )


def stems(spectrum: Spectrum, learning_rate: float | None, name: str) -> Figure:
    """Return every probe's Ritz values with their weights, unsmoothed."""
    shares = spectrum.weights / len(spectrum.nodes)
    pairs = [
        (float(n), float(w))
        for n, w in zip(spectrum.nodes.flatten().tolist(), shares.flatten().tolist())
        if w > SMALLEST_WEIGHT
    ]
    least = min(w for _, w in pairs) / 2
    rows = Rows(name, [{"place": short(n), "share": short(w), "least": short(least)} for n, w in pairs])
    marks = Rows(f"{name}_marks", marked_places(spectrum, learning_rate))

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        drawn = (
            alt.Chart(alt.NamedData(rows.name))
            .mark_rule(color=palette.blue, strokeWidth=1)
            .encode(
                x=alt.X("place:Q", title="Ritz value", axis=alt.Axis(tickCount=6, format=".6~g")),
                y=alt.Y(
                    "least:Q",
                    scale=alt.Scale(type="log", nice=False),
                    title="share of the eigenvalues",
                    axis=powers(alt, tickCount=5),
                ),
                y2="share:Q",
                tooltip=[
                    alt.Tooltip("place:Q", title="Ritz value", format=".5~g"),
                    alt.Tooltip("share:Q", title="share", format=".3~g"),
                ],
            )
        )
        return alt.layer(drawn, *_marks(alt, marks, palette))

    return Figure(
        name,
        "Ritz values of every probe",
        draw,
        [rows, marks],
        f"{len(pairs)} Ritz values with their weights, from {min(n for n, _ in pairs):.3g} to "
        f"{max(n for n, _ in pairs):.3g}.",
        height=300,
    )


def _marks(alt: Any, marks: Rows, palette: Palette) -> list[Any]:
    base = alt.Chart(alt.NamedData(marks.name))
    colour = alt.Color(
        "rule:N", scale=alt.Scale(domain=["ends", "lr"], range=[palette.ink, palette.orange]), legend=None
    )
    text = base.mark_text(align="right", angle=270, dx=-4, dy=-6, y=0, baseline="bottom")
    return [
        base.mark_rule(strokeDash=[4, 3]).encode(x="place:Q", color=colour),
        text.encode(x="place:Q", text="words:N", color=colour),
    ]
