"""Every layer's share of the trace beside its share of a quantity that no rescaling can change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spiritlevel.page.extras import need
from spiritlevel.page.palette import Palette, in_lines
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.page.points import short

MOST_LAYERS = 24
LONGEST = 24


def shares_of(values: Mapping[str, float]) -> dict[str, float]:
    """Return each layer's part of the whole; of the sum of sizes where signs differ."""
    whole = sum(values.values())
    if any(value < 0 for value in values.values()):
        whole = sum(abs(value) for value in values.values())
    return {layer: value / whole for layer, value in values.items()} if whole > 0 else {}


def shortened(names: list[str]) -> list[str]:
    """Return names made short where they are long, in a way that keeps them apart; in full where none does."""

    def by_parts(name: str) -> str:
        return ".".join(part if len(part) <= 7 else f"{part[:4]}…" for part in name.split("."))

    def by_ends(name: str) -> str:
        return f"{name[: LONGEST - 11]}…{name[-10:]}"

    for way in (by_parts, by_ends):
        found = [name if len(name) <= LONGEST else way(name) for name in names]
        if len(set(found)) == len(names) and max(map(len, found)) <= LONGEST:
            return found
    return names


def layer_shares(
    quantities: Mapping[str, Mapping[str, float]], titles: Mapping[str, str], name: str = "layer_shares"
) -> Figure | None:
    """Return bars of each layer's share, one bar a quantity; None where no quantity has a positive sum."""
    shares = {quantity: found for quantity, values in quantities.items() if (found := shares_of(values))}
    if not shares:
        return None
    first = next(iter(shares.values()))
    layers = sorted(first, key=lambda layer: -abs(first[layer]))
    dropped = len(layers) - MOST_LAYERS
    kept = set(layers[:MOST_LAYERS]) if dropped > 0 else set(layers)
    order = [layer for layer in first if layer in kept]
    shown = dict(zip(order, shortened(order)))
    rows = Rows(
        name,
        [
            {"layer": shown[layer], "name": layer, "quantity": in_lines(titles[quantity], 24), "share": short(share)}
            for quantity, found in shares.items()
            for layer, share in found.items()
            if layer in kept
        ],
    )
    domain = [in_lines(titles[quantity], 24) for quantity in shares]

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        return (
            alt.Chart(alt.NamedData(rows.name))
            .mark_bar()
            .encode(
                x=alt.X("share:Q", title="share of the network's sum", axis=alt.Axis(format="%", tickCount=5)),
                y=alt.Y("layer:N", sort=list(shown.values()), title=None, axis=alt.Axis(labelLimit=165)),
                yOffset=alt.YOffset("quantity:N", sort=domain),
                color=alt.Color(
                    "quantity:N",
                    scale=alt.Scale(domain=domain, range=palette.series[: len(domain)]),
                    legend=alt.Legend(columns=1),
                ),
                tooltip=[
                    alt.Tooltip("name:N", title="layer"),
                    alt.Tooltip("quantity:N", title="quantity"),
                    alt.Tooltip("share:Q", title="share", format=".1%"),
                ],
            )
        )

    said = [
        f"{titles[quantity]}: " + ", ".join(f"{layer} {100 * found[layer]:.0f}%" for layer in order if layer in found)
        for quantity, found in shares.items()
    ]
    rest = f" The {MOST_LAYERS} layers with the largest share of {len(layers)} are drawn." if dropped > 0 else ""
    return Figure(
        name,
        "Where the trace sits, layer by layer",
        draw,
        [rows],
        f"Shares of the layers. {'; '.join(said)}.{rest}",
        height=126 + len(order) * max(22, 14 * len(domain)),
        caption=rest.strip(),
    )
