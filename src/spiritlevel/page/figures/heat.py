"""The audit as a heat map: a square for each measure and symmetry, its word or factor written in it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from spiritlevel.page.extras import need
from spiritlevel.page.figures.squares import written_squares
from spiritlevel.page.palette import Palette, in_lines
from spiritlevel.page.parts import Figure, Rows
from spiritlevel.results.numerals import plain
from spiritlevel.values.symmetries import SYMMETRY_WORDS

if TYPE_CHECKING:
    from spiritlevel.results.audits import Audit

COLOURS = {"invariant": "blue", "changes": "orange", "undecided": "grey", "not measured": "grey"}


def heat_map(audit: Audit, titles: dict[str, str], name: str = "audit") -> Figure:
    """Return the verdicts of all measures, stronger where the value changed by a larger factor."""
    values, said = [], []
    for measure, row in audit.verdicts.items():
        words = []
        for symmetry, verdict in row.items():
            if verdict.verdict == "not found":
                continue
            factor = verdict.factor
            text: str = verdict.verdict
            strength = 0.35
            if verdict.verdict == "changes":
                text = f"× {factor_text(factor)}" if factor is not None else "changes"
                size = abs(math.log10(factor)) if factor else 1.0
                strength = 0.15 + 0.35 * min(size / 4, 1.0)  # the text in it stays readable
            elif verdict.verdict != "invariant":
                strength = 0.2
            values.append(
                {
                    "measure": in_lines(titles[measure]),
                    "symmetry": in_lines(SYMMETRY_WORDS.get(symmetry, symmetry), 10),
                    "verdict": verdict.verdict,
                    "text": text + (" (!)" if verdict.contradiction else ""),
                    "strength": strength,
                    "declared": {True: "invariant", False: "changes", None: "nothing"}[verdict.declared],
                }
            )
            words.append(f"{SYMMETRY_WORDS.get(symmetry, symmetry)} {text}")
        said.append(f"{titles[measure]}: {', '.join(words) or 'nothing found to try'}")
    rows = Rows(name, values)
    verdicts = [verdict for verdict in COLOURS if any(value["verdict"] == verdict for value in values)]
    symmetries = list(dict.fromkeys(in_lines(w, 10) for w in SYMMETRY_WORDS.values()))
    symmetries = [w for w in symmetries if any(value["symmetry"] == w for value in values)]
    order = [in_lines(titles[measure]) for measure in audit.verdicts]

    def draw(palette: Palette) -> Any:
        alt = need("altair")
        base = alt.Chart(alt.NamedData(rows.name)).encode(
            x=alt.X(
                "symmetry:N",
                sort=symmetries,
                title=None,
                axis=alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False, labelPadding=20),
            ),
            y=alt.Y("measure:N", sort=order, title=None),
        )
        colour = alt.Color(
            "verdict:N",
            scale=alt.Scale(domain=verdicts, range=[getattr(palette, COLOURS[verdict]) for verdict in verdicts]),
            legend=alt.Legend(orient="bottom", columns=2),
        )
        opacity = alt.Opacity("strength:Q", scale=None)
        told = {"measure": "measure", "symmetry": "under", "text": "measured", "declared": "declared"}
        return written_squares(base, palette, color=colour, opacity=opacity, told=told, size=12)

    return Figure(
        name,
        "What each change of the weights does to each measure",
        draw,
        [rows],
        f"Verdicts from measuring. {'; '.join(said)}.",
        height=96 + 36 * len(order),
        least_width=460,
        caption="Factors are those of the usual strength, or of outputs scaled by 10.",
    )


def factor_text(factor: float) -> str:
    """Return a factor with few digits, whatever its size."""
    return plain(factor, 2) if 1e-3 < factor < 1e5 else f"{factor:.0e}"
