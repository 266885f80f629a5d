"""Some eigenvalues by their place, each with the interval that its residual certifies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import short

if TYPE_CHECKING:
    from spiritlevel.results.eigenpairs import Eigenvalues


def eigenvalue_intervals(found: Eigenvalues, learning_rate: float | None, name: str = "eigenvalues") -> Figure:
    """Return the eigenvalues as points with their intervals; a line at 2/lr where the learning rate is known."""
    low, high = found.intervals.T.tolist()
    rows = Rows(
        name,
        [
            {"place": place, "value": short(value), "low": short(below), "high": short(above)}
            for place, (value, below, above) in enumerate(zip(found.values.tolist(), low, high), 1)
        ],
    )
    lines = Rows(f"{name}_line", [{"line": short(2 / learning_rate)}] if learning_rate else [])

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        base = alt.Chart(alt.NamedData(rows.name))
        x = alt.X("place:O", title="eigenvalue", axis=alt.Axis(labelAngle=0))
        scale = alt.Scale(zero=False, nice=True)
        tooltip = [
            alt.Tooltip("place:O", title="eigenvalue"),
            alt.Tooltip("value:Q", title="value", format=".6~g"),
            alt.Tooltip("low:Q", title="from", format=".6~g"),
            alt.Tooltip("high:Q", title="to", format=".6~g"),
        ]
        drawn = [
            base.mark_rule(strokeWidth=2, color=palette.blue).encode(
                x=x, y=alt.Y("low:Q", title="value", scale=scale, axis=alt.Axis(format=".5~g")), y2="high:Q"
            ),
            base.mark_point(filled=True, size=80, opacity=1, color=palette.blue).encode(
                x=x, y="value:Q", tooltip=tooltip
            ),
        ]
        if lines.values:
            rule = alt.Chart(alt.NamedData(lines.name)).mark_rule(strokeDash=[4, 3], color=palette.orange)
            drawn.append(rule.encode(y="line:Q"))
        return alt.layer(*drawn)

    largest = float(found.residuals.max())
    words = f" The dashed line is 2/lr = {2 / learning_rate:.4g}." if learning_rate else ""
    return Figure(
        name,
        "Eigenvalues with their intervals",
        draw,
        [rows, lines],
        f"{len(rows.values)} eigenvalues from {min(low):.3g} to {max(high):.3g}.",
        caption=f"An eigenvalue lies within each interval; the widest is ± {largest:.2g}.{words}",
    )
