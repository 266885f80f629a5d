"""Many networks in a terminal: the answer, a row a network with letters for ties, and a row a measure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spiritlevel.results.contrasts import largest_of
from spiritlevel.results.numerals import MISSING, value_text
from spiritlevel.results.terminal import rows_table
from spiritlevel.values.cleaning import Cleaned, for_terminal
from spiritlevel.values.rich_tables import new_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from spiritlevel.results.compared import Comparison


def table(ranked: Comparison, failures: Mapping[str, str] | None = None) -> RenderableType:
    """Return what is known of three networks or more, for rich's ``print``; ``failures`` are rows without numbers."""
    from rich.console import Group
    from rich.text import Text

    strong, *rest = ranked.answer or ranked.reading[:1]
    names = _row_names(ranked)
    letters = {name: {names[k]: own for k, own in r.letters.items()} for name, r in ranked.rankings.items()}
    parts: list[RenderableType] = [
        Text(for_terminal(strong), style="bold"),
        *([Text(for_terminal(" ".join(rest)))] if rest else []),
        rows_table({names[k]: report for k, report in ranked.reports.items()}, failures, letters=letters),
        *([measures_table(ranked)] if ranked.rankings else []),
        *(Text(line) for line in legend(ranked)),
    ]
    return Cleaned(Group(*parts))


def _row_names(ranked: Comparison) -> dict[str, str]:
    """Return what each row is called: run and place where they tell all networks apart, else its label."""
    runs = ranked.runs
    if not runs.several or runs.unit not in ("epoch", "step"):
        return {label: label for label in ranked.reports}
    names = {label: f"{runs.runs[label]} {runs.unit} {runs.places[label]:g}" for label in ranked.reports}
    return names if len(set(names.values())) == len(names) else {label: label for label in names}


def measures_table(ranked: Comparison) -> RenderableType:
    """Return a row a measure: the flattest, how many it is not told apart from, and the true largest contrast."""
    from rich.text import Text

    found = new_table("measure", "flattest", "ties", "pairs told apart", "largest contrast (95%)")
    for name, ranking in ranked.rankings.items():
        row, first = ranked.rows[name], ranking.order[0]
        largest = largest_of(row.contrasts)
        words = MISSING
        if largest is not None:
            seen = largest.seen_from(min(largest.first, largest.second, key=ranking.order.index))
            words = f"{ranked.runs.where(seen.second)} ÷ {ranked.runs.where(seen.first)}: {seen.words}"
            if seen.ratio is None:
                words = words.replace(" ÷ ", " − ", 1)
        cells = [
            row.title,
            f"{ranked.runs.where(first)}: {value_text(ranked.reports[first][name])}",
            f"{len(ranking.best_of(ranking.order)) - 1:,}",
            f"{sum(each.decided for each in row.contrasts):,} of {len(row.contrasts):,}",
            words,
        ]
        found.add_row(*(Text(for_terminal(cell)) for cell in cells))
    return found


def legend(ranked: Comparison) -> list[str]:
    """Return what letters and intervals say."""
    lines = [
        "Networks that share a letter (a number, where letters do not suffice) are not told apart by that measure, and "
        f"those that share none are. Letters and intervals hold with 95%{ranked.together}."
    ]
    without = [ranked.rows[name].title for name, ranking in ranked.rankings.items() if not ranking.over_samples]
    if without:
        shown = ", ".join(without[:6]) + (f" and {len(without) - 6} more" if len(without) > 6 else "")
        lines.append(f"Without an error over samples, so decided on these samples alone: {shown}.")
    return lines
