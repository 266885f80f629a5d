"""The comparison at a glance: each measure's ratio with its paired 95% interval, marked by whether it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette, in_lines
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import short

if TYPE_CHECKING:
    from spiritlevel.results.compared import Comparison

# The kinds of a comparison's rows as marks: words, colour, shape. Each is told by its shape alone.
MARKS = {
    "invariant": ("survives rescaling", "blue", "circle"),
    "reversible": ("reversible by rescaling", "orange", "diamond"),
    "changes": ("changes under rescaling", "orange", "triangle-up"),
    "scales_with_logits": ("scales with the logits", "purple", "square"),
    "undecided": ("undecided", "grey", "cross"),
    "not_tried": ("no rescaling was tried", "black", "triangle-down"),
}

_FINE = (0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 1.25, 1.5, 2, 2.5, 3, 4, 5)
_COARSE = tuple(lead * 10.0**power for power in range(-9, 10) for lead in (1, 2, 5))


def ratio_figure(
    comparison: Comparison, names: list[str], letters: dict[str, str], name: str = "ratios"
) -> Figure | None:
    """Return the figure of the ratios of all networks to the first, right of 1 where the other is sharper."""
    first, *others = comparison.labels
    values: list[dict[str, Any]] = []
    said, turned = [], []
    for measure in names:
        row = comparison.rows[measure]
        if row.holding.kind not in MARKS:
            continue
        for other in others:
            contrast = row.between(first, other)
            if contrast is None or contrast.ratio is None:
                continue
            low, middle, high = contrast.ratio.low, contrast.ratio.value, contrast.ratio.high
            if row.sharper_when == "smaller":
                low, middle, high = 1 / high, 1 / middle, 1 / low
                turned.append(row.title)
            kind: str = row.holding.kind
            if contrast.flatter is None:
                kind = "undecided"
            elif kind == "undecided":  # this pair differs, but none of the networks is flatter than all the others
                kind = "not_tried"
            words = MARKS[kind][0]
            values.append(
                {
                    "measure": in_lines(row.title),
                    "network": f"{letters[other]} ÷ {letters[first]}",
                    "letter": letters[other],
                    "ratio": short(middle),
                    "low": short(low),
                    "high": short(high),
                    "kind": words,
                    "holds": row.holding.words,
                }
            )
            said.append(f"{row.title} {middle:.3g} ({low:.3g} to {high:.3g}), {words}")
    if not values:
        return None
    rows = Rows(name, values)
    order = list(dict.fromkeys(value["measure"] for value in values))
    kinds = [kind for kind, mark in MARKS.items() if any(value["kind"] == mark[0] for value in values)]
    lowest, highest = min(v["low"] for v in values), max(v["high"] for v in values)
    domain = [min(0.8, lowest / 1.08), max(1.25, highest * 1.08)]
    several = len(others) > 1
    ticks = [t for t in (_FINE if domain[1] / domain[0] < 6 else _COARSE) if domain[0] <= t <= domain[1]]
    title = (
        f"{letters[others[0]]} ÷ {letters[first]} (right of 1: {letters[others[0]]} sharper)"
        if not several
        else f"each ÷ {letters[first]} (right of 1: sharper than {letters[first]})"
    )

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        words = [MARKS[kind][0] for kind in kinds]
        colour = alt.Color(
            "kind:N",
            scale=alt.Scale(domain=words, range=[getattr(palette, MARKS[kind][1]) for kind in kinds]),
            legend=alt.Legend(orient="bottom", columns=1),
        )
        shape = alt.Shape("kind:N", scale=alt.Scale(domain=words, range=[MARKS[kind][2] for kind in kinds]))
        scale = alt.Scale(type="log", domain=domain, nice=False)
        base = alt.Chart(alt.NamedData(rows.name)).encode(
            y=alt.Y("measure:N", sort=order, title=None, axis=alt.Axis(domain=False, ticks=False, labelPadding=8)),
            **({"yOffset": alt.YOffset("network:N")} if several else {}),
        )
        x = alt.X("ratio:Q", scale=scale, title=title, axis=alt.Axis(values=ticks, format=".6~g", grid=True))
        tooltip = [
            alt.Tooltip("measure:N", title="measure"),
            alt.Tooltip("network:N", title="ratio of"),
            alt.Tooltip("ratio:Q", title="sharper by", format=".4~g"),
            alt.Tooltip("low:Q", title="95% from", format=".4~g"),
            alt.Tooltip("high:Q", title="to", format=".4~g"),
            alt.Tooltip("holds:N", title="ordering"),
        ]
        names = base.mark_text(dy=-11, fontSize=11, color=palette.ink).encode(x=x, text="letter:N") if several else None
        one = alt.Chart(alt.NamedData(f"{name}_one")).mark_rule(strokeDash=[5, 4], color=palette.ink)
        return alt.layer(
            one.encode(x=alt.X("one:Q", scale=scale)),
            base.mark_rule(strokeWidth=2.5).encode(x=alt.X("low:Q", scale=scale), x2="high:Q", color=colour),
            base.mark_point(filled=True, size=110, opacity=1).encode(x=x, color=colour, shape=shape, tooltip=tooltip),
            *([names] if names is not None else []),
        )

    caption = f"Lines are 95% intervals{comparison.together}; those over samples are paired."
    if "undecided" in kinds:
        caption += " Undecided is what lies within its error."
    if turned:
        listed = ", ".join(dict.fromkeys(turned))
        caption += f" Inverted, because smaller is sharper: {listed}."
    return Figure(
        name,
        "How much sharper, and does it hold",
        draw,
        [rows, Rows(f"{name}_one", [{"one": 1}])],
        f"Ratios, right of 1 where the second network is sharper: {'; '.join(said)}.",
        height=62 + len(order) * (30 if not several else 14 + 16 * len(others)) + 20 * len(kinds),
        caption=caption,
    )
